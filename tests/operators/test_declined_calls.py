"""Of every operator: NotImplementedError declines a call, and is listed; any other exception fails.
A kernel may be an object that is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import pytest

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import REFUSED, Status
from kdaverify.faults.planted.broken_calls import right
from oracles.inputs import Inputs
from tests.operators.layers import D, plain
from tests.operators.plain_ports import PORTS


def raising(function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    @wraps(function)
    def port(*given: Any, **options: Any) -> Any:
        del given, options
        raise error

    return port


def delta_rule(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any
) -> tuple[Any, Any]:
    return right(Inputs(q, k, v, g, beta, scale, initial_state))


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {**PORTS, "kda": delta_rule}


def adapter_of(op: str, function: Callable[..., Any], **declared: Any) -> Adapter:
    given = {"contract": "chunk64-fp32"} if op == "kda" else {}
    return kv.kernel(op=op, dtypes=("fp32",), **given, **declared)(function)


def plain_call(op: str, error: Exception) -> list[Outcome]:
    adapter = adapter_of(op, raising(FUNCTIONS[op], error))
    operator: Any = adapter.operator
    problem = operator.panel(adapter, "smoke")[0][1]
    return check("panel", adapter, problem, {})


@pytest.mark.parametrize("op", FUNCTIONS)
def test_a_call_that_is_not_implemented_is_not_tested(op: str) -> None:
    (found,) = plain_call(op, NotImplementedError("for later"))
    assert (found.status, found.message) == (Status.SKIP, f"{REFUSED}for later")


@pytest.mark.parametrize("op", FUNCTIONS)
def test_any_other_exception_is_an_error(op: str) -> None:
    found = plain_call(op, ValueError("for later"))
    assert {one.status for one in found} == {Status.ERROR}


def test_an_operation_that_torch_lacks_is_an_error() -> None:
    said = "Could not run 'aten::foo' with arguments from the 'CUDA' backend"
    found = plain_call("gated_rms_norm", NotImplementedError(said))
    assert {one.status for one in found} == {Status.ERROR}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_a_kernel_that_declines_the_first_calls_is_not_stopped_by_it(op: str) -> None:
    adapter = adapter_of(op, raising(FUNCTIONS[op], NotImplementedError("for later")))
    operator: Any = adapter.operator
    found = operator.preflight(adapter)
    assert found and {one.status for one in found} == {Status.SKIP}


class Port:
    """A kernel with a state of its own."""

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.function, self.number = function, number
        self.__signature__ = inspect.signature(function)

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.function(*given, **options)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_an_object_that_is_called_is_named_for_its_class(op: str) -> None:
    plain_one, named = (
        adapter_of(op, Port(FUNCTIONS[op], 128), **given) for given in ({}, {"name": "of 128"})
    )
    operator: Any = plain_one.operator
    assert (plain_one.name, named.name) == ("Port", "of 128")
    assert {one.status for one in operator.preflight(plain_one)} == {Status.PASS}


def test_so_is_a_layer_and_a_delta_product() -> None:
    layer: Any = kv.kernel(op="layer", widths=D)(Port(plain, 1))
    product: Any = kv.delta_product(2, gates="none")(Port(delta_rule, 2))
    assert (layer.name, kv.kernel(gates="none")(product).name) == ("Port", "Port")
