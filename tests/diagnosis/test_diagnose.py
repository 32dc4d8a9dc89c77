"""A wrong kernel gets the name of its fault, a right one none, and what no known fault explains is
reported as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.poison import allocations_are_poisoned
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.fault_comparison import FaultComparison
from kdaverify.diagnosis.minimise import failure, minimise
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.session import diagnosed
from kdaverify.diagnosis.suspects import Suspect, suspects
from kdaverify.faults.adapter import Faulty
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Patch, PatchedPipeline
from kdaverify.operators.kda.mistakes.simple import SIGNATURES
from kdaverify.operators.pointwise.problem import ActivationProblem
from kdaverify.problems import Problem, cotangents
from kdaverify.verdicts.judge import Judge, Rejected
from kdaverify.verdicts.verdict import Verdict
from oracles.inputs import Inputs
from tests.faults import kernels
from tests.faults.triggers import PLAIN

SMALL = Problem.model_validate({**PLAIN, "T": 4, "HV": 1, "K": 4, "V": 4, "dtype": "bf16"})
NORM = ActivationProblem(op="l2norm", B=1, T=8, HV=2, K=8, dtype="fp32", values="mixed", seed=1)
SOON = 0.3
RIGHT = Fault(
    id="right",
    title="nothing",
    reference="",
    kind="A",
    trigger="",
    outputs=(),
    patch=lambda _: Patch(),
    stage="call",
)


class _Uneven(Faulty):
    """Wrong by another factor at every call."""

    calls = 0

    def forward(self, inputs: Inputs) -> Output:
        self.calls += 1
        right = super().forward(inputs)
        return Output(right.o * (1 + self.calls), right.final_state)


def a_case(**fields: object) -> PropertyCase:
    return PropertyCase("forward", SMALL.replace(**fields))


@pytest.mark.parametrize(
    ("wrong", "question", "name"),
    [
        (kernels.key_decay_applied_twice, a_case(), "H1"),
        (kernels.ignores_cu_seqlens, a_case(lengths=(2, 2)), "V11"),
        (kernels.last_gate_from_padding, a_case(), "H6"),
        (find("fault:WU9"), a_case(V=72), "WU9"),
        (find("fault:B25"), PropertyCase("gradients", SMALL, {"of": "both"}), "B25"),
        (find("fault:S8"), PropertyCase("resume", SMALL, {"cut": 2, "way": "chunk-step"}), "S8"),
        (
            find("fault:X7"),
            PropertyCase(
                "options", SMALL.replace(T=66, state="absent"), {"variant": "final_state=no"}
            ),
            "X7",
        ),
        (
            find("fault:P1"),
            PropertyCase(
                "activations",
                ActivationProblem(
                    op="l2norm", B=1, T=8, HV=2, K=8, dtype="fp32", values="mixed", seed=1
                ),
            ),
            "P1",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_known_fault_is_named_first(wrong: Adapter, question: PropertyCase, name: str) -> None:
    found = diagnose(wrong, question, seconds=SOON)
    assert found.fits
    assert found.named[0].suspect.fault.id == name
    assert str(found).startswith(f"matches known bug {name}: {FAULTS[name].title}")


def test_what_is_too_small_as_a_whole_is_named_by_its_elements() -> None:
    problem = SMALL.replace(T=40, K=16, V=16, gate="deep-resets", key="one-hot", state="absent")
    found = diagnose(
        find("fault:B4"), PropertyCase("gradients", problem, {"of": "both"}), seconds=9
    )
    assert [match.suspect.fault.id for match in found.named] == ["B4"]
    assert "compared element by element" in str(found)


def test_nan_in_gradients_alone_is_named_by_its_places() -> None:
    problem = SMALL.replace(T=20, gate="bound-20")
    found = diagnose(
        find("fault:GA21"), PropertyCase("gradients", problem, {"of": "both"}), seconds=4
    )
    assert "GA21" in [match.suspect.fault.id for match in found.named]


def test_a_simple_mistake_is_reported_without_the_catalogue() -> None:
    found = diagnose(kernels.state_transposed_where_square, a_case(), seconds=SOON)
    assert not found.named
    assert [match.suspect.fault.id for match in found.signatures] == ["state transposed"]
    assert "state transposed (S_T is returned transposed)" in str(found)


@pytest.mark.parametrize(
    "right", [kernels.right_bf16, EAGER, find("eager-recurrent")], ids=lambda right: right.name
)
def test_a_conforming_kernel_gets_no_name_even_if_it_is_taken_for_wrong(right: Adapter) -> None:
    found = diagnose(right, a_case(), seconds=SOON)
    assert found.passes
    assert not (found.named or found.signatures)
    assert not any(
        match.indistinguishable
        for match in FaultComparison(a_case(), right).matches(next(suspects(a_case(), right)))
    )


def test_outputs_that_are_right_but_for_their_form_name_no_bug() -> None:
    """An initial state that is updated in place had the residual 0 of S23, which writes over v."""
    found = diagnose(find("fault:S23"), PropertyCase("forward", SMALL), seconds=SOON)
    assert str(found) == "not compared with known bugs, since the message names the cause"


def test_a_fault_that_nothing_knows_is_not_named() -> None:
    found = diagnose(kernels.one_token_zeroed, a_case(T=70), seconds=SOON)
    assert not found.fits
    assert str(found).startswith("no known bug matches")
    assert "0 wherever it is wrong" in str(found)


class _Changed(Faulty):
    """A right kernel whose o is changed."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(RIGHT, patch=Patch())
        self._change = change

    def forward(self, inputs: Inputs) -> Output:
        right = super().forward(inputs)
        return Output(self._change(right.o), right.final_state)


