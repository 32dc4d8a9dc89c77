"""The ensemble's backward: conforming kernels both ways, and stochastic-rounding samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets import scalar_decay
from kdaverify.budgets.anchored_autograd import at_declared, at_first
from kdaverify.budgets.cast_states import cast_members, casting_reads
from kdaverify.budgets.constants import SAMPLES
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.conversions import received_gradients
from kdaverify.budgets.emulate import (
    RESIDUAL,
    SUBSTITUTED,
    Emulator,
    HeadSums,
    residual_wy,
    scaled_output,
    scaled_queries,
    scaled_wy,
)
from kdaverify.budgets.ensemble import (
    ContractOverflow,
    by_series,
    clamping,
    deciding,
    ensemble,
    mapping,
    solves_by_library,
)
from kdaverify.budgets.factored import column_wy, factored_residual_wy
from kdaverify.budgets.finite import finite_runs
from kdaverify.budgets.formats import Format
from kdaverify.budgets.monte_carlo import SEED, MonteCarloArithmetic, calls_at_once
from kdaverify.budgets.pipeline import Way, run_backward, run_form
from kdaverify.budgets.read_before_decay import read_before_decay
from kdaverify.budgets.reference_kernels import factored, scores_kept
from kdaverify.budgets.resumed import Half, resumed_backward
from kdaverify.budgets.stochastic_rounding import StochasticRounding
from oracles.arithmetic import is_finite
from oracles.autograd import differentiate
from oracles.chunk import STAGES, Stage, Stages
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.together import cotangents_together, gradients_apart, together
from oracles.tokens import gathered_once

Sampled = Callable[
    [MonteCarloArithmetic, StochasticRounding, Inputs, Cotangents], Gradients[Tensor]
]
"""The next samples of the gradients of several calls."""
SUBSTITUTING: Final = "autograd, substitution"
# Samples of that kernel where it stands apart: four show how much such rows scatter.
SUBSTITUTED_DRAWS: Final = 4
# Of rows of kernels that differ in the order of their sums alone, none in a hundred problems is
# further out than the factor that every row is allowed.
APART: Final = 2.5
FORWARDS: Final = 2
"""Reference forwards whose states a backward declared apart starts from: the baseline, and one that
sums in another order. The rounding of the states as they are stored is in both."""
# The backward stages put the scale in themselves.
UNSCALED: Mapping[Stage, Stage] = {scaled_wy: STAGES.wy, scaled_output: STAGES.output}
# Their w and u are not those of math.md 3.4, from which the backward stages start.
WITHOUT_BACKWARD = (residual_wy, column_wy, factored_residual_wy, scalar_decay.residual_wy)


@dataclass(frozen=True)
class GradientEmulation:
    """What the reference ensemble made of one problem's backward.

    Args:
        rounded: gradients of every reference kernel that stays finite, float64, by its name; of
            every reference kernel where a deciding one does not, but some gradient is finite in all
            of them, and single gradients are wanted.
        drawn: of every stochastic-rounding sample.
        apart: of samples of kernels that solve for right-hand sides, where those are far from all
            others: a population of their own, whose distance to `drawn` is no spread.
    """

    rounded: dict[str, Gradients[Tensor]]
    drawn: list[Gradients[Tensor]]
    apart: Sequence[Gradients[Tensor]] = ()

    @property
    def members(self) -> list[Gradients[Tensor]]:
        """Of everything but `drawn`."""
        return [*self.rounded.values(), *self.apart]


@torch.inference_mode()
def emulate_gradients(
    inputs: Inputs, cotangents: Cotangents, contract: Contract, io: Format, *, single: bool = False
) -> GradientEmulation:
    """Runs the ensemble and the stochastic-rounding samples on one problem, both ways.

    Args:
        inputs: what the kernel receives.
        cotangents: of its outputs.
        contract: what it declares.
        io: format of q, k, v and o, and of their gradients.
        single: whether reference kernels count where a deciding one overflows in a gradient, but
            all are finite in the same one.
    Raises:
        ContractOverflow: a deciding reference kernel overflows on these inputs.
    """
    members = backward_members(contract, io)
    decide = [*deciding(members), *at_first(contract, io)]
    if inputs.HV > inputs.H:
        members += grouped_members(contract, io, inputs.HV // inputs.H)
    members += clamping(members[0], inputs)
    with gathered_once():
        runs = {member.name: member_gradients(member, inputs, cotangents) for member in members}
    stateful = replace(inputs, initial_state=inputs.state)
    plain = _differentiated(members[0], contract, io)
    plain |= {f"autograd, {x.name}": x for x in read_before_decay(members[0], inputs)}
    for name, member in plain.items():
        found = _wide(differentiate(member.run, stateful, cotangents))
        runs[name] = received_gradients(
            found, inputs, member.computed(inputs), contract, member.returned
        )
    members = cast_members(backward_members(contract, io)[:FORWARDS], contract, io)
    runs |= {member.name: member_gradients(member, inputs, cotangents) for member in members}
    runs |= _resumed(contract, io, inputs, cotangents)
    finite = finite_runs(runs, lambda run: run.named().values(), deciding=decide, single=single)
    if not finite:
        raise ContractOverflow(
            f"emulated backwards of {contract.name} overflow on this problem; choose milder values"
        )
    noise = MonteCarloArithmetic(contract, io)
    drawn = _drawn(noise, inputs, cotangents, _sampled)
    if _stands_apart(finite):
        apart = _drawn(noise, inputs, cotangents, _by_substitution, SUBSTITUTED_DRAWS)
    else:
        apart = []
    return GradientEmulation(finite, drawn, [run for run in apart if _is_finite(run)])


def _stands_apart(runs: Mapping[str, Gradients[Tensor]]) -> bool:
    """Whether some row of the kernel that solves for right-hand sides lies further from the
    baseline than APART times what any other kernel does.
    """
    own = runs.get(SUBSTITUTING)
    (plain, *others) = [run.named() for name, run in runs.items() if name != SUBSTITUTING]
    if own is None or not others:
        return False

    def apart(name: str, x: Tensor) -> bool:
        widest = torch.stack([(run[name] - plain[name]).norm(dim=-1) for run in others]).amax(0)
        return bool(((x - plain[name]).norm(dim=-1) > APART * widest).any())

    return any(apart(name, x) for name, x in own.named().items() if x.numel())


def _is_finite(run: Gradients[Tensor]) -> bool:
    return all(map(is_finite, run.named().values()))


def _differentiated(plain: Emulator, contract: Contract, io: Format) -> dict[str, Emulator]:
    """Kernels in plain torch, by the names of their gradients by autograd.

    One in chunks sees the pairs (i, i), whose parts of dG cancel, and rounds where the forward did.
    """
    casting = casting_reads(plain, contract, io)
    if contract.form != "chunk":
        return {f"autograd, {x.name}": x for x in casting}
    return {
        "autograd": plain,
        **{f"autograd, {kept.name}": kept for kept in scores_kept(plain)},
        **{f"autograd, {x.name}": x for x in factored(plain)},
        "autograd, residual form": _residual(contract, io),
        **_substituting(contract, io),
        **at_first(contract, io),
        **at_declared(contract, io),
        **{f"autograd, {x.name}": x for x in by_series((plain,), contract)},
        # The transpose of a map sums a term a channel for d_initial_state: without it a right
        # port was rejected for a median of 1.1 times its tolerance (136 channels).
        **{f"autograd, {x.name}": x for x in mapping((plain,), contract)},
        **{f"autograd, {x.name}": x for x in casting},
    }


def _residual(contract: Contract, io: Format) -> Emulator:
    """The kernel that applies R after subtracting the state, as plain torch: dbeta differs.

    Without it such a kernel, right and in fp32, was rejected for single elements of dbeta at 1.3 to
    2 times their tolerance.
    """
    plain = ensemble(contract, io)[0]
    return replace(plain, stages=scalar_decay.RESIDUAL if contract.decay == "scalar" else RESIDUAL)


def _substituting(contract: Contract, io: Format) -> dict[str, Emulator]:
    """The kernel that solves for right-hand sides, where the contract has a library's solve."""
    plain = ensemble(contract, io)[0]
    if not solves_by_library(contract):
        return {}
    stages = scalar_decay.SUBSTITUTED if contract.decay == "scalar" else SUBSTITUTED
    return {SUBSTITUTING: replace(plain, stages=stages)}


