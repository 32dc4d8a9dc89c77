"""The (gated) delta product, several Householder steps a token, judged as a delta rule.

Math: a token of a delta product is n tokens of the delta rule, of which the first alone has a gate
and the last alone a query. A step whose beta is 0 changes nothing. So calls of the product give
every o_t, and the state, of any delta rule:

- with gates, token t is one token of the product, its step at place t mod n among steps of beta 0;
- without, n consecutive tokens are one token of the product, which gives the o of the last of them;
  n shifted copies of every sequence give that of all. A product with gates gets those of HALVED
  there, 1/2: v is divided by the powers of two before, o and the state are multiplied after.

Everything of the delta rule (oracle, tolerances, laws, gradients) then holds for the product.

Source: DeltaProduct, arXiv:2502.10297.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any, Final, Self

import torch
from torch import Tensor

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.entry_point import signature_of
from oracles.autograd import ForwardOnlyError

Function = Callable[..., Any]
HALVED: Final = (1, 3, 40)
"""Tokens of the product before which the state is halved: few, since what is halved three times
keeps its digits in fp16, where 2^-14 is the smallest normal number."""

SHORT: Final = (torch.bfloat16, torch.float16)
OF_COPIES: Final = (
    "without gates a gradient is a sum over shifted copies, each rounded to 16 bits: it is tested"
    " in fp32, and with gates"
)


@dataclass(frozen=True)
class ProductLayout:
    """Where the tokens of a delta rule are in a call of a delta product.

    Args:
        steps: [R, M n] the token, a row of B T, whose k and v each step has.
        real: [R, M n] whether it has the token's beta; 0 elsewhere.
        queries: [R, M] the token whose q, and g, each token of the product has.
        shown: [R, M] whether its o is that token's.
        halved: [R, M] how often the state was halved before.
        copies: of every sequence.
        offsets: of the sequences of the product, or None.
    """

    steps: Tensor
    real: Tensor
    queries: Tensor
    shown: Tensor
    halved: Tensor
    copies: int
    offsets: Tensor | None

    @classmethod
    def spread(cls, shape: tuple[int, int], cu_seqlens: Tensor | None, n: int) -> Self:
        """Token t among steps of beta 0."""
        tokens = torch.arange(shape[0] * shape[1]).view(shape)
        steps = tokens.repeat_interleave(n, 1)
        real = torch.arange(steps.shape[1]) % n == (steps - steps[:, :1]) % n
        return cls(steps, real, tokens, tokens >= 0, torch.zeros_like(tokens), 1, cu_seqlens)

    @classmethod
    def grouped(
        cls, shape: tuple[int, int], cu_seqlens: Tensor | None, n: int, *, halves: bool
    ) -> Self:
        """n tokens in one, in n shifted copies."""
        (B, T), packed = shape, cu_seqlens is not None
        ends = [b * T for b in range(B + 1)] if cu_seqlens is None else cu_seqlens.tolist()
        spans = [*pairwise(ends)]
        parts = [_shifted(span, shift, n, even=not packed) for shift in range(n) for span in spans]
        rows = 1 if packed else len(parts)
        steps, real, halved = (torch.cat(x).view(rows, -1) for x in zip(*parts, strict=True))
        lengths = [0, *(len(tokens) for *_, tokens in parts)]
        offsets = None if cu_seqlens is None else torch.tensor(lengths).cumsum(0).to(cu_seqlens)
        last = slice(n - 1, None, n)
        return cls(steps, real, steps[:, last], real[:, last], halves * halved, n, offsets)

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the product, for those of the delta rule."""
        made: Mapping[str, Callable[[Any], Any]] = {
            **dict.fromkeys(("q", "g"), lambda x: _taken(x, self.queries)),
            "k": lambda k: _taken(k, self.steps),
            "v": self._values,
            "beta": lambda beta: _taken(beta, self.steps).masked_fill(~self.real[..., None], 0.0),
            "initial_state": lambda state: state.repeat(self.copies, 1, 1, 1),
            "cu_seqlens": lambda _: self.offsets,
        }
        return {
            name: value if value is None or name not in made else made[name](value)
            for name, value in given.items()
        }

    def _values(self, v: Tensor) -> Tensor:
        halved = self.halved.repeat_interleave(self.steps.shape[1] // self.halved.shape[1], 1)
        return _doubled(_taken(v, self.steps), -halved)

    def gates(self, beta: Tensor) -> Tensor:
        """[R, M, HV] Log gates that halve the state."""
        first = self.queries.new_zeros(len(self.halved), 1)
        halves = self.halved.diff(dim=1, prepend=first).clamp(min=0)
        wide = torch.promote_types(beta.dtype, torch.float32)
        return (-math.log(2) * halves.to(wide))[..., None].repeat(1, 1, beta.shape[2])

    def outputs(self, o: Tensor, shape: tuple[int, int]) -> Tensor:
        """[B, T, HV, V]; 0 for rows of no sequence."""
        whole = _doubled(o, self.halved)[self.shown]
        rows = o.new_zeros(shape[0] * shape[1], *o.shape[2:])
        return rows.index_put((self.queries[self.shown],), whole).view(*shape, *o.shape[2:])

    def final(self, state: Tensor) -> Tensor:
        """[N, HV, K, V] of the last copies."""
        last = self.halved[:, -1:] if self.offsets is None else self._at_ends(self.offsets)
        return _doubled(state, last.flatten()).chunk(self.copies)[-1]

    def _at_ends(self, offsets: Tensor) -> Tensor:
        """How often the state of every sequence of a pack was halved; of one without tokens, 0."""
        ends = self.halved[0, offsets[1:].long() - 1]
        return ends.masked_fill(offsets.diff() == 0, 0)


def _shifted(
    span: tuple[int, int], shift: int, n: int, *, even: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps of one sequence after `shift` steps of beta 0, which are its own, and how often the
    state was halved before each token of the product.

    Args:
        even: whether there are as many as after n - 1, since rows of a batch have one length.
    """
    first, end = span
    length = end - first
    tokens = -(-(length + (n - 1 if even else shift)) // n) if length else 0
    at = torch.arange(tokens * n) - shift
    halved = torch.isin(torch.arange(tokens), torch.tensor(HALVED)).cumsum(0)
    return first + at.clamp(0, length - 1), (at >= 0) & (at < length), halved


def _doubled(x: Tensor, often: Tensor) -> Tensor:
    """x times a power of two, exactly."""
    factor = torch.exp2(often.float()).to(x.dtype)
    return x * factor.view(*factor.shape, *[1] * (x.ndim - factor.ndim))


def _taken(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of [B, T, ...]; their gradients are summed in fp32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide).flatten(0, 1)[rows].to(x.dtype)


def delta_product(steps: int, *, gates: str) -> Callable[[Function], Function]:
    """Turns a delta product into a function of the delta rule, for `kdaverify.kernel`.

    The decorated function is (q [B, T, H, K], k [B, T n, H, K], v [B, T n, HV, V], g [B, T, HV],
    beta [B, T n, HV], *, scale, initial_state, cu_seqlens) -> (o [B, T, HV, V], final_state), or o,
    of torch tensors and with these names; g is a log gate, or left out, and cu_seqlens counts the
    tokens of q. Every call gets memory of its own.

    Args:
        steps: n, Householder steps a token.
        gates: of the delta rule, as declared to `kernel`: "head", where one step of a token at a
            time has its beta, or "none", where all have. A function that takes g is to be judged as
            both.
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
            q, cu_seqlens = given["q"], given.get("cu_seqlens")
            shape: tuple[int, int] = tuple(q.shape[:2])
            if gates == "none" and given["k"].requires_grad and q.dtype in SHORT:
                raise ForwardOnlyError(OF_COPIES)
            with torch.device(q.device):
                if gates == "head":
                    layout = ProductLayout.spread(shape, cu_seqlens, steps)
                else:
                    layout = ProductLayout.grouped(shape, cu_seqlens, steps, halves=gated)
            made = layout.arguments(given)
            if gates == "none" and gated:
                made["g"] = layout.gates(made["beta"])
            call = signature.bind_partial()
            call.arguments |= {name: made[name] for name in signature.parameters if name in made}
            returned = function(*call.args, **call.kwargs)
            if isinstance(returned, Tensor):
                return layout.outputs(returned, shape)
            o, state = returned
            return layout.outputs(o, shape), layout.final(state)

        # of a callable object its class, as in `kernel`
        rule.__name__ = getattr(function, "__name__", type(function).__name__)
        rule.__signature__ = of_rule  # pyright: ignore[reportAttributeAccessIssue]
        rule.steps = steps  # pyright: ignore[reportAttributeAccessIssue]
        return rule

    return decorate
