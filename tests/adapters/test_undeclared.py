"""What no option declares is refused with what to do instead;
the function itself stays reachable.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import kdaverify as kv
from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.kernel import kernel
from kdaverify.adapters.undeclared import ADVICE
from kdaverify.operator import OPERATORS, operator_named
from kdaverify.operators.function import FunctionOperator


def nothing(*tensors: Any, **keywords: Any) -> None:
    """Takes everything."""


@pytest.mark.parametrize(
    ("op", "option", "said"),
    [
        ("kda", "use_qk_l2norm_in_kernel", "say qk='l2norm'"),
        ("kda", "A_log", "say gate='softplus'"),
        ("short_conv", "layout", "transpose in the port"),
        ("gated_rms_norm", "groups", "one group"),
        ("attention", "window", "judge the kernel without it"),
        ("mla_decode", "max_heads", "supports="),
    ],
)
def test_what_cannot_be_declared_is_refused_with_what_to_do(
    op: str, option: str, said: str
) -> None:
    options: dict[str, Any] = {"op": op, option: 2}
    with pytest.raises(AdapterError, match=re.escape(said)):
        kernel(**options)(nothing)


def test_no_advice_hides_an_option() -> None:
    of_rule = {*inspect.signature(kernel).parameters}
    assert of_rule & {*ADVICE} == {"layout"}  # of the delta rule and attention alone
    operators = [one for one in map(operator_named, OPERATORS) if isinstance(one, FunctionOperator)]
    own = {name for one in operators for name in (*one.words, *one.numbers, *one.functions)}
    assert own & {*ADVICE} <= {"layout"}


def test_the_function_is_what_the_adapter_wraps() -> None:
    def port(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any = None
    ) -> Any:
        """Ours."""
        return q, k, v, g, beta, scale, initial_state

    adapter = kernel(port)
    assert adapter.__wrapped__ is port and adapter.__doc__ == "Ours."
    assert inspect.signature(adapter) == inspect.signature(port)
    assert adapter(1, 2, 3, 4, 5, scale=6) == (1, 2, 3, 4, 5, 6, None)


def test_a_product_keeps_its_own_function_below_that_of_the_rule() -> None:
    def product(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any) -> Any:
        return q

    adapter = kernel(gates="none", contract="gdn64")(kv.delta_product(2, gates="none")(product))
    assert adapter.__wrapped__.__wrapped__ is product
    assert [*inspect.signature(adapter).parameters] == ["q", "k", "v", "beta", "scale"]


def test_the_function_of_another_operator_is_reached_alike() -> None:
    adapter = kernel(op="merge_state")(nothing)
    assert adapter.__wrapped__ is nothing and adapter.__name__ == "nothing"