def backward_members(contract: Contract, io: Format) -> list[Emulator]:
    """The reference kernels that have a backward of their own."""
    whole = ensemble(contract, io)
    return [
        replace(member, stages=_unscaled(member.stages))
        for member in whole
        if member.stages.wy not in WITHOUT_BACKWARD
    ]


def grouped_members(contract: Contract, io: Format, heads: int) -> list[Emulator]:
    """Those that store the dq and dk of each value head before those of a key head are summed, as
    automatic differentiation does of every port that repeats q and k for their value heads in
    their own format. The transpose of `repeat_interleave` sums them in the accumulator, that of an
    index or of `jnp.repeat` one by one in their format.

    Rounded to nearest: among the samples, their larger error would count as spread. Without them
    such a port in fp32 was rejected for a tail of dk at 2.5 times its tolerance (bf16, 2 value
    heads a key head). Without sums in turn, ports in fp32 behind an index were rejected in 9 of 24
    problems of 4 value heads a key head, and in 12 of 12 of 8.

    Args:
        heads: value heads of a key head; of two, one sum is rounded either way.
    """
    if contract.returned("dk", io).unit <= contract.accumulate.unit:
        return []
    plain = backward_members(contract, io)[0]
    sums: tuple[HeadSums, ...] = ("alone", "in turn", "last first") if heads > 2 else ("alone",)
    return [replace(plain, name=f"{plain.name}, heads {order}", heads=order) for order in sums]


def _unscaled(stages: Stages) -> Stages:
    return replace(
        stages,
        wy=UNSCALED.get(stages.wy, stages.wy),
        output=UNSCALED.get(stages.output, stages.output),
    )


