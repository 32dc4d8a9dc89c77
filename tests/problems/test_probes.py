"""Probes are named, say what they expose, keep to what formats hold,
and are tested in every profile.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch

from kdaverify.problems import PROFILES, cost
from kdaverify.problems.probes import PROBES, probes
from oracles.recurrence import recurrence


def test_every_probe_says_what_it_is_and_which_faults_of_the_catalogue_it_exposes() -> None:
    for name, probe in PROBES.items():
        assert name == probe.name
        assert re.search(r"\([A-Z]{1,3}\d+(, [A-Z]{1,3}\d+)*\)$", probe.exposes), name
        assert probe.problem.dtype in probe.dtypes or probe.dtypes == ("fp64", "fp32", "fp16")
    assert len({(probe.problem.id, probe.cut, probe.exponent) for probe in PROBES.values()}) == len(
        PROBES
    )


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
def test_a_larger_profile_tests_all_that_a_smaller_one_tests(dtype: str) -> None:
    tested = [{probe.name for probe in probes(dtype, profile)} for profile in PROFILES]
    assert all(smaller <= larger for smaller, larger in pairwise(tested))
    assert all(probe.problem.dtype == dtype for probe in probes(dtype, "nightly"))
    assert sum(cost(probe.problem) for probe in probes(dtype, "smoke")) <= 0.5


def test_the_demanded_probes_are_there() -> None:
    problems = {name: probe.problem for name, probe in PROBES.items()}
    assert problems["long-memory-4096"].T == 4096
    assert {problems["empty-sequences"].spans[n][2] for n in (0, 2, -1)} == {0}
    assert {length for *_, length in problems["single-tokens"].spans} == {1}
    assert {15, 16, 17} < {length for *_, length in problems["sub-block-edges"].spans}
    assert problems["chunks-plus-one"].T % 64 == 1


def test_the_converged_residual_is_two_beside_4098() -> None:
    x = PROBES["converged-residual"].problem.inputs()
    recalled = x.k[0, 0, 0].double() @ x.state[0, 0].double()
    assert recalled[0] == 4098
    assert x.v[0, 0, 0, 0] == 4096
    moved = recurrence(x)[1] - x.state
    assert set(moved[0, 0, :2].abs().unique().tolist()) == {1.0, 0.5, 0.25, 0.125}


@pytest.mark.parametrize(
    "name",
    ["overwrite", "identical-tokens", "sub-block-edges", "chunks-plus-one", "converged-residual"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_exact_answers_are_exact_in_sixteen_bits(name: str, dtype: torch.dtype) -> None:
    o, final = recurrence(PROBES[name].problem.inputs())
    assert bool((final.float() == final).all())
    assert name == "converged-residual" or bool((o.to(dtype).double() == o).all())


def test_the_write_of_the_long_memory_fills_every_channel_alike() -> None:
    x = PROBES["long-memory"].problem.inputs()
    assert set(x.k.unique().tolist()) == {0.25}
    assert x.beta[0, :, 0].nonzero().flatten().tolist() == [63]
    assert float(x.g.exp().bfloat16().min()) == 1.0


def test_nine_bit_states_need_nine_bits() -> None:
    state = PROBES["nine-bit-state"].problem.inputs().state
    assert bool((state.half().float() == state).all())
    assert bool((state.bfloat16().float() != state).all())
