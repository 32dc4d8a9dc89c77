"""The (gated) delta product, several Householder steps a token, judged as a delta rule.

Math: a token of a delta product is n tokens of the delta rule, of which the first alone has a gate
and the last alone a query. A step whose beta is 0 changes nothing. So calls of the product give
every o_t, and the state, of any delta rule:

- with gates, token t is one token of the product, its step at place t mod n among steps of beta 0;
  where tokens after t have a gate of 0, up to n of them are one token of the product, in a second
  copy of every sequence, which gives the o of the last of them and the state;
- without, n consecutive tokens are one token of the product, which gives the o of the last of them;
  n shifted copies of every sequence give that of all. A product with gates gets those of HALVED
  there, 1/2: v is divided by the powers of two before, o and the state are multiplied after.

Everything of the delta rule (oracle, tolerances, laws, gradients) then holds for the product.

Source: DeltaProduct, arXiv:2502.10297.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.entry_point import signature_of
from kdaverify.adapters.product_layout import ProductLayout
from oracles.autograd import ForwardOnlyError

Function = Callable[..., Any]
NOTHING: Final[Mapping[str, float]] = {"value": 0.0, "logit": -math.inf}
"""The beta of a step that changes nothing, by what the kernel takes. At a logit of 0 a step writes
with half its strength: every right product that takes logits was rejected."""
# Declared to `kernel`, above: it reaches the product through whatever lies between.
_taken_beta = ContextVar("taken_beta", default="value")
OTHER_GATES: Final = (
    "gates other than 0 and -log 2, and their gradients: the product takes g, so judge it with"
    " gates='head' too"
)
SHORT: Final = (torch.bfloat16, torch.float16)
OF_COPIES: Final = (
    "without gates a gradient is a sum over shifted copies, each rounded to 16 bits: it is tested"
    " in fp32, and with gates"
)


@contextmanager
def taking(beta: str) -> Generator[None]:
    """Calls of delta products inside take beta as declared: a value, or a logit."""
    token = _taken_beta.set(beta)
    try:
        yield
    finally:
        _taken_beta.reset(token)


def delta_product(steps: int, *, gates: str) -> Callable[[Function], Function]:
    """Turns a delta product into a function of the delta rule, for `kdaverify.kernel`.

    The decorated function is (q [B, T, H, K], k [B, T n, H, K], v [B, T n, HV, V], g [B, T, HV],
    beta [B, T n, HV], *, scale, initial_state, cu_seqlens) -> (o [B, T, HV, V], final_state), or o,
    of torch tensors and with these names; g is a log gate, or left out, and cu_seqlens counts the
    tokens of q. Every call gets memory of its own.

    Args:
        steps: n, Householder steps a token.
        gates: of the delta rule, as declared to `kernel`: "head", where one step of a token at a
            time has its beta, and several where gates are 0, or "none", where all have. A function
            that takes g is to be judged as both.
    Returns:
        A decorator; without gates the new function takes no g.
    Raises:
        AdapterError: fewer than 2 steps, which is a delta rule, or gates that are not there.
    """
    if steps < 2 or gates not in ("head", "none"):
        raise AdapterError(
            f"delta_product: wanted at least 2 steps and gates='head' or 'none', got {steps} and"
            f" {gates!r}"
        )

    def decorate(function: Function) -> Function:
        signature = signature_of(function)
        gated = "g" in signature.parameters
        if gates == "head" and not gated:
            raise AdapterError("delta_product: gates='head', but the signature does not name g")
        taken = [p for name, p in signature.parameters.items() if gates == "head" or name != "g"]
        of_rule = signature.replace(parameters=taken)

        @wraps(function)
        def rule(*args: Any, **words: Any) -> Any:
            given = of_rule.bind(*args, **words).arguments
            q = given["q"]
            if gates == "none" and given["k"].requires_grad and q.dtype in SHORT:
                raise ForwardOnlyError(OF_COPIES)
            layout = _layout(given, steps, gates=gates, halves=gated)
            made = layout.arguments(given, NOTHING[_taken_beta.get()])
            if gates == "none" and gated:
                made["g"] = layout.gates(made["beta"])
            call = signature.bind_partial()
            call.arguments |= {name: made[name] for name in signature.parameters if name in made}
            returned, shape = function(*call.args, **call.kwargs), tuple(q.shape[:2])
            if isinstance(returned, Tensor):
                return layout.outputs(returned, shape)
            o, state = returned
            return layout.outputs(o, shape), layout.final(state)

        # of a callable object its class, as in `kernel`
        rule.__name__ = getattr(function, "__name__", type(function).__name__)
        rule.__signature__ = of_rule  # pyright: ignore[reportAttributeAccessIssue]
        rule.steps = steps  # pyright: ignore[reportAttributeAccessIssue]
        if gated and gates == "none":
            rule.unjudged = (OTHER_GATES,)  # pyright: ignore[reportAttributeAccessIssue]
        return rule

    return decorate


def _layout(given: Mapping[str, Any], steps: int, *, gates: str, halves: bool) -> ProductLayout:
    q = given["q"]
    with torch.device(q.device):
        if gates == "head":
            return ProductLayout.of_gates(given, steps)
        return ProductLayout.grouped(
            tuple(q.shape[:2]), given.get("cu_seqlens"), steps, halves=halves
        )
