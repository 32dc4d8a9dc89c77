"""However a kernel can be called (a function, a module, an object, filled in, wrapped), it gets the
keywords that it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

import pytest
import torch

from kdaverify.adapters.delta_product import delta_product
from kdaverify.adapters.entry_point import place_of, signature_of
from kdaverify.adapters.kernel import kernel
from kdaverify.checks.outcome import Outcome
from tests.operators.plain_ports import attention, gated_rms_norm, mla_decode, short_conv

PORTS: Final = (attention, mla_decode, short_conv, gated_rms_norm)


class Attention(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any:
        return attention(q, k, v, softmax_scale=softmax_scale, causal=causal)


class Norm(torch.nn.Module):
    def forward(self, x: Any, gate: Any, weight: Any, *, eps: float, activation: str) -> Any:
        return gated_rms_norm(x, gate, weight, eps=eps, activation=activation)


class Called:
    def __call__(self, q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any:
        return attention(q, k, v, softmax_scale=softmax_scale, causal=causal)


class OwnCall(torch.nn.Module):
    """A module whose own __call__ names what it takes."""

    def __call__(self, q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any:
        return attention(q, k, v, softmax_scale=softmax_scale, causal=causal)


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    return wrapper


STYLES: Final[dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]]] = {
    "module": ("attention", Attention(), attention),
    "norm module": ("gated_rms_norm", Norm(), gated_rms_norm),
    "object": ("attention", Called(), attention),
    "own call": ("attention", OwnCall(), attention),
    "partial": ("attention", partial(attention, causal=False), attention),
    "partial module": ("attention", partial(Attention(), causal=False), attention),
    "wrapped": ("attention", traced(attention), attention),
    "wrapped module": ("attention", traced(Attention()), attention),
    "partial wrapped module": ("attention", partial(traced(Attention())), attention),
}


def preflight(adapter: Any) -> list[Outcome]:
    return adapter.operator.preflight(adapter)


@pytest.mark.parametrize("style", STYLES)
def test_it_gets_the_keywords_of_the_function_behind_it(style: str) -> None:
    op, styled, plain = STYLES[style]
    adapter, right = kernel(op=op, name=style)(styled), kernel(op=op)(plain)
    assert adapter.takes.names == right.takes.names
    assert not [one for one in preflight(adapter) if one.status.rejects]
    operator: Any = right.operator
    call = operator.within(right, operator.probe("fp32")).inputs()
    found, exact = adapter.forward(call), right.forward(call)
    for name, x in found.items():
        torch.testing.assert_close(x, exact[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.__name__)
def test_keywords_by_any_name_are_all_that_the_operator_has(port: Any) -> None:
    seen = set[str]()

    def passed(*args: Any, **keywords: Any) -> Any:
        seen.update(keywords)
        known = signature_of(port).parameters
        return port(*args, **{name: x for name, x in keywords.items() if name in known})

    adapter = kernel(op=port.__name__, name="passed")(passed)
    probe = adapter.operator.within(adapter, adapter.operator.probe("fp32"))
    adapter.forward(probe.inputs())
    assert seen == {*adapter.operator.keywords}


def test_a_module_is_placed_where_its_forward_is_written() -> None:
    assert "test_call_styles.py" in place_of(Attention())


def test_a_delta_product_of_a_module_names_what_its_forward_takes() -> None:
    class Rule(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, beta: Any, *, scale: float) -> None: ...

    rule = delta_product(2, gates="none")(Rule())
    assert [*signature_of(rule).parameters] == ["q", "k", "v", "beta", "scale"]
