"""A server keeps converted tensors by their address: those that are edited, or lie where others
lay, are stale. No gradients are enabled there, so the rules of recorded calls do not show it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from tests.operators.plain_ports import PORTS

RULES = {"edited-values", "edited-values-no-grad"}


def kept_by_address(function: Callable[..., Any], *, at: int) -> Callable[..., Any]:
    """The function with a clone of one tensor, made when its memory was first given."""
    kept = dict[Any, Tensor]()

    @wraps(function)
    def port(*given: Any, **options: Any) -> Any:
        own = given[at]
        if own is None or torch.is_grad_enabled():
            return function(*given, **options)
        key = (own.data_ptr(), own.shape, own.stride(), own.dtype)
        stale = kept.setdefault(key, own.clone())
        return function(*given[:at], stale, *given[at + 1 :], **options)

    return port


def rejecting(adapter: Adapter) -> set[str]:
    return {
        tested.rule.name
        for tested in questions(adapter, "smoke")
        if tested.rule.name in RULES
        and any(
            outcome.status is not Status.PASS
            for outcome in check("calls", adapter, tested.problem, tested.detail)
        )
    }


@pytest.mark.parametrize(
    ("op", "at"),
    [("short_conv", 1), ("gated_rms_norm", 2), ("attention", 1), ("mla_decode", 1)],
)
def test_tensors_kept_without_gradients_are_found_by_the_rule_that_calls_so(
    op: str, at: int
) -> None:
    assert op in PORTS
    stale = kv.kernel(op=op, dtypes="bf16")(kept_by_address(PORTS[op], at=at))
    assert rejecting(stale) == {"edited-values-no-grad"}


@pytest.mark.parametrize("op", PORTS)
def test_a_right_port_keeps_both_rules(op: str) -> None:
    assert rejecting(kv.kernel(op=op, dtypes="bf16")(PORTS[op])) == set()