def member_gradients(member: Emulator, inputs: Inputs, cotangents: Cotangents) -> Gradients[Tensor]:
    """The gradients of one emulated kernel, as float64 tensors holding the formats it stores."""
    found = _member_gradients(member, inputs, cotangents)
    assert found is not None  # it starts from no other's states
    return found


def _member_gradients(
    member: Emulator, inputs: Inputs, cotangents: Cotangents, there: Emulator | None = None
) -> Gradients[Tensor] | None:
    """The same; with `there` from the states of another's forward, None where they overflow."""
    way = Way(member.contract.work, member.arithmetic, member.stages, member.backward)
    computed = member.computed(inputs)
    scaled = scaled_queries(computed, member.contract, member.io.round)
    if there is None:
        made = run_backward(member.contract, scaled, cotangents, way)
    else:
        made = resumed_backward(_half(there), Half(member.contract, way), scaled, cotangents)
    if made is None:
        return None
    found = _unscaled_q(_wide(made), inputs, scaled)
    return received_gradients(found, inputs, computed, member.contract, member.returned)


def _half(member: Emulator) -> Half:
    """The forward of a reference kernel."""
    return Half(member.contract, Way(member.contract.work, member.arithmetic, member.stages))


def _resumed(
    contract: Contract, io: Format, inputs: Inputs, cotangents: Cotangents
) -> dict[str, Gradients[Tensor]]:
    """The baseline backward from the states that reference forwards left, where that is declared:
    the first two sum in an order of their own each.
    """
    if contract.forward is None:
        return {}
    back = backward_members(contract, io)[0]
    found = {
        f"{back.name}, from states of {there.name}": _member_gradients(
            back, inputs, cotangents, there
        )
        for there in ensemble(contract.forward, io)[:FORWARDS]
    }
    return {name: gradients for name, gradients in found.items() if gradients is not None}


def _unscaled_q(found: Gradients[Tensor], inputs: Inputs, scaled: Inputs) -> Gradients[Tensor]:
    """dq of the call itself, where the gradients are those of the call with q times the scale."""
    return replace(found, dq=found.dq * (inputs.factor / scaled.factor))


def _drawn(
    noise: MonteCarloArithmetic,
    inputs: Inputs,
    cotangents: Cotangents,
    sampled: Sampled,
    number: int = SAMPLES,
) -> list[Gradients[Tensor]]:
    contract = noise.contract

    def at_once(
        noise: MonteCarloArithmetic, calls: int, rounding: StochasticRounding
    ) -> list[list[Tensor]]:
        repeated = together([inputs] * calls)
        many = cotangents_together([cotangents] * calls, inputs)
        computed = noise.computed(repeated, rounding)
        found = _wide(sampled(noise, rounding, computed, many))
        unscaled = _unscaled_q(found, repeated, computed)
        received = received_gradients(
            unscaled,
            repeated,
            computed,
            contract,
            lambda name, x: rounding.rounded(x, contract.returned(name, noise.io)),
        )
        apart = gradients_apart(received, inputs, calls)
        return [list(one.named().values()) for one in apart]

    rng = torch.Generator(inputs.q.device).manual_seed(SEED)
    drawn = noise.draws(at_once, rng, number, several=calls_at_once(inputs))
    return [Gradients(*gradients) for gradients in drawn]


def _by_substitution(
    noise: MonteCarloArithmetic,
    rounding: StochasticRounding,
    inputs: Inputs,
    cotangents: Cotangents,
) -> Gradients[Tensor]:
    """The next samples of kernels that solve for right-hand sides, differentiated by autograd."""
    way = noise.substituting(rounding)

    def run(x: Inputs) -> tuple[Tensor, Tensor]:
        return run_form(
            noise.contract, x, dtype=way.dtype, arithmetic=way.arithmetic, stages=way.stages
        )

    stateful = replace(inputs, initial_state=inputs.state)
    return differentiate(run, stateful.to(way.dtype), cotangents)


def _sampled(
    noise: MonteCarloArithmetic,
    rounding: StochasticRounding,
    inputs: Inputs,
    cotangents: Cotangents,
) -> Gradients[Tensor]:
    """The next samples; with a backward declared apart, of its forward's states.

    A backward of fp64 has samples that are magnified: those of a forward in fewer bits would leave
    the range in which they add up.
    """
    back = Half(noise.contract, Way(*noise.way(rounding), noise.backward(rounding)))
    forward = noise.contract.forward
    if forward is not None and noise.contract.work == forward.work:
        left = replace(noise, contract=forward.unfactored())
        there = Half(left.contract, Way(*left.way(rounding)))
        found = resumed_backward(there, back, inputs, cotangents)
        if found is not None:
            return found
    return run_backward(back.contract, inputs, cotangents, back.way)


def _wide(gradients: Gradients[Tensor]) -> Gradients[Tensor]:
    return Gradients(**{name: x.double() for name, x in gradients.named().items()})
