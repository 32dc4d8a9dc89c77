"""Export, run and score of any operator: a pipeline, functions with states, merges."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.declared_function import function_in_words
from kdaverify.adapters.exchange.declared import adapter_of
from kdaverify.adapters.exchange.manifest import Manifest
from kdaverify.adapters.exchange.recorder import Recorder, prepare
from kdaverify.checks.status import Status
from kdaverify.operator import CallOperator
from kdaverify.verdicts.verdict import Verdict
from tests.adapters.exchange.conftest import Question, answered, judged, scored
from tests.operators import toy

PANEL = 4
"""Fixed problems of each operator, beside all its laws."""


def toy_port(a: Any, b: Any, bias: Any = None, *, alpha: float) -> Any:
    return toy.kernel.forward(toy.ToyCall(a, b, bias, alpha))["y"]


def conv_port(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    activation: str | None = None,
) -> Any:
    """Keeps W - 1 columns as its state, one sequence after the other."""
    (B, T, D), W = x.shape, weight.shape[1]
    ends = [(b, 0, T) for b in range(B)]
    if cu_seqlens is not None:
        offsets = cu_seqlens.tolist()
        ends = [(0, *pair) for pair in pairwise(offsets)]
    y, states = torch.zeros_like(x), list[Any]()
    for n, (b, first, last) in enumerate(ends):
        before = x.new_zeros(D, W - 1) if initial_state is None else initial_state[n]
        rows = torch.cat([before.T, x[b, first:last]]).double()
        columns = [rows[i : i + last - first] * weight[:, i].double() for i in range(W)]
        z = torch.stack(columns).sum(0)
        z = z if bias is None else z + bias.double()
        z = torch.nn.functional.silu(z) if activation == "silu" else z
        y[b, first:last] = z.to(x.dtype)
        states.append(rows[len(rows) - (W - 1) :].T.to(x.dtype))
    return y, torch.stack(states)


def conv_without_state(*tensors: Any, **named: Any) -> Any:
    return conv_port(*tensors, **{**named, "initial_state": None})


def merge_port(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> Any:
    lse = torch.logaddexp(lse_a, lse_b)
    weights = (torch.exp(each - lse).nan_to_num(0.0).mT[..., None] for each in (lse_a, lse_b))
    parts = [
        torch.where(weight == 0, 0.0, weight * o.float())
        for weight, o in zip(weights, (o_a, o_b), strict=True)
    ]
    return torch.stack(parts).sum(0).to(o_a.dtype), lse


PORTS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "toy": (toy_port, ()),
    "short_conv": (conv_port, ("conv_state=W-1", "packing=cu_seqlens")),
    "merge_state": (merge_port, ()),
}


def exported(op: str, folder: Path) -> tuple[Path, list[Question]]:
    """The panel and some laws of an operator in bf16, written down."""
    declaration = function_in_words(op, {"name": "port", "dtypes": "bf16"}, PORTS[op][1], ())
    draft = Manifest.draft(declaration, profile="smoke", seed=0)
    prepare(folder, draft)
    recorder = Recorder(folder, draft)
    operator = recorder.operator
    assert isinstance(operator, CallOperator)
    panel = [problem for _, problem in operator.panel(recorder, "smoke")][:PANEL]
    questions: list[Question] = [("panel", problem, {}) for problem in panel]
    questions += [("laws", problem, {"law": law}) for law in operator.laws() for problem in panel]
    found = judged(recorder, questions)
    assert {verdict.status for verdict in found} <= {Status.SKIP}
    recorder.finish()
    return folder, questions


def figures(verdicts: list[Verdict]) -> list[tuple[Any, ...]]:
    return [(v.case, v.output, v.status, v.value, v.ratio) for v in verdicts]


@pytest.mark.parametrize("op", PORTS)
def test_a_right_kernel_gets_the_verdicts_it_gets_in_this_process(op: str, tmp_path: Path) -> None:
    folder, questions = exported(op, tmp_path / "cases")
    function, options = PORTS[op]
    declaration = function_in_words(op, {"name": "port", "dtypes": "bf16"}, options, ())
    here = adapter_of(declaration, lambda arguments: function(**arguments))
    found = scored(answered(folder, function), questions)
    assert figures(found) == figures(judged(here, questions))
    assert not any(verdict.status.rejects for verdict in found)
    assert sum(verdict.proves() for verdict in found) >= len(questions) / 3


def test_a_wrong_kernel_is_rejected(tmp_path: Path) -> None:
    folder, questions = exported("short_conv", tmp_path / "cases")
    found = scored(answered(folder, conv_without_state), questions)
    assert any(verdict.status is Status.FAIL for verdict in found)


def test_calls_name_the_earlier_outputs_that_they_take(tmp_path: Path) -> None:
    folder, _ = exported("short_conv", tmp_path / "cases")
    cases = json.loads((folder / "manifest.json").read_text())["cases"]
    cut = [case["calls"] for case in cases if "split" in case["asked"] and len(case["calls"]) > 2]
    assert [calls[-1]["links"] for calls in cut] == [
        {"initial_state": [calls[-2]["file"], "final_state"]} for calls in cut
    ]
    assert cut


@pytest.mark.parametrize(
    ("op", "words", "own", "without", "complaint"),
    [
        ("layer", {}, (), (), "its cache lives between calls"),
        ("short_conv", {"layout": "bhtd"}, (), (), "layout: an option of KDA kernels"),
        ("short_conv", {}, ("conv_state",), (), "option: wanted NAME=VALUE, got 'conv_state'"),
        ("short_conv", {}, (), ("foo",), "op='short_conv' has no parameter foo; it has x, weight"),
        ("nope", {}, (), (), "op: wanted one of kda"),
    ],
)
def test_a_wrong_word_is_named(
    op: str, words: dict[str, str], own: tuple[str, ...], without: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(AdapterError, match=complaint):
        function_in_words(op, {"name": "x", **words}, own, without)
