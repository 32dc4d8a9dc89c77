"""Conventions: layout, order, gate, beta, scale and padding as declared; tested first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.convention_checks import ALLOWED, ConventionError
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.fitting import fitted
from kdaverify.budgets.statistics import rms
from kdaverify.checks.execute import CallError, execute, mended
from kdaverify.checks.outcome import Outcome, declined
from kdaverify.checks.status import Status
from kdaverify.checks.step_call import uncalled_step
from kdaverify.problems import Problem
from oracles.gate_activation import LOWER_BOUND
from oracles.recurrence import recurrence
from oracles.row_norm import EPSILON

# A wrong convention is wrong by the size of the answer; the worst conforming 16-bit kernel by a
# hundredth of it.
ALIKE = 0.05
# Sizes tried in turn until one is supported: K != V and B, T, H all different separate the most.
PROBE = Problem(
    B=1, T=5, H=1, HV=1, K=8, V=12, dtype="fp32", gate="log-sigmoid", key="random", beta="uniform",
    state="asymmetric", value="normal", seed=1,
)  # fmt: skip
PACK, PADDING = (2, 0, 3), 2
NOT_IMPLEMENTED = "NotImplementedError"
GROUPED = {"H": 2, "HV": 6}
"""Heads in groups: where each value head has a key head of its own, either way of grouping is the
other."""
STATE = "final_state"
BESIDE: Final[Mapping[str, Mapping[str, Any]]] = {
    "gate": {"lower_bound": LOWER_BOUND, "gate_format": "fp32"},
    "qk": {"norm_eps": EPSILON},
}
"""What belongs to one value of a choice alone."""
OF_MEMORY = (Status.MUTATED_INPUT, Status.ALIASED_OUTPUT)
UNDER_ANY = (Status.MISSING, Status.TYPE, Status.DTYPE, *OF_MEMORY)
"""What is wrong with a call under any convention."""
ORDINARY = PROBE.replace(T=64, K=64, V=64, gate="mild", state="absent")
"""What every kernel takes: one that answers neither this nor the probe answers nothing."""
SIZES = (
    (2, 5, 3, 8, 12),
    (1, 5, 3, 8, 12),
    (1, 5, 3, 16, 16),
    (1, 5, 2, 64, 64),
    (1, 5, 2, 128, 128),
)
"""B, T, H, K and V of the probe, the first that an implementation takes: some take one batch entry,
equal widths, multiples of 16, or 64 or 128 alone."""


def preflight(adapter: Adapter) -> list[Outcome]:
    """What is wrong with every call, before scoring: of `conventions`, or of the other call.

    A kernel that raises in other words for another problem is wrong; one that raises the same
    always may lack something here.
    """
    found, problem = declined([conventions(adapter)])[0], _probe(adapter)
    if found.status is not Status.ERROR or problem is None:
        return [found]
    other = _complaint(adapter, problem)
    if isinstance(other, CallError):
        said = Outcome(f"other {other.output}", other.status, mended(adapter, other))
        return [found, *declined([said])]
    return [found]


def misfit(adapter: Adapter) -> str | None:
    """What is wrong with every call, or None. A kernel that ended its process may have done so for
    the sizes of the probe alone: it is called with an ordinary problem too.
    """
    found = conventions(adapter)
    if not found.status.takes_process:
        return found.message if found.status.rejects else None
    if not (adapter.answers and adapter.open_ended):
        return None
    try:
        _unanswered(adapter, fitted(adapter, ORDINARY.replace(dtype=adapter.dtypes[0])))
    except CallError as fault:
        return str(fault)
    return None


def conventions(adapter: Adapter) -> Outcome:
    """Runs a tiny problem as declared and, if that is wrong, under every single other choice.

    Returns:
        PASS where the declared ones fit; CONVENTION, naming the choice that does fit, where another
        one is right; what is wrong with the call itself, where an ordinary problem is not answered
        either; SKIP where numbers are wrong otherwise (the suites will say how) or no probe is
        supported; CRASH, HANG or OOM where the kernel's process did not live to answer.
    """
    problem = _probe(adapter)
    if problem is None:
        return Outcome(
            "call",
            Status.SKIP,
            f"conventions: {adapter.name} supports none of the probe sizes {SIZES}",
        )
    try:
        return _compared(adapter, problem)
    except CallError as fault:
        return Outcome("call", fault.status, f"conventions: {fault}")


def _compared(adapter: Adapter, problem: Problem) -> Outcome:
    # Both are called whatever the first gives: an export writes down what a score plays back.
    complaint = _complaint(adapter, problem)
    refused = _refused_pack(adapter, problem)
    padding = _padded(adapter)
    grouped = _grouped(adapter, problem)
    if complaint is None:
        return (
            refused
            or padding
            or grouped
            or uncalled_step(adapter, fitted(adapter, problem.replace(T=1)))
            or Outcome(
                "call",
                Status.PASS,
                f"conventions: {_reported(adapter.conventions)} fit {problem.describe()}",
            )
        )
    if (
        isinstance(complaint, CallError)
        and complaint.status in UNDER_ANY
        and (found := _explained(adapter, problem, complaint))
    ):
        return found
    fitting = _fitting(
        adapter, problem, complaint, ("state", "gate", "beta", "layout", "scale", "gates", "qk")
    )
    if fitting is not None:
        return fitting
    said = f"conventions: no single other choice explains it; under the declared ones {complaint}"
    return _explained(adapter, problem, complaint) or Outcome("call", Status.SKIP, said)


def _fitting(
    adapter: Adapter, problem: Problem, complaint: str | CallError, choices: tuple[str, ...]
) -> Outcome | None:
    """The one other convention under which nothing is wrong; None where there is none."""
    for choice, other in _others(adapter, choices):
        if _fits(other, problem, choice):
            own, fitting = getattr(adapter.conventions, choice), getattr(other.conventions, choice)
            said = (
                f"declared {choice}={own!r}, but behaves as {choice}={fitting!r}; correct the"
                " declaration"
            )
            return Outcome(
                "call",
                Status.CONVENTION,
                f"conventions: {said} (under the declared one {complaint})",
            )
    return None


def _fits(other: Adapter, problem: Problem, choice: str) -> bool:
    """Whether all is right under the other choice; of normalised rows, on short ones too."""
    tested = (problem, problem.replace(key="tiny")) if choice == "qk" else (problem,)
    return all(_complaint(other, other.domain.fit(one)) is None for one in tested)


def _grouped(adapter: Adapter, problem: Problem) -> Outcome | None:
    """The other grouping of value heads if that alone fits; else None."""
    problem = fitted(adapter, problem.replace(**GROUPED))
    if problem.H in (problem.HV, 1) or adapter.supports(problem) is not None:
        return None
    complaint = _complaint(adapter, problem)
    return None if complaint is None else _fitting(adapter, problem, complaint, ("heads",))


def _explained(adapter: Adapter, problem: Problem, complaint: str | CallError) -> Outcome | None:
    """What else is wrong with every call, found by calling again; exports answer no more."""
    if not (adapter.answers and adapter.open_ended):
        return None
    if isinstance(complaint, CallError):
        ordinary = fitted(adapter, ORDINARY.replace(dtype=adapter.dtypes[0]))
        if complaint.status in OF_MEMORY:
            # An ordinary call has no state to edit: ports that update theirs had 206 failures.
            stateful = fitted(adapter, ordinary.replace(state="asymmetric"))
            return _unanswered(adapter, ordinary) or _unanswered(adapter, stateful)
        return _unanswered(adapter, ordinary) or (
            _transposed(adapter) if complaint.status is Status.SHAPE else None
        )
    return _without_scale(adapter, problem)


def _unanswered(adapter: Adapter, problem: Problem) -> Outcome | None:
    """What is wrong with an ordinary call, whatever its numbers; None where it is answered."""
    fault = _complaint(adapter, problem) if adapter.supports(problem) is None else None
    if not isinstance(fault, CallError):
        return None
    said = mended(adapter, fault) + _other_layout(adapter, problem, fault)
    return Outcome(fault.output, fault.status, said)


def _other_layout(adapter: Adapter, problem: Problem, fault: CallError) -> str:
    """Under which layout the call has outputs of the wanted shapes, whatever their numbers."""
    if fault.status is not Status.SHAPE:
        return ""
    for _, other in _others(adapter, ("layout",)):
        if not isinstance(_complaint(other, other.domain.fit(problem)), CallError):
            return f"; with layout={other.conventions.layout!r} every output has its shape"
    return ""


def _transposed(adapter: Adapter) -> Outcome | None:
    """Reports a transposed square final state where the initial one is as declared."""
    problem = fitted(adapter, ORDINARY.replace(state="asymmetric", dtype=adapter.dtypes[0]))
    if (
        problem.K != problem.V
        or adapter.supports(problem) is not None
        or STATE not in adapter.exposes(problem)
    ):
        return None
    inputs = problem.inputs()
    try:
        found = execute(adapter, inputs, adapter.exposes(problem)).outputs[STATE].double()
    except CallError:
        return None
    exact = recurrence(adapter.received(inputs))[1]
    if rms(found - exact) <= ALIKE * rms(exact) or not rms(found.mT - exact) <= ALIKE * rms(exact):
        return None
    wanted = "[N, HV, K, V]" if adapter.conventions.state == "kv" else "[N, HV, V, K]"
    said = (
        "final_state is the transpose of its exact value, while initial_state is taken as"
        f" declared; return it as {wanted}"
    )
    return Outcome(
        STATE,
        Status.CONVENTION,
        f"conventions: {said}, as state={adapter.conventions.state!r} declares",
    )


def _without_scale(adapter: Adapter, problem: Problem) -> Outcome | None:
    """Reports where o is the exact one but for the factor that the kernel was given."""
    inputs = problem.inputs()
    try:
        found = execute(adapter, inputs, adapter.exposes(problem)).outputs["o"].double()
    except CallError:
        return None
    o, factor = recurrence(adapter.received(inputs))[0], inputs.factor
    if factor == 1 or not rms(found * factor - o) <= ALIKE * rms(o):
        return None
    said = (
        f"o is {1 / factor:.4g} = 1 / scale times its exact value: the kernel does not multiply q"
        " k^T by scale"
    )
    return Outcome(
        "o", Status.CONVENTION, f"conventions: {said}; multiply by it, or declare scale='folded'"
    )


def _refused_pack(adapter: Adapter, problem: Problem) -> Outcome | None:
    """Says so where a kernel that is taken to have packs raises that it has none."""
    packed = fitted(adapter, problem.replace(B=1, lengths=PACK, T=sum(PACK)))
    if not packed.packed or adapter.supports(packed) is not None:
        return None
    fault = _complaint(adapter, packed)
    if not (isinstance(fault, CallError) and NOT_IMPLEMENTED in fault.message):
        return None
    said = (
        f"the signature names {adapter.conventions.packing}, but a pack is refused; declare"
        " packing='none', or take packs"
    )
    return Outcome("call", Status.CONVENTION, f"conventions: {said} ({fault})")


def _padded(adapter: Adapter) -> Outcome | None:
    """What is wrong with rows of o past the last offset declared zero; None if nothing."""
    if (
        adapter.conventions.padding != "zero"
        or adapter.conventions.packing != "cu_seqlens"
        or not adapter.domain.packed
    ):
        return None
    for dtype in adapter.dtypes:
        problem = fitted(adapter, PROBE.replace(lengths=PACK, T=sum(PACK) + PADDING, dtype=dtype))
        if problem.packed and adapter.supports(problem) is None:
            return _padding_of(adapter, problem)
    return None


def _padding_of(adapter: Adapter, problem: Problem) -> Outcome | None:
    assert problem.lengths is not None
    inputs, used = problem.inputs(), sum(problem.lengths)
    adapter.begin(f"conventions {problem.to_json()}")
    try:
        o = execute(adapter, inputs, ("o",)).outputs["o"]
    except CallError as fault:
        if fault.status.takes_process:
            raise
        return None  # the suites report it
    exact, rows = recurrence(adapter.received(inputs))[0][:, :used], o[:, used:]
    other = rows[rows != 0]  # NaN is other than zero
    # A kernel that is wrong about the sequences themselves, as one that ignores the offsets, has
    # more than a wrong declaration.
    if not other.numel() or not rms(o[:, :used].double() - exact) <= ALIKE * rms(exact):
        return None
    said = (
        "declared padding='zero', but rows of o past the last offset hold other values, such as"
        f" {float(other[0]):.3g}"
    )
    return Outcome(
        "call",
        Status.CONVENTION,
        f"conventions: {said}; zero these rows, or declare padding='undefined'",
    )


def _reported(declared: Conventions) -> str:
    said = (
        f"layout {declared.layout}, state {declared.state}, gate {declared.gate}, beta"
        f" {declared.beta}, scale {declared.scale}"
    )
    grouping = "" if declared.heads == "interleaved" else f", heads {declared.heads}"
    gates = "" if declared.gates == "channel" else f", gates {declared.gates}"
    return f"{said}, padding {declared.padding}{gates}{grouping}"


def _probe(adapter: Adapter) -> Problem | None:
    for B, T, H, K, V in SIZES:
        for dtype in adapter.dtypes:
            problem = fitted(adapter, PROBE.replace(B=B, T=T, H=H, HV=H, K=K, V=V, dtype=dtype))
            if adapter.supports(problem) is None:
                return problem
    return None


def _complaint(adapter: Adapter, problem: Problem) -> str | CallError | None:
    """What is grossly wrong with the outputs of `adapter`, or None.

    Raises:
        CallError: its process is gone: under another convention it would be gone again.
    """
    inputs = problem.inputs()
    adapter.begin(f"conventions {problem.to_json()}")
    try:
        run = execute(adapter, inputs, adapter.exposes(problem))
    except CallError as fault:
        if fault.status.takes_process:
            raise
        return fault
    except ConventionError as fault:
        return str(fault)
    exact: dict[str, Tensor] = dict(
        zip(("o", "final_state"), recurrence(adapter.received(inputs)), strict=True)
    )
    for name, tensor in run.outputs.items():
        error = rms(tensor.double() - exact[name]) / rms(exact[name])
        if not error <= ALIKE:  # NaN is wrong too
            return f"the relative error of {name} is {error:.2g}"
    return None


def _others(adapter: Adapter, choices: tuple[str, ...]) -> Iterator[tuple[str, Adapter]]:
    for choice in choices:
        for value in ALLOWED[choice]:
            # Without g a function has another signature: it is no other reading of the same one.
            if value in (getattr(adapter.conventions, choice), "none"):
                continue
            try:
                changed = replace(adapter.conventions, **{choice: value, **BESIDE.get(choice, {})})
                other = adapter.redeclared(changed)
            except ConventionError:  # thd without offsets
                continue
            if other is not None:
                yield choice, other
