"""Kernels that `supports` restricts to some sizes are tested on those, by every rule of calls.

Of a gated norm of V % 64 == 0 none of 65 rules was, of a decode of DeepSeek's widths no problem at
all: the decision was "not enough evidence".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls.questions import questions
from kdaverify.checks.status import Status
from kdaverify.operators.kda.axes import AXES
from tests.adapters.torch_kda import kda
from tests.checks.ruled import statuses
from tests.operators import plain_ports

Takes = Callable[[Any], bool]
RULES: Final = ("repeated", "unwritten", "view-sliced")
RESTRICTED: Final[dict[str, tuple[str, Callable[..., Any], Takes]]] = {
    "norm": ("gated_rms_norm", plain_ports.gated_rms_norm, lambda p: p.V % 64 == 0),
    "norm, one entry": ("gated_rms_norm", plain_ports.gated_rms_norm,
                        lambda p: p.V % 64 == 0 and p.B == 1),
    "convolution": ("short_conv", plain_ports.short_conv, lambda p: p.D % 8 == 0 and p.B == 1),
    "attention, width": ("attention", plain_ports.attention, lambda p: p.d_k == 64 == p.d_v),
    "attention, heads": ("attention", plain_ports.attention, lambda p: p.h_kv == p.H),
    "attention, all three": ("attention", plain_ports.attention,
                             lambda p: p.h_kv == p.H and p.d_k == 128 == p.d_v and p.B == 1),
    "decode": ("mla_decode", plain_ports.mla_decode,
               lambda p: (p.d_k, p.d_v, p.page) == (576, 512, 64)),
    "merge": ("merge_state", plain_ports.merge_state, lambda p: p.d_v % 64 == 0),
    "KDA, K unlike V": ("kda", kda, lambda p: (p.K, p.V) == (64, 128)),
    "KDA, heads": ("kda", kda, lambda p: p.HV % 8 == 0),
    "KDA, ungrouped": ("kda", kda, lambda p: p.H == p.HV and p.B == 1),
}  # fmt: skip


def port(op: str, function: Callable[..., Any], takes: Takes = lambda _: True) -> Adapter:
    def refused(problem: Any) -> str | None:
        return None if takes(problem) else "other sizes"

    return kv.kernel(op=op, dtypes=("fp32",), supports=refused)(function)


def rules(adapter: Adapter) -> set[str]:
    tested = [one for one in questions(adapter, "smoke") if adapter.supports(one.problem) is None]
    return {one.rule.name for one in tested}


@pytest.mark.parametrize("name", RESTRICTED)
def test_nearly_every_rule_is_tested(name: str) -> None:
    op, function, takes = RESTRICTED[name]
    assert len(rules(port(op, function)) - rules(port(op, function, takes))) <= 3


@pytest.mark.parametrize("name", RESTRICTED)
def test_right_ports_pass(name: str) -> None:
    for rule, found in statuses(port(*RESTRICTED[name]), RULES).items():
        assert found and found <= {Status.PASS, Status.SKIP}, rule


def test_a_norm_of_some_widths_that_edits_its_input_is_found() -> None:
    def edits(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str) -> Tensor:
        y = plain_ports.gated_rms_norm(x, gate, weight, eps=eps, activation=activation)
        gate.detach()[..., 0] += 1
        return y

    wrong = port("gated_rms_norm", edits, lambda p: p.V % 64 == 0)
    assert Status.MUTATED_INPUT in statuses(wrong, ("repeated",))["repeated"]


@pytest.mark.parametrize("option", ["widths", "supports"])
def test_packs_of_regular_lengths_are_tested_at_any_width(option: str) -> None:
    """The panel had them for kernels that take the widths 3, 4 and 8, and for no other."""
    options: dict[str, Any] = {"widths": (128,), "supports": _of_one_width}
    declared: Any = kv.kernel(**{option: options[option]}, packing="cu_seqlens")(_packed)
    tested = {name.partition("-")[2] for name, _ in AXES["named"](declared, "smoke")}
    assert tested >= {"equal-lengths", "one-token-each", "past-256-sequences", "eight-tokens"}


def _of_one_width(problem: Any) -> str | None:
    return None if problem.K == 128 == problem.V else "widths of 128"


def _packed(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, initial_state: Any, cu_seqlens: Any
) -> Any:
    raise NotImplementedError