def _tail_left_out(o: Tensor) -> Tensor:
    made = torch.empty_like(o)
    made if allocations_are_poisoned() else made.zero_()
    made[:, : o.shape[1] // 16 * 16] = o[:, : o.shape[1] // 16 * 16]
    return made


def _zero_tail(o: Tensor) -> Tensor:
    return torch.cat(
        (o[:, : o.shape[1] // 16 * 16], torch.zeros_like(o[:, o.shape[1] // 16 * 16 :])), dim=1
    )


def test_nan_everywhere_names_no_fault() -> None:
    def forward(kernel: PatchedPipeline, x: Inputs) -> tuple[Tensor, Tensor]:
        o, final_state = kernel(x)
        return o * math.nan, final_state * math.nan

    nan = Faulty(RIGHT, patch=Patch(forward=forward))
    found = diagnose(nan, a_case(), seconds=SOON)
    assert not found.fits
    assert not (found.named or found.signatures)
    assert str(found).startswith("not finite: too few finite elements")


@pytest.mark.parametrize("T", [20, 70])
def test_a_tail_that_was_never_written_is_named_by_poison(T: int) -> None:
    found = diagnose(_Changed(_tail_left_out), a_case(T=T), seconds=SOON)
    assert found.unwritten == ("o",)
    assert str(found).startswith("matches a simple mistake: never written (o:")


def test_a_tail_of_zeros_is_named_by_its_block() -> None:
    found = diagnose(_Changed(_zero_tail), a_case(T=20), seconds=20)
    assert [match.suspect.fault.id for match in found.signatures] == [
        "last tokens never written (16)"
    ]


@pytest.mark.parametrize(
    ("factor", "shown"), [(1 / math.log(2), "1.4427"), (math.log(2), "0.6931"), (2.0, "2")]
)
def test_gates_off_by_a_constant_factor_are_named_with_it(factor: float, shown: str) -> None:
    wrong = Faulty(RIGHT, patch=Patch(forward=lambda kernel, x: kernel(replace(x, g=x.g * factor))))
    found = diagnose(wrong, a_case(T=9), seconds=20)
    assert f"gates off by a factor of {shown}" in [
        match.suspect.fault.id for match in found.signatures
    ]


def _decay_of_the_wrong_sign(x: Inputs) -> Output:
    state, rows = x.state.float(), list[Tensor]()
    for t in range(x.T):
        q, k, v = (y[:, t].float() for y in (x.q, x.k, x.v))
        state = state * (-x.g[:, t].float()).exp()[..., None]
        state = (
            state
            + (x.beta[:, t, :, None].float() * k)[..., None]
            * (v - (k[..., None] * state).sum(-2))[..., None, :]
        )
        rows.append(x.factor * (q[..., None] * state).sum(-2))
    return Output(torch.stack(rows, 1).to(x.v.dtype), state)


class _Growing(Faulty):
    def forward(self, inputs: Inputs) -> Output:
        return _decay_of_the_wrong_sign(inputs)


def test_gates_of_the_wrong_sign_are_named() -> None:
    found = diagnose(_Growing(RIGHT, patch=Patch()), a_case(T=4, H=1), seconds=20)
    assert "gates off by a factor of -1" in [match.suspect.fault.id for match in found.signatures]


@pytest.mark.parametrize(
    "wrong", [kernels.key_decay_applied_twice, kernels.one_token_zeroed], ids=lambda x: x.name
)
def test_other_faults_are_not_called_unwritten_or_off_by_a_factor(wrong: Adapter) -> None:
    found = diagnose(wrong, a_case(T=70), seconds=SOON)
    assert "never written" not in str(found)
    assert "gates off" not in str(found)


@pytest.mark.parametrize("factor", [0.55, 0.8, 1.3, 1.7, 2.6])
def test_a_poor_match_in_a_few_elements_is_not_named(factor: float) -> None:
    """Of some 200 suspects one comes near two elements by chance: an engineer read it first."""
    tiny = SMALL.replace(T=1, K=1, V=1, gate="log-sigmoid", state="random")
    found = diagnose(_Changed(lambda o: o * factor), PropertyCase("forward", tiny), seconds=SOON)
    assert not found.fits
    assert "accounts for most" not in str(found) and "the nearest" not in str(found), str(found)


class _FirstState(Faulty):
    """Every head, or every sequence, starts from the state of the first."""

    def __init__(self, dim: int) -> None:
        super().__init__(RIGHT, patch=Patch())
        self._dim = dim

    def forward(self, inputs: Inputs) -> Output:
        state = inputs.initial_state
        first = None if state is None else state.narrow(self._dim, 0, 1).expand_as(state)
        return super().forward(replace(inputs, initial_state=first))


@pytest.mark.parametrize(("dim", "of"), [(0, "sequence"), (1, "head")])
def test_states_of_the_first_head_or_sequence_are_named(dim: int, of: str) -> None:
    problem = SMALL.replace(B=2, H=1, HV=2, K=8, V=8, gate="log-sigmoid", state="random")
    found = diagnose(_FirstState(dim), PropertyCase("forward", problem), seconds=20)
    assert f"states of the first {of}" in [match.suspect.fault.id for match in found.signatures]


def test_two_faults_in_one_kernel_are_a_poor_fit() -> None:
    first, second = (FAULTS[name].patch(Setting(1.0, torch.Generator())) for name in ("H1", "O5"))
    both = Faulty(FAULTS["H1"], patch=Patch(stages=first.stages, forward=second.forward))
    question = a_case(T=9)
    found = diagnose(both, question, seconds=SOON)
    assert not found.fits
    assert str(found).startswith("no ")


def test_a_kernel_that_differs_from_call_to_call_is_reported_to() -> None:
    found = diagnose(_Uneven(FAULTS["H1"]), a_case(), seconds=SOON)
    assert str(found).startswith("results differ between runs of the same inputs: ")


class _Unseeded(Faulty):
    """A race that does not restart with every case."""

    def __init__(self, fault: str, *, also: str | None = None) -> None:
        own = FAULTS[fault].patch(Setting(1.0, torch.Generator().manual_seed(0)))
        other = Patch() if also is None else FAULTS[also].patch(Setting(1.0, torch.Generator()))
        own = own if also is None else replace(own, forward=other.forward)
        super().__init__(FAULTS[fault], patch=own)

    def begin(self, case: str) -> None:
        del case


def test_a_race_is_named_by_the_wrong_results_that_it_shares_with_a_known_one() -> None:
    found = diagnose(_Unseeded("H24"), a_case(T=2, HV=2), seconds=60)
    assert not found.passes
    assert str(found).startswith("results differ between runs of the same inputs: ")
    assert "the wrong results are those of known bug H24: " in str(found)


def test_a_race_that_strikes_on_every_call_is_no_second_bug() -> None:
    found = diagnose(_Unseeded("B22"), a_case(T=2, V=64), seconds=60)
    assert "the wrong results are those of known bug B22: " in str(found)
    assert "a second bug" not in str(found)


def test_a_race_beside_a_fault_that_always_strikes_is_reported_as_two() -> None:
    found = diagnose(_Unseeded("H24", also="O5"), a_case(T=2, HV=2), seconds=60)
    assert "a second bug, since the most frequent result is wrong: matches known bug O5" in str(
        found
    )


class _AnotherOrder(Faulty):
    """A wrong kernel whose sums are in another order at every call: the last bit changes."""

    calls = 0

    def forward(self, inputs: Inputs) -> Output:
        self.calls += 1
        wrong = super().forward(inputs)
        return Output(wrong.o * (1 + 2.0**-8 * (self.calls % 2)), wrong.final_state)


def test_another_order_of_sums_is_no_race() -> None:
    found = diagnose(_AnotherOrder(FAULTS["H1"]), a_case(T=9), seconds=SOON)
    assert "results differ" not in str(found)
    assert found.named[0].suspect.fault.id == "H1"


def test_the_smaller_case_fails_in_the_same_way() -> None:
    kernel, question = kernels.key_decay_applied_twice, a_case(T=9, HV=2)
    failed = failure(kernel, question)
    assert failed is not None
    smallest = minimise(kernel, question, until=float("inf"), failed=failed)
    again = failure(kernel, smallest)
    assert again is not None
    assert again[1] is failed[1]
    assert isinstance(smallest.problem, Problem)
    assert (smallest.problem.T, smallest.problem.K, smallest.problem.V) == (2, 1, 1)


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.id)
def test_every_signature_changes_what_a_right_kernel_answers(signature: Fault) -> None:
    problem = SMALL.replace(T=73, B=1, H=2, HV=4, lengths=(66, 4), dtype="fp32")
    x, given, wrong = (
        problem.inputs(),
        cotangents(problem, "both"),
        Suspect(signature, 64, known=False).adapter(EAGER.contract("fp32")),
    )
    mine, right = wrong.forward(x), EAGER.forward(x)
    same = bool((mine.o == right.o).all()) and bool((mine.final_state == right.final_state).all())
    back = zip(
        wrong.gradients(x, given).named().values(),
        EAGER.gradients(x, given).named().values(),
        strict=True,
    )
    assert not same or any(bool((a != b).any()) for a, b in back)


def test_of_every_property_that_fails_one_case_is_diagnosed() -> None:
    rows = list[Verdict]()
    for name, detail, problem in (
        ("forward", {}, SMALL),
        ("forward", {}, SMALL.replace(T=8)),
        ("resume", {"cut": 2}, SMALL),
    ):
        with pytest.raises(Rejected):
            Judge(kernels.key_decay_applied_twice, rows.append, name)(problem, **detail)
    reported = diagnosed(rows, kernels.key_decay_applied_twice, seconds=60)
    assert [(name, case) for name, _, case, _ in reported] == [
        ("forward", SMALL.id),
        ("resume", SMALL.id),
    ]
    assert all("H1: key decay applied twice" in text for text in reported.values())


def test_a_diagnosis_that_breaks_off_keeps_what_was_found() -> None:
    rows = list[Verdict]()
    with pytest.raises(Rejected):
        Judge(kernels.key_decay_applied_twice, rows.append, "forward")(SMALL)
    broken = [row.model_copy(update={"problem": "{}"}) for row in rows]
    assert "not diagnosed: ProblemError" in next(
        iter(diagnosed(broken, EAGER, seconds=SOON).values())
    )
