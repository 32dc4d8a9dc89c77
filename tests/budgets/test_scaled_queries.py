"""A kernel that stores q with the scale in it conforms
where its contract says so, there and back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

from kdaverify.adapters.handover import fold_scale
from kdaverify.budgets import scalar_decay
from kdaverify.budgets.backward import emulate_gradients, member_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import Reference, standard
from kdaverify.problems import Problem, cotangents

BF16 = FORMATS["bf16"]
PROBLEM = Problem(
    B=1, T=64, H=1, HV=1, K=32, V=16, dtype="bf16", seed=0,
    gate="log-sigmoid", key="random", beta="uniform", state="random", value="normal",
)  # fmt: skip


def used(held: Reference, name: str, output: Tensor) -> float:
    """The largest share of a limit."""
    truth, allowed = held.exact(name), held.budgets[name]
    return max(allowed.ratios(allowed.measure(truth.error(output), truth)).values())


@pytest.mark.parametrize("form", ["chunk64-bf16", "recurrent-bf16"])
def test_queries_stored_with_the_scale_in_them_are_conforming_where_that_is_declared(
    form: str,
) -> None:
    """With one token's memory alone left, o hangs on q k^T, whose terms cancel in some rows."""
    x = PROBLEM.replace(T=120, gate="huge", state="asymmetric", seed=7).inputs()
    free, declared = contract_from_name(form), contract_from_name(f"{form}[scale:in-q]")
    o, final = ensemble(free, BF16)[0].run(fold_scale(x))
    strict, conforming = (
        standard(x, contract, BF16, emulate(x, contract, BF16)) for contract in (free, declared)
    )
    assert used(conforming, "o", o) <= 1 < used(strict, "o", o)
    assert used(conforming, "final_state", final) <= 1


def test_and_so_are_their_gradients() -> None:
    x, given = PROBLEM.inputs(), cotangents(PROBLEM, "both")
    declared = contract_from_name("chunk64-bf16[scale:in-q]")
    folded = fold_scale(x)
    found = member_gradients(ensemble(contract_from_name("chunk64-bf16"), BF16)[0], folded, given)
    held = gradient_standard(x, given, declared, BF16, emulate_gradients(x, given, declared, BF16))
    for name, value in replace(found, dq=found.dq * x.factor).named().items():
        assert used(held, name, value) <= 1, name


IN_REGISTERS = "chunk32-bf16-fp32solve[decay:scalar;R:fp32;kb:fp32;vb:fp32;u:fp32]"
SCORES = PROBLEM.replace(T=257, K=33, V=64, gates="head", gate="zero", key="one-hot", seed=30)


def _scores(scale_first: bool) -> float:
    """The worst of o of a kernel whose scores are rounded with the scale in them, or whose q is."""
    x, contract = SCORES.inputs(), contract_from_name(IN_REGISTERS)
    plain = ensemble(contract, BF16)[0]
    early = replace(plain, stages=replace(plain.stages, output=scalar_decay.scaled_output))
    o, _ = plain.run(fold_scale(x)) if scale_first else early.run(x)
    return used(standard(x, contract, BF16, emulate(x, contract, BF16)), "o", o)


def test_scores_stored_with_the_scale_in_them_are_conforming_undeclared() -> None:
    """Equal keys make every score the scale, so o leans by its rounding."""
    assert _scores(scale_first=False) <= 1 < _scores(scale_first=True)
