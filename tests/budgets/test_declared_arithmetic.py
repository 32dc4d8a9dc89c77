"""Every field of a contract moves or narrows its ensemble:
what is declared is what the emulated kernels do.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.emulate import Emulator, running_cumsum
from kdaverify.budgets.ensemble import Emulation, emulate, ensemble
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.solves import by_columns, by_rows
from kdaverify.budgets.standard import Reference, standard
from kdaverify.budgets.statistics import rms
from kdaverify.budgets.sums import one_by_one
from kdaverify.budgets.tensors import PIPELINES
from kdaverify.problems import Problem
from oracles.adjoint import adjoint
from oracles.arithmetic import Arithmetic
from oracles.chunk_backward import chunk_backward
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

FP32, BF16, FP16 = FORMATS["fp32"], FORMATS["bf16"], FORMATS["fp16"]
PROBLEM = Problem(
    B=1, T=64, H=1, HV=1, K=32, V=16, dtype="bf16", seed=0,
    gate="log-sigmoid", key="random", beta="uniform", state="random", value="normal",
)  # fmt: skip


@functools.cache
def inputs(gate: str = "log-sigmoid", T: int = 64) -> Inputs:
    return PROBLEM.replace(gate=gate, T=T).inputs()


@functools.cache
def emulated(name: str, gate: str = "log-sigmoid") -> Emulation:
    return emulate(inputs(gate), contract_from_name(name), BF16)


def errors(name: str, place: int = 0, gate: str = "log-sigmoid") -> dict[str, float]:
    """The relative rms error of o, or of S_T, of every member."""
    exact = recurrence(inputs(gate))[place]
    return {
        member: rms(run[place] - exact) / rms(exact)
        for member, run in emulated(name, gate).rounded.items()
    }


def drawn(name: str) -> float:
    exact = recurrence(inputs())[0]
    return (
        sum(rms(run[0] - exact) for run in emulated(name).drawn)
        / len(emulated(name).drawn)
        / rms(exact)
    )


def members(name: str, io: Format = BF16) -> dict[str, Emulator]:
    return {member.name: member for member in ensemble(contract_from_name(name), io)}


@functools.cache
def held(name: str) -> Reference:
    contract = contract_from_name(name)
    return standard(inputs(), contract, BF16, emulated(name))


def worst_ratio(name: str, output: tuple[Tensor, Tensor]) -> float:
    """By how much the outputs of a kernel fill the tolerance of a contract; above 1 is over."""
    found = zip(("o", "final_state"), output, strict=True)
    return max(max(_ratios(held(name), which, tensor).values()) for which, tensor in found)


def _ratios(known: Reference, output: str, tensor: Tensor) -> dict[str, float]:
    allowed, truth = known.budgets[output], known.exact(output)
    return allowed.ratios(allowed.measure(truth.error(tensor), truth))


def kernel(name: str, member: str = "library order") -> tuple[Tensor, Tensor]:
    return members(name)[member].run(inputs())


def test_a_tensor_stored_in_more_bits_moves_the_ensemble() -> None:
    plain, wide = (
        "chunk64-bf16",
        "chunk64-bf16[Aqk:fp32;h:fp32;qg:fp32;u:fp32;v_new:fp32;vb:fp32;w:fp32]",
    )
    assert max(errors(wide).values()) < max(errors(plain).values())
    assert drawn(wide) < 0.9 * drawn(plain)


def test_a_kernel_is_held_to_the_format_of_a_tensor_that_it_declares() -> None:
    rounding, keeping = "chunk64-bf16[dh:bf16;h:bf16]", "recurrent-fp32[p:fp32]"
    assert worst_ratio(rounding, kernel("chunk64-bf16")) <= 1
    short = "recurrent-fp32[p:bf16]"
    assert worst_ratio(keeping, kernel(short)) > 1
    assert worst_ratio(short, kernel(short)) <= 1


def test_a_tensor_of_the_backward_stored_in_fewer_bits_moves_its_ensemble() -> None:
    generator = torch.Generator().manual_seed(1)
    x = inputs()
    dy = Cotangents(
        *(torch.randn(like.shape, generator=generator).to(like.dtype) for like in (x.v, x.state))
    )
    exact = adjoint(x, dy).named()["dg"]

    def worst(name: str) -> float:
        found = emulate_gradients(x, dy, contract_from_name(name), FP32)
        return max(rms(run.named()["dg"] - exact) for run in found.rounded.values())

    assert worst("chunk64-fp32[dG_state:bf16]") > 5 * worst("chunk64-fp32")


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_the_named_tensors_are_those_that_the_pipelines_store(form: str) -> None:
    seen: list[str] = []

    def note(name: str, tensor: Tensor) -> Tensor:
        seen.append(name)
        return tensor

    x, arithmetic = inputs(T=20), Arithmetic(store=note)
    dy = Cotangents(torch.ones_like(x.v), torch.ones_like(x.state))
    if form == "chunk":
        chunk_backward(x, dy, chunk_size=16, arithmetic=arithmetic)
    else:
        adjoint(x, dy, arithmetic=arithmetic)
        recurrence(x, arithmetic=arithmetic)
    pipeline = PIPELINES[form]
    assert set(seen) == {
        name for stage in (*pipeline.forward, *pipeline.backward) for name in stage.every
    }


def test_what_some_kernels_store_is_among_the_named_tensors() -> None:
    seen: set[str] = set()

    class Noting(Emulator):
        def store(self, name: str, tensor: Tensor) -> Tensor:
            seen.add(name)
            return super().store(name, tensor)

    for name in ("-fp32factors[rounded_beta:bf16]", "[transition:formed]"):
        for member in ensemble(contract_from_name(f"chunk16-bf16{name}"), BF16):
            Noting(**vars(member)).run(inputs(T=20))
    some = {name for stage in PIPELINES["chunk"].forward for name in stage.some}
    assert some <= seen <= set(PIPELINES["chunk"].names)


def test_a_sub_block_says_which_scores_are_rounded() -> None:
    fine, coarse = "chunk64-bf16-tf32solve[sub_block:8]", "chunk64-bf16-tf32solve[sub_block:64]"
    assert errors(fine) != errors(coarse)
    unit = "matrix units"
    whole, parts = (members(name)[unit] for name in (coarse, fine))
    vector = members(coarse)["library order"]
    # One block is all diagonal: no score is an operand of a matrix unit.
    assert torch.equal(_scores(whole), _scores(vector))
    assert not torch.equal(_scores(parts), _scores(vector))


def test_a_sub_block_is_that_of_the_backward_too() -> None:
    x = inputs(T=32)
    dy = Cotangents(torch.ones_like(x.v), torch.ones_like(x.state))
    found = [
        emulate_gradients(
            x, dy, contract_from_name(f"chunk32-bf16-tf32solve[sub_block:{rows}]"), FP32
        ).rounded
        for rows in (8, 32)
    ]
    assert not torch.equal(*(runs["matrix units"].named()["dg"] for runs in found))


def _scores(member: Emulator) -> Tensor:
    """Akk as the member makes it, before it is stored."""
    from oracles.stages import run_stages

    wide = replace(member, contract=member.contract.storing(Akk=FP32))
    covers = ("cumsum", "scores")
    run = run_stages(
        inputs(),
        {},
        covers=covers,
        chunk_size=64,
        dtype=torch.float32,
        arithmetic=wide.arithmetic,
        stages=wide.stages,
    )
    return run["Akk"]


def test_an_anchor_leaves_one_way_of_the_diagonal_scores() -> None:
    free, middle = (
        "chunk64-bf16-anchored-tf32solve",
        "chunk64-bf16-anchored-tf32solve[anchor:middle]",
    )
    others = {name for name in members(free) if "other anchor" in name}
    assert others
    assert set(members(middle)) == set(members(free)) - others
    assert errors(middle)["matrix units"] == errors(free)["matrix units, other anchor"]


def test_sums_in_fewer_bits_move_the_ensemble() -> None:
    wide, narrow = "chunk64-bf16", "chunk64-bf16-fp32carry[accumulator:bf16]"
    assert max(errors(narrow).values()) > 2 * max(errors(wide).values())
    assert drawn(narrow) > 1.5 * drawn(wide)
    assert worst_ratio(wide, kernel(narrow)) > 1
    assert worst_ratio(narrow, kernel(narrow)) <= 1


def test_sums_in_more_bits_narrow_the_ensemble() -> None:
    wide = "recurrent-fp32-fp32carry[accumulator:fp64;u:fp64;p:fp64]"
    assert max(errors(wide, place=1).values()) < 0.7 * max(
        errors("recurrent-fp32", place=1).values()
    )


def test_units_that_never_flush_leave_subnormals_and_those_that_always_do_none() -> None:
    x = inputs()
    tiny = replace(x, q=x.q.float() * 2.0**-130, scale=1.0)

    def o(name: str, member: str) -> Tensor:
        return members(name, FP32)[member].run(tiny)[0]

    kept, gone = (
        o("recurrent-fp32[flush:never]", "library order"),
        o("recurrent-fp32[flush:always]", "library order, subnormals flushed"),
    )
    assert bool((kept.abs() > 0).any())
    assert not bool(gone.any())
    for name, flushes in (("never", {False}), ("always", {True}), ("free", {False, True})):
        contract = replace(contract_from_name("chunk64-bf16"), flush=name)
        assert {member.flushes for member in ensemble(contract, BF16)} == flushes


def test_underflow_may_take_less_where_nothing_flushes() -> None:
    never, free = (contract_from_name(f"chunk64-fp32{rest}") for rest in ("[flush:never]", ""))
    assert never.vanishing < 2.0**-20 * free.vanishing
    assert emulated_budget(never) < 2.0**-20 * emulated_budget(free)


def emulated_budget(contract: Contract) -> float:
    return float(
        standard(inputs(), contract, BF16, emulate(inputs(), contract, BF16)).budgets["o"].lost
    )


def test_operands_are_rounded_as_declared() -> None:
    free, nearest, cut = (
        f"chunk64-tf32{rest}"
        for rest in ("", "[operand_rounding:nearest]", "[operand_rounding:truncate]")
    )
    assert "matrix units that truncate" not in members(nearest)
    assert "matrix units" not in members(cut)
    assert {"matrix units", "matrix units that truncate"} <= set(members(free))
    assert max(errors(nearest, place=1).values()) < 0.8 * max(errors(cut, place=1).values())


def test_stores_that_cut_off_err_more() -> None:
    nearest, cut = "chunk64-bf16", "chunk64-bf16[storage_rounding:truncate]"
    assert max(errors(cut, place=1).values()) > 1.5 * max(errors(nearest, place=1).values())
    assert drawn(cut) > 1.4 * drawn(nearest)
    assert worst_ratio(nearest, kernel(cut)) > 1
    assert worst_ratio(cut, kernel(cut)) <= 1


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "tf32", "fp32"])
def test_cutting_off_never_enlarges(fmt: str) -> None:
    values = torch.randn(
        1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ) * 2.0 ** torch.arange(-8, 2).repeat(100)
    cut = FORMATS[fmt].truncate(values)
    assert bool((cut.abs() <= values.abs()).all())
    assert bool(((values - cut).abs() <= 2 * FORMATS[fmt].unit * values.abs()).all())
    assert torch.equal(FORMATS[fmt].round(cut), cut)


@pytest.mark.parametrize(
    "preset", ["recurrent-fp32", "chunk64-fp32", "chunk64-bf16", "chunk64-bf16-tf32solve"]
)
def test_sums_in_order_are_made_from_the_first_term_to_the_last(preset: str) -> None:
    declared = members(f"{preset}[order:in-order]")
    assert declared["library order"].dot is one_by_one
    assert all(member.stages.cumsum is running_cumsum for member in declared.values())
    assert not any("truncate" in name and "sums" in name for name in declared)


def test_the_order_of_sums_moves_the_ensemble() -> None:
    """A library may sum in order too; from the last term to the first it does not."""
    free, fixed = "recurrent-fp32", "recurrent-fp32[order:in-order]"
    in_order = emulated(fixed).rounded["library order"][1]
    assert torch.equal(in_order, emulated(free).rounded["sums term by term"][1])

    def backwards(a: Tensor, b: Tensor) -> Tensor:
        return one_by_one(a.flip(-1), b.flip(-2))

    assert not torch.equal(
        in_order, replace(members(fixed)["library order"], dot=backwards).run(inputs())[1]
    )


@pytest.mark.parametrize(
    "preset",
    ["recurrent-fp32", "chunk64-fp32", "chunk64-bf16-tf32solve", "chunk16-bf16-fp32factors"],
)
@pytest.mark.parametrize("exponential", ["natural", "base-2", "approximate"])
def test_a_declared_exponential_is_that_of_every_member(preset: str, exponential: str) -> None:
    x = torch.linspace(-80, 0, 1001)
    units = {
        member.exp
        for member in members(f"{preset}[exponential:{exponential}]").values()
        if not member.flushes
    }
    assert len(units) == 1
    (exp,) = units
    missed = rms(exp(x).double() / x.double().exp() - 1)
    low, high = {"natural": (0, 5e-8), "base-2": (2e-7, 2e-6), "approximate": (1e-7, 3e-6)}[
        exponential
    ]
    assert low <= missed <= high
    assert len({member.exp for member in members(preset).values()}) > 2


def test_a_natural_exponential_narrows_the_draws_of_the_recurrence() -> None:
    # nothing is written: the state only decays
    deep = PROBLEM.replace(gate="bound-20", beta="zero", T=3).inputs()
    exact = recurrence(deep)[1]
    missed = {
        name: max(
            float((run[1] / exact - 1).abs().median())
            for run in emulate(deep, contract_from_name(name), FP32).drawn
        )
        for name in ("recurrent-fp32", "recurrent-fp32[exponential:natural]")
    }
    assert missed["recurrent-fp32[exponential:natural]"] < 0.5 * missed["recurrent-fp32"]


def test_substitution_by_columns_sums_each_row_term_by_term() -> None:
    """The same bits as row by row, where every sum stays in the working type."""
    A = torch.randn(3, 40, 40, generator=torch.Generator().manual_seed(2)).tril(-1)
    assert torch.equal(by_columns(A, one_by_one), by_rows(A, one_by_one))


@pytest.mark.parametrize("shape", [(1, 40, 16), (16, 8, 2), (300, 5, 300)])
def test_terms_computed_at_once_are_summed_one_by_one(shape: tuple[int, int, int]) -> None:
    """In one block, and in blocks of less than all terms."""
    m, K, n = shape
    rng = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, 1, m, K, generator=rng), torch.randn(3, K, n, generator=rng)
    products = [a[..., i : i + 1] @ b[:, i : i + 1] for i in range(K)]
    assert torch.equal(one_by_one(a, b), functools.reduce(operator.add, products))
