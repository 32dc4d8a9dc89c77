"""The proven bound holds for every conforming kernel, however it rounds, and for no wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, seed, settings

from kdaverify.adapters import find
from kdaverify.budgets import scalar_decay
from kdaverify.budgets.ceiling import Ceiling, Ceilings
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.declared import declared_contract
from kdaverify.budgets.emulate import RESIDUAL, Emulator
from kdaverify.budgets.ensemble import emulate, ensemble
from kdaverify.budgets.factored import FACTORED
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.parts import Outputs
from kdaverify.budgets.standard import Reference, standard
from kdaverify.budgets.statistics import ErrorStatistics
from kdaverify.checks.compare import compare
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, problems
from kdaverify.problems.profiles import settings_for
from oracles.chunk import Chunk
from oracles.enclosure import CertifiedOutputs
from oracles.gate_activation import FORMS, Form, GateActivation
from oracles.inputs import Inputs
from oracles.running_error import enclosed
from oracles.tensors import OUTPUTS

PROBLEM = Problem(
    B=1,
    T=100,
    H=1,
    HV=2,
    K=32,
    V=16,
    dtype="bf16",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=5,
)
CONTRACTS = (
    ("chunk64-bf16", "bf16"),
    ("chunk64-fp16", "fp16"),
    ("chunk64-fp32", "fp32"),
    ("chunk64-tf32", "fp32"),
    ("recurrent-fp32", "bf16"),
    ("recurrent-fp32", "fp32"),
    ("recurrent-fp64", "fp64"),
    ("chunk64-fp64", "fp64"),
    ("chunk64-bf16-tf32solve", "bf16"),
    ("chunk64-bf16-anchored-tf32solve", "bf16"),
    ("chunk64-bf16-fp32solve-bf16carry-softplus", "bf16"),
    ("chunk64-bf16[scale:in-q]", "bf16"),
    ("recurrent-bf16[scale:in-q]", "bf16"),
    ("chunk16-bf16-fp32factors", "bf16"),
    ("chunk16-bf16-bf16factors-bf16carry", "bf16"),
    ("chunk16-bf16-bf16factors-bf16carry[sub_block:8;scale:rounded;rounded_beta:bf16]", "bf16"),
)


def used(run: Outputs, truth: CertifiedOutputs, ceilings: Ceilings) -> dict[str, float]:
    """The largest error of every output, as a fraction of its ceiling."""
    fmt = ceilings.contract.accumulate
    errors = {
        name: exact.error(y) for (name, exact), y in zip(truth.named().items(), run, strict=True)
    }
    return {
        name: Ceiling(ceilings, name).used(e, truth.named()[name], fmt).ratio
        for name, e in errors.items()
        if e.numel()
    }


@pytest.mark.parametrize(("name", "dtype"), CONTRACTS)
def test_it_contains_every_member_and_every_draw(name: str, dtype: str) -> None:
    contract, io = contract_from_name(name), FORMATS[dtype]

    @seed(1)
    @settings(settings_for("smoke"), max_examples=2)
    @given(problems(dtype=dtype, max_cost=2**14))
    def contained(problem: Problem) -> None:
        inputs = problem.inputs()
        truth, ceilings, emulation = (
            enclosed(inputs),
            Ceilings(inputs, contract, io),
            emulate(inputs, contract, io),
        )
        for run in (*emulation.rounded.values(), *emulation.drawn):
            assert max(used(run, truth, ceilings).values(), default=0.0) <= 1

    contained()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "dtype"), [("recurrent-fp32", "fp32"), ("chunk64-fp32", "bf16")])
def test_it_contains_gates_that_a_kernel_activates_itself(
    form: Form, name: str, dtype: str
) -> None:
    activation = GateActivation(form)
    contract, io = contract_from_name(f"{name}[gate:{activation.name}]"), FORMATS[dtype]
    for gate in ("log-sigmoid", "slow", "strong-then-weak"):
        inputs = PROBLEM.replace(gate=gate, dtype=dtype, gate_range=activation.reach).inputs()
        emulation, ceilings = emulate(inputs, contract, io), Ceilings(inputs, contract, io)
        for run in (*emulation.rounded.values(), *emulation.drawn):
            assert max(used(run, enclosed(inputs), ceilings).values()) <= 1


@pytest.mark.parametrize("name", ["chunk64-bf16", "recurrent-fp32"])
def test_it_contains_runs_that_are_cut_and_resumed(name: str) -> None:
    inputs, contract, io = PROBLEM.inputs(), contract_from_name(name), FORMATS["bf16"]
    emulation = emulate(inputs, contract, io, cuts=(17, 90))
    ceilings = Ceilings(inputs, contract, io, cuts=(17, 90))
    for run in (*emulation.rounded.values(), *emulation.drawn):
        assert max(used(run, enclosed(inputs), ceilings).values()) <= 1


def test_it_contains_a_conforming_kernel_that_is_in_no_ensemble() -> None:
    contract = replace(contract_from_name("chunk64-bf16"), chunk_size=40)
    inputs = PROBLEM.inputs()
    run = Emulator("held out", contract, FORMATS["bf16"], stages=RESIDUAL).run(inputs)
    assert (
        max(used(run, enclosed(inputs), Ceilings(inputs, contract, FORMATS["bf16"])).values()) <= 1
    )


def held(contract: Contract, io: Format, inputs: Inputs) -> Reference:
    return standard(inputs, contract, io, emulate(inputs, contract, io))


@pytest.fixture(scope="module")
def plain() -> tuple[Inputs, Reference, torch.Tensor]:
    contract, io = contract_from_name("chunk64-bf16"), FORMATS["bf16"]
    inputs = PROBLEM.inputs()
    return inputs, held(contract, io, inputs), ensemble(contract, io)[0].run(inputs)[0]


def test_an_element_above_it_fails_though_every_statistic_passes(
    plain: tuple[Inputs, Reference, torch.Tensor],
) -> None:
    """The bound does not depend on the ensemble:
    it holds where an ensemble errs a thousand times too much.
    """
    inputs, held, o = plain
    own, exact = held.budgets["o"], held.exact("o").high
    assert isinstance(own.ceiling, Ceiling)
    generous = ErrorStatistics(*(1000 * x for x in vars(own.allowed).values()))
    bound = own.ceiling.of.every["o"].flatten()
    at = int(bound.argmax())
    spoilt = o.flatten().clone()
    spoilt[at] = exact.flatten()[at] + 2 * bound[at]
    found = compare(
        "o", spoilt.view_as(o), replace(held, budgets={"o": replace(own, allowed=generous)}), inputs
    )
    assert (found.status, found.statistic, found.grade) == (Status.FAIL, "ceiling", "F")
    assert 1.9 < found.ratio < 2.1
    assert f"proven error bound {float(bound[at]):.3g} at this element (dominant term: " in str(
        found
    )


def test_a_failure_of_another_statistic_names_the_bound(
    plain: tuple[Inputs, Reference, torch.Tensor],
) -> None:
    inputs, held, o = plain
    spoilt = o.clone()
    spoilt[0, 70, 1] = 0
    found = compare("o", spoilt, held, inputs)
    assert found.statistic == "row"
    assert found.ratios["ceiling"] > 1
    assert found.ceiling.startswith("proven error bound ")


@pytest.mark.parametrize("factor", [0.5, 9.0])
def test_no_rounding_is_named_where_none_is_the_cause(
    plain: tuple[Inputs, Reference, torch.Tensor], factor: float
) -> None:
    _, held, _ = plain
    ceiling = held.budgets["o"].ceiling
    assert isinstance(ceiling, Ceiling)
    bound = float(ceiling.of.every["o"].flatten()[7])
    assert ceiling.explain(7, factor * bound) == f"proven error bound {bound:.3g} at this element"


def test_wrong_kernels_are_above_it(plain: tuple[Inputs, Reference, torch.Tensor]) -> None:
    inputs, held, o = plain
    wrong_gate = replace(inputs, g=inputs.g * 1.5)
    outputs = (
        -o,
        o.flip(-1),
        torch.zeros_like(o),
        1.5 * o,
        ensemble(held_contract(held), FORMATS["bf16"])[0].run(wrong_gate)[0],
    )
    for wrong in outputs:
        assert compare("o", wrong, held, inputs).ratios["ceiling"] > 1


def held_contract(held: Reference) -> Contract:
    ceiling = held.budgets["o"].ceiling
    assert isinstance(ceiling, Ceiling)
    return ceiling.of.contract


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
def test_eager_is_below_it(dtype: str) -> None:
    problem = PROBLEM.replace(dtype=dtype, gate="mixed", key="coherent-0.6")
    inputs, eager = problem.inputs(), find("eager")
    output, contract = eager.forward(inputs), eager.contract(dtype)
    standard = held(contract, FORMATS[dtype], inputs)
    for name, y in zip(OUTPUTS, (output.o, output.final_state), strict=True):
        assert y is not None
        assert compare(name, y, standard, inputs).ratios["ceiling"] <= 1


def test_where_underflow_takes_what_the_norms_are_made_of_it_still_holds() -> None:
    """Values of 1e-188: their squares are 0 in float64."""
    problem = PROBLEM.replace(
        dtype="fp64", gate="bound-100", value="zero", state="asymmetric", T=9, K=8
    )
    inputs, contract, io = problem.inputs(), contract_from_name("recurrent-fp64"), FORMATS["fp64"]
    truth = held(contract, io, inputs).truth
    assert isinstance(truth, CertifiedOutputs)
    for run in emulate(inputs, contract, io).drawn:
        assert max(used(run, truth, Ceilings(inputs, contract, io)).values()) <= 1


TINY_WRITES = Problem(
    B=1,
    T=64,
    H=1,
    HV=1,
    K=16,
    V=32,
    dtype="fp16",
    gates="head",
    gate="log-sigmoid",
    key="one-hot",
    beta="uniform",
    state="zero",
    value="tiny",
    seed=2,
)
"""A key channel of the state is a sum of few v_new, decayed: subnormal numbers of fp16."""


def flushed_writes(c: Chunk) -> None:
    """What is decayed on its way into the state has its subnormal numbers of fp16 flushed."""
    smallest, store = FORMATS["fp16"].min_normal, c.arithmetic.store

    def flushing(name: str, tensor: torch.Tensor) -> torch.Tensor:
        vanishes = (tensor.abs() < smallest) & (name == "v_decayed")
        return store(name, tensor).masked_fill(vanishes, 0.0)

    c.arithmetic = replace(c.arithmetic, store=flushing)
    scalar_decay.FORWARD.state(c)


def test_it_contains_writes_that_are_subnormal_once_decayed() -> None:
    """Conforming kernels were rejected at 1.57 times their bound; one that flushes is not one."""
    inputs, contract, io = (
        TINY_WRITES.inputs(),
        declared_contract("gdn64", "fp16"),
        FORMATS["fp16"],
    )
    truth, ceilings = enclosed(inputs), Ceilings(inputs, contract, io)
    emulation = emulate(inputs, contract, io)
    for run in (*emulation.rounded.values(), *emulation.drawn):
        assert max(used(run, truth, ceilings).values()) <= 1
    plain = ensemble(contract, io)[0]
    faulty = replace(plain, stages=replace(plain.stages, state=flushed_writes))
    assert used(faulty.run(inputs), truth, ceilings)["final_state"] > 10


SUBNORMAL_FACTORS = Problem(
    B=1, T=32, H=1, HV=1, K=64, V=64, dtype="bf16", seed=15, gate_range=(-5.0, None),
    gate="bound-20", key="tiny", beta="near-one", state="random", value="normal",
)  # fmt: skip


def of_the_smallest_stored(c: Chunk) -> None:
    """Factors of which nothing below 2^-100 is kept."""
    store = c.arithmetic.store

    def coarse(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return store(name, tensor.masked_fill(tensor.abs() < 2.0**-100, 0.0))

    c.arithmetic = replace(c.arithmetic, store=coarse)
    FACTORED.scores(c)


def test_it_contains_products_with_factors_that_are_subnormal() -> None:
    """q exp(G) near 2^-131, which k exp(-G) brings back: a right kernel was rejected at 14 times
    its bound.
    """
    inputs, contract, io = (
        SUBNORMAL_FACTORS.inputs(),
        contract_from_name("chunk16-bf16-fp32factors"),
        FORMATS["bf16"],
    )
    truth, ceilings = enclosed(inputs), Ceilings(inputs, contract, io)
    for run in emulate(inputs, contract, io).rounded.values():
        assert max(used(run, truth, ceilings).values()) <= 1
    factored = next(one for one in ensemble(contract, io) if one.name == "factored decays")
    faulty = replace(factored, stages=replace(FACTORED, scores=of_the_smallest_stored))
    assert used(faulty.run(inputs), truth, ceilings)["o"] > 1
