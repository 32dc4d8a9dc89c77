"""Kimi Delta Attention as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

from hypothesis.strategies import SearchStrategy

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.fitting import fitted
from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import chunk_sizes, emulate
from kdaverify.budgets.formats import Format
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import FLOAT64_ORACLE_PRECISION, Reference, standard
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.conventions import misfit, preflight
from kdaverify.checks.digits import Recurrence
from kdaverify.checks.laws.law import Law
from kdaverify.checks.laws.registry import LAWS
from kdaverify.checks.location import Step
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.place import ElementPlace
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.operator import Axis, CallOperator, Choices
from kdaverify.operators.kda.axes import AXES, BEYOND_FP16, bounds_of, stores_states_in_fp16
from kdaverify.operators.kda.call_problem import call_problem, widths_in_turn
from kdaverify.operators.kda.contrasts import contrasts
from kdaverify.operators.kda.coverage import covered
from kdaverify.operators.kda.listed import LISTED
from kdaverify.operators.kda.not_applicable import exposed, not_applicable, outside
from kdaverify.operators.kda.place import place
from kdaverify.operators.kda.smaller import smaller
from kdaverify.operators.kda.traits import traits
from kdaverify.problem_operator import ContrastAxis
from kdaverify.problems import Bounds, Problem, cost, cotangents, problems
from kdaverify.problems.cotangents import BOTH, of_exposed
from kdaverify.problems.example import EXAMPLE, schema
from kdaverify.problems.regimes import COHERENCE, GATES, KEYS
from kdaverify.verdicts.seal import Covered
from kdaverify.verdicts.verdict import Verdict
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, SIGNATURE

if TYPE_CHECKING:
    from kdaverify.faults.fault import Fault

# Writes of a token to its state, in all: above this, launching kernels on an accelerator costs less
# than it saves.
LARGE: Final = 2**26
MOST_WRITES: Final = 2**30
RELATED: Final[Mapping[str, tuple[str, ...]]] = {
    "channel": ("kda",),
    "head": ("gdn", "kda"),
    "none": ("delta", "gdn", "kda"),
}
"""Whose faults a delta rule may have, by its gates: every kernel of one gate is one of channels."""


@final
class KdaOperator(CallOperator):
    """Math: 2."""

    name = "kda"
    about = "Kimi Delta Attention: o [B, T, HV, V] and S_T [N, HV, K, V], forward and backward"
    group = "delta"
    problem = Problem
    signature = SIGNATURE
    call = Inputs
    suites = "kda"
    staged = True
    has_known_bugs = True
    resampled = True
    accuracy_fields = ("gate", "key", "beta")
    absent = {"final_state": "final_state=False"}  # noqa: RUF012 # a Final mapping
    orders = "layout or state order"
    equal_sizes = has_sources = has_sizes_in_turn = True
    fed_back = {"final_state": "initial_state"}  # noqa: RUF012 # a Final mapping
    odd = (
        frozenset({"q", "k", "initial_state", "final_state"}),
        frozenset({"v", "o", "initial_state", "final_state"}),
    )

    def panel(self, adapter: Adapter, profile: str) -> Choices:
        return AXES["named"](adapter, profile)

    def random(self, adapter: Adapter, dtype: str, bounds: Bounds) -> SearchStrategy[Problem]:
        return problems(dtype=dtype, **bounds)

    def axes(self) -> Mapping[str, Axis]:
        return AXES

    def bounds(self, adapter: Adapter, chosen: Mapping[str, Any], profile: str) -> Bounds:
        return bounds_of(adapter, chosen, profile)

    def misfit(self, adapter: Adapter) -> str | None:
        return misfit(adapter)

    def preflight(self, adapter: Adapter) -> list[Outcome]:
        return preflight(adapter)

    def laws(self) -> Mapping[str, Law]:
        return LAWS

    def not_applicable(self, adapter: Adapter, profile: str) -> dict[str, str]:
        return not_applicable(adapter, profile)

    def exposed(self, adapter: Adapter, profile: str) -> tuple[str, ...]:
        return exposed(adapter, profile)

    def outside(self, adapter: Adapter) -> tuple[str, ...]:
        return outside(adapter)

    def covered(
        self, adapter: Adapter, profile: str, verdicts: Sequence[Verdict]
    ) -> tuple[Covered, ...]:
        return covered(adapter, profile, verdicts)

    def whole(self, exposed: tuple[str, ...]) -> str:
        return of_exposed(exposed)

    def call_problem(
        self, adapter: Adapter, rule: CallRule, dtype: str, *, seed: int, turn: int
    ) -> Problem:
        return call_problem(adapter, rule, dtype, seed=seed, turn=turn)

    def sizes_in_turn(self, adapter: Adapter, dtype: str, *, backward: bool) -> list[Problem]:
        return widths_in_turn(adapter, dtype, backward=backward)

    def in_other_forms(self, rule: CallRule, problem: Problem) -> Mapping[str, Problem]:
        """Of axes that no size distinguishes: a pack of as many sequences, each of one token."""
        if rule.size != "equal" or problem.packed:
            return {}
        return {"pack": problem.replace(B=1, lengths=(1,) * problem.T)}

    def other_steps(self, adapter: Adapter, problem: Problem) -> list[dict[str, Any]]:
        """Without a state, at another scale: `alternating-state-step` and `alternating-scale-step`
        have each alone; then with one that fp16 does not hold, where the contract does.
        """
        scaled = {"state": "absent", **(self.other_scale(problem) or {})}
        if problem.dtype != "fp16" or stores_states_in_fp16(adapter, problem.dtype):
            return [scaled]
        return [scaled, {"state": BEYOND_FP16, "key": "tiny"}]

    def inputs_alike(self, problem: Problem) -> Iterator[tuple[frozenset[str], Mapping[str, Any]]]:
        """Rows of a layer without projections of their own: q and k; k and v of as many heads."""
        yield frozenset({"q", "k"}), {}
        yield frozenset({"k", "v"}), {"HV": problem.H, "V": problem.K}

    def expanded_axes(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Keys and values of one head; one prefix of all sequences."""
        yield "head", 2, ("k", "v")
        yield "entry", 0, ("initial_state",)

    def loss(
        self, problem: Problem, exposed: tuple[str, ...], of: str, exponent: int
    ) -> Cotangents | str:
        if problem.B * problem.T * problem.HV * problem.K * problem.V > MOST_WRITES:
            return (
                f"gradients are judged up to B T HV K V = {MOST_WRITES}: reference kernels keep"
                " every chunk for their backward"
            )
        if of not in (*exposed, BOTH):
            return "it exposes no final state that a loss could depend on"
        # Of a kernel that returns o alone, and of a pack by segment ids, that is all there is.
        return cotangents(problem, self.whole(exposed) if of == BOTH else of, exponent)

    def handed(self, loss: Cotangents, contract: Contract) -> Cotangents:
        # torch casts the cotangent of a state that is returned in 16 bits. Of an empty sequence it
        # is dS_0: a right kernel was rejected there at 5e4 times its tolerance, for our rounding.
        if loss.d_final_state is None:
            return loss
        return replace(loss, d_final_state=contract.carry.round(loss.d_final_state))

    def reference(
        self, call: Inputs, contract: Contract, io: Format, *, cuts: tuple[int, ...] = ()
    ) -> Reference:
        return standard(
            call,
            contract,
            io,
            lambda: emulate(call, contract, io, cuts=cuts, single=True),
            cuts=cuts,
        )

    def gradient_reference(
        self, call: Inputs, cotangents: Cotangents, contract: Contract, io: Format
    ) -> Reference:
        loss = cotangents.on(call.q.device)
        return gradient_standard(
            call,
            loss,
            contract,
            io,
            lambda: emulate_gradients(call, loss, contract, io, single=True),
        )

    def is_large(self, call: Inputs, contract: Contract) -> bool:
        writes = call.B * call.T * call.HV * call.K * call.V
        return writes > LARGE and contract.operands.precision <= FLOAT64_ORACLE_PRECISION

    def output_format(self, output: str, contract: Contract, io: Format) -> Format:
        return contract.output_formats(io)[output]

    def returned(self, values: Mapping[str, Any]) -> Output | Gradients[Any]:
        return Output(**values) if {*values} == {*OUTPUTS} else Gradients(**values)

    def cotangents(self, values: Mapping[str, Any]) -> Cotangents:
        return Cotangents(**values)

    def place(self, output: str, index: tuple[int, ...], call: Inputs) -> ElementPlace:
        return place(output, index, call)

    def baseline(self, call: Inputs, contract: Contract, io: Format) -> Recurrence:
        return Recurrence(call, contract, io)

    def listed(self, what: str) -> list[dict[str, Any]]:
        return LISTED[what]()

    def chunk_size(self, contract: Contract) -> int:
        return contract.chunk_size

    def chunk_sizes(self, problem: Any, contract: Contract) -> Sequence[int]:
        recurrent = contract.form == "recurrent"
        first, *smaller = (
            (EAGER.contract(problem.dtype).chunk_size,) if recurrent else chunk_sizes(contract)
        )
        spans = problem.spans if isinstance(problem, Problem) else ()
        longest = max((length for _, _, length in spans), default=0)
        return (first, *(size for size in smaller if size < longest))

    def related(self, adapter: Adapter) -> Sequence[str]:
        return RELATED[adapter.domain.gates]

    def simple_mistakes(self) -> Sequence[Fault]:
        # they import faults, which import this operator's neighbours
        from kdaverify.operators.kda.mistakes.simple import SIGNATURES

        return SIGNATURES

    def refusal(self, adapter: Adapter, problem: Problem) -> str | None:
        return adapter.supports(problem)

    def fitted(self, adapter: Adapter, problem: Problem, *, backward: bool) -> Problem:
        return fitted(adapter, problem, backward=backward)

    def within(self, adapter: Adapter, problem: Problem) -> Problem:
        return adapter.domain.fit(problem)

    def cost(self, problem: Problem) -> float:
        return cost(problem)

    def is_early(self, problem: Problem) -> bool:
        # Gates of 0, of -1e4 and resets in one chunk: a backward that is wrong for one kind alone
        # was shown after 22 s, behind the rules of calls and the gradients of 20 mild problems.
        return problem.gate == "mixed"

    def smaller(
        self, problem: Problem, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        return smaller(problem, detail)

    def traits(self, problem: Problem) -> Mapping[str, bool]:
        return traits(problem)

    def contrasts(self, problem: Problem, detail: Mapping[str, Any]) -> list[ContrastAxis]:
        return contrasts(problem, detail)

    def levels(self, field: str) -> tuple[str, ...]:
        return {"gate": (*GATES,), "key": (*COHERENCE, *KEYS)}.get(field, ())

    def example(self) -> Problem:
        return EXAMPLE

    def schema(self) -> dict[str, Any]:
        return schema()

    def stage_steps(
        self, adapter: Adapter, problem: Problem, *, both_passes: bool
    ) -> Iterator[Step]:
        from kdaverify.checks.stages import walk, walk_back

        yield from walk(adapter, problem)
        if both_passes:
            yield from walk_back(adapter, problem)

    def varied(self, case: PropertyCase) -> Iterator[PropertyCase]:
        from kdaverify.operators.kda.variations import varied

        return varied(case, case.problem)

    def explain_error(self, case: PropertyCase, judged: Adapter, *, until: float) -> str:
        from kdaverify.operators.kda.chunked import in_chunks
        from kdaverify.operators.kda.mistakes.finding import finding

        return in_chunks(case, judged, until=until) or str(finding(case, judged, until=until))


KDA: Final = KdaOperator()
