"""Errors of an ensemble are found again for the same question only,
and give the same tolerance in every bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.budgets import ensemble_cache
from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.budget import EnsembleErrors, Runs
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import Emulation, emulate
from kdaverify.budgets.ensemble_cache import EnsembleCache
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import Reference, standard
from kdaverify.budgets.statistics import ErrorStatistics
from kdaverify.checks.forward import forward
from kdaverify.operators.kda import operator
from kdaverify.problems import Problem, cotangents
from oracles.file_cache import SUFFIX

PROBLEM = Problem(
    B=1,
    T=20,
    H=1,
    HV=1,
    K=8,
    V=8,
    dtype="bf16",
    seed=5,
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
)
CONTRACT, BF16 = contract_from_name("chunk64-bf16"), FORMATS["bf16"]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path))
    return tmp_path


def counted() -> tuple[Callable[[], Emulation], list[int]]:
    calls: list[int] = []

    def run() -> Emulation:
        calls.append(1)
        return emulate(PROBLEM.inputs(), CONTRACT, BF16)

    return run, calls


def same(a: Reference, b: Reference) -> bool:
    pairs = [(a.budgets[name].allowed, b.budgets[name].allowed) for name in a.budgets]
    return all(
        torch.equal(x.rows, y.rows)
        and (x.rms, x.largest, x.median, x.tail, x.bias)
        == (y.rms, y.largest, y.median, y.tail, y.bias)
        for x, y in pairs
    )


def test_a_second_judgement_emulates_nothing_and_allows_the_same() -> None:
    run, calls = counted()
    inputs = PROBLEM.inputs()
    first, again = (standard(inputs, CONTRACT, BF16, run) for _ in range(2))
    assert len(calls) == 1
    assert same(first, again)
    assert same(first, standard(inputs, CONTRACT, BF16, emulate(inputs, CONTRACT, BF16)))


def test_gradients_are_kept_for_their_own_cotangents() -> None:
    inputs, calls = PROBLEM.inputs(), list[str]()

    def judge(of: str) -> Reference:
        given = cotangents(PROBLEM, of, 0)

        def run() -> Any:
            calls.append(of)
            return emulate_gradients(inputs, given, CONTRACT, BF16)

        return gradient_standard(inputs, given, CONTRACT, BF16, run)

    assert same(judge("o"), judge("o"))
    judge("both")
    assert calls == ["o", "both"]


def test_another_question_is_not_answered() -> None:
    inputs, errors = PROBLEM.inputs(), dict[str, EnsembleErrors]()
    tested = [
        EnsembleCache(inputs, CONTRACT, BF16),
        EnsembleCache(replace(inputs, scale=0.5), CONTRACT, BF16),
        EnsembleCache(inputs, replace(CONTRACT, chunk_size=32), BF16),
        EnsembleCache(inputs, CONTRACT, FORMATS["fp32"]),
        EnsembleCache(inputs, CONTRACT, BF16, cuts=(7,)),
        EnsembleCache(inputs, CONTRACT, BF16, others=(inputs.v, None)),
    ]
    calls: list[str] = []

    def compute() -> dict[str, EnsembleErrors]:
        calls.append("computed")
        return errors

    for question in (*tested, *tested):
        question.of("float64", compute)
    tested[0].of("balls", compute)
    assert len(calls) == len(tested) + 1


def test_other_source_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = counted()
    standard(PROBLEM.inputs(), CONTRACT, BF16, run)
    monkeypatch.setattr(ensemble_cache, "source", lambda: "other")
    standard(PROBLEM.inputs(), CONTRACT, BF16, run)
    assert len(calls) == 2


def test_a_damaged_file_is_computed_again(folder: Path) -> None:
    run, calls = counted()
    first = standard(PROBLEM.inputs(), CONTRACT, BF16, run)
    (path,) = folder.glob("*" + SUFFIX)
    path.write_bytes(path.read_bytes()[:-1])
    assert same(first, standard(PROBLEM.inputs(), CONTRACT, BF16, run))
    assert len(calls) == 2


def test_the_second_verdict_on_a_problem_costs_no_emulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eager = find("eager")
    first = forward(eager, PROBLEM)

    def never(*_: object, **__: object) -> None:
        pytest.fail("the reference ensemble was run again")

    monkeypatch.setattr(operator, "emulate", never)
    assert forward(eager, PROBLEM) == first


def test_kept_errors_have_the_samples_of_kernels_of_another_form() -> None:
    """Without them a right kernel passed when its tolerance was made, and failed, for a bias at 2.2
    times it, whenever it was found again.
    """
    size = ErrorStatistics(1.0, 2.0, torch.ones(3), 0.5, 0.6)
    runs = [Runs((number, 2 * number), (number / 8,)) for number in (1.0, 2.0, 3.0)]
    made = EnsembleErrors(size, size, runs[0], runs[1], torch.ones(3), runs[2])
    kept = EnsembleCache(PROBLEM.inputs(), CONTRACT, BF16)
    kept.of("balls", lambda: {"o": made})
    found = kept.of("balls", dict[str, EnsembleErrors])["o"]
    assert [found.rounded, found.drawn, found.apart] == runs
