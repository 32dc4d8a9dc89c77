"""Substitution of any kind conforms in its format on the hardest keys;
ways through powers of A are not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import flint
import pytest
import torch

from benchmarks.substitutions import substitutions
from kdaverify.adapters.stages import StageArguments, chain, formats_of
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.solves import SOLVES, SUBSTITUTIONS
from kdaverify.checks.closures import CLOSURES, closures
from kdaverify.checks.forward import forward
from kdaverify.problems import Problem
from kdaverify.problems.axes import Dtype
from oracles.stages import run_stages
from tests.checks.solving import Solving
from tests.checks.staged import first_wrong

# What is declared, and the format of the products; measured by benchmarks.forward_substitution:
# every substitution uses at most 0.8x tolerance, Neumann series of 16-bit products on coherent
# keys 1e5 and more of it, of fp32 products 3e4 and more.
DECLARED: list[tuple[str, str, Dtype]] = [
    ("chunk64-fp32", "fp32", "fp32"),
    ("chunk64-tf32", "tf32", "fp32"),
    ("chunk64-bf16-tf32solve", "tf32", "bf16"),
    ("chunk64-bf16", "bf16", "bf16"),
    ("chunk64-fp16", "fp16", "fp16"),
]
HARD = [("coherent-0.9", "one"), ("identical", "uniform")]


def problem(dtype: Dtype, key: str, gate: str, beta: str, **changes: Any) -> Problem:
    sizes: dict[str, Any] = {
        "B": 1,
        "T": 64,
        "H": 1,
        "HV": 1,
        "K": 16,
        "V": 4,
        "state": "absent",
        "value": "normal",
        "seed": 1,
    }
    tested: dict[str, Any] = {
        **sizes,
        "dtype": dtype,
        "key": key,
        "gate": gate,
        "beta": beta,
        **changes,
    }
    return Problem(**tested)


@pytest.mark.parametrize(("contract", "products", "dtype"), DECLARED)
def test_substitutions_are_conforming_and_powers_are_not_on_coherent_keys(
    contract: str, products: str, dtype: Dtype
) -> None:
    for (key, beta), gate in itertools.product(HARD, ("zero", "slow")):
        found = substitutions(
            problem(dtype, key, gate, beta), contract_from_name(contract), FORMATS[products]
        )
        assert [row.way for row in found] == list(SOLVES)
        for row in found:
            assert row.conforming == (row.way in SUBSTITUTIONS), (
                f"{row.way}, {key}, {gate}: {row.comparison}, residual {row.residual}"
            )


@pytest.mark.parametrize("gate", ["zero", "log-sigmoid", "bound-100"])
def test_substitutions_are_conforming_on_random_keys(gate: str) -> None:
    for contract, products, dtype in DECLARED:
        tested = problem(dtype, "random", gate, "uniform")
        assert all(
            row.conforming
            for row in substitutions(
                tested, contract_from_name(contract), FORMATS[products], SUBSTITUTIONS
            )
        )


def test_the_exact_inverse_is_right_on_the_hardest_keys() -> None:
    written = run_stages(
        problem("fp32", "coherent-0.9", "zero", "one").inputs(),
        {},
        covers=("cumsum", "scores", "solve"),
    )
    Akk, R = (written[name][0, :, 0].tolist() for name in ("Akk", "R"))
    precision, flint.ctx.prec = flint.ctx.prec, 300
    try:
        exact = (
            flint.arb_mat(Akk)
            + flint.arb_mat(64, 64, [float(i == j) for i in range(64) for j in range(64)])
        ).inv()
        wrong = max(
            abs(float(exact[i, j].mid()) - R[i][j]) / abs(float(exact[i, j].mid()))
            for i in range(64)
            for j in range(i)
        )
    finally:
        flint.ctx.prec = precision
    assert wrong < 2.0**-30  # 1 / 64 of what fp32 rounds off


def test_a_way_is_an_implementation_like_any_other() -> None:
    tested = problem("bf16", "coherent-0.9", "slow", "one", T=70)
    right, wrong = (Solving(way, "bf16", "chunk64-bf16") for way in ("blocks of 16", "Neumann"))
    assert first_wrong(right, tested) is None and first_wrong(wrong, tested) == "solve"
    assert any(outcome.status.rejects for outcome in forward(wrong, tested))
    assert "Neumann, products in bf16" in wrong.proof()


Close = Callable[[dict[str, torch.Tensor]], dict[str, float]]


def written_by(adapter: Solving, tested: Problem) -> tuple[dict[str, torch.Tensor], Close]:
    """The tensors of an implementation, and its closures with some of them changed."""
    contract = adapter.contract(tested.dtype)
    formats = formats_of(contract, FORMATS[tested.dtype])
    inputs = tested.inputs()
    tensors = chain(
        adapter.stages(tested.dtype), StageArguments(inputs, {}, contract.chunk_size, formats)
    )

    def close(changed: dict[str, torch.Tensor]) -> dict[str, float]:
        return closures({**tensors, **changed}, inputs, contract, formats)

    return tensors, close


@pytest.mark.parametrize(("contract", "products", "dtype"), DECLARED)
@pytest.mark.parametrize("gate", ["log-sigmoid", "zero", "mixed"])
def test_the_equations_between_a_conforming_kernel_s_tensors_hold(
    gate: str, contract: str, products: str, dtype: Dtype
) -> None:
    adapter = Solving("blocks of 16", products, contract)
    adapter.dtypes = (dtype,)
    tested = problem(
        dtype, "coherent-0.9", gate, "uniform", T=71, lengths=(5, 66), state="large", HV=2
    )
    _, close = written_by(adapter, tested)
    assert list(close({})) == list(CLOSURES)
    assert max(close({}).values()) <= 1


@pytest.mark.parametrize("name", CLOSURES)
def test_an_equation_that_does_not_hold_is_seen_and_the_others_still_hold(name: str) -> None:
    tensors, close = written_by(
        Solving("rows", "fp32", "chunk64-bf16"),
        problem("bf16", "random", "mild", "uniform", T=70, state="random"),
    )
    wrong = {
        "R (I + Akk) = I": {"R": tensors["R"].transpose(-1, -2).contiguous()},
        "v_new = u - w h": {"v_new": tensors["u"]},
        "o = scale qg h + Aqk v_new": {"o": tensors["o"] * 1.05},
    }
    assert {other for other, ratio in close(wrong[name]).items() if ratio > 1} >= {name}
    only_o = close(wrong["o = scale qg h + Aqk v_new"])
    assert [ratio > 1 for ratio in only_o.values()] == [False, False, True]


def test_what_is_not_finite_breaks_its_equation() -> None:
    tensors, close = written_by(
        Solving("rows", "fp32", "chunk64-bf16"), problem("bf16", "random", "mild", "uniform", T=20)
    )
    assert (
        close({"o": tensors["o"].masked_fill(tensors["o"] == tensors["o"].max(), torch.nan)})[
            "o = scale qg h + Aqk v_new"
        ]
        == torch.inf
    )
