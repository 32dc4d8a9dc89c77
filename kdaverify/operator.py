"""What the machinery needs of an operator; everything else about one lies in its own folder.

Read this file first. A session goes problem -> call -> exact values and tolerances -> comparison ->
verdict; what differs from one operator to the next on that way is a method here, and the modules
that judge, record, retest, diagnose and minimise call nothing else. An operator is one entry of
OPERATORS and one folder of `kdaverify/operators`.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from kdaverify.canonical import ProblemError
from kdaverify.checks.property_table import named
from kdaverify.problem_operator import GENERAL, Operator
from kdaverify.ruled_operator import RuledOperator

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from kdaverify.adapters.base import Adapter
    from kdaverify.adapters.entry_point import Function
    from kdaverify.budgets.formats import Format
    from kdaverify.budgets.standard import Reference
    from kdaverify.checks.calls.rule import CallRule
    from kdaverify.checks.compare import Comparison
    from kdaverify.checks.laws.law import Law
    from kdaverify.checks.outcome import Outcome
    from kdaverify.checks.place import ElementPlace
    from kdaverify.diagnosis.question import DiagnosisCase, PropertyCase
    from kdaverify.faults.fault import Fault
    from kdaverify.kills.known_faults import FaultCatalogue
    from kdaverify.verdicts.seal import Covered
    from kdaverify.verdicts.verdict import Verdict
    from oracles.enclosure import Enclosure
    from oracles.signature import TensorCall


Choices = list[tuple[str, Any]]
"""Part of a test's id, and what its fixture gets."""
Axis = Callable[["Adapter", str], Choices]
BOTH: Final = "both"
NO_BACKWARD: Final = "it declares that it has no backward"
NO_LAWS: Final = "its operator has none"
FILES: Final = "its outputs come from files"


def called(adapter: Adapter, profile: str) -> Choices:
    """The rules of calls that a profile tests, each with its problem."""
    from kdaverify.checks.calls import questions

    return [(question.name, question) for question in questions(adapter, profile)]


class Baseline(Protocol):
    """A simpler algorithm for the call that was judged."""

    def digits_fewer(self, compared: Comparison, exact: Enclosure) -> float | None:
        """Correct digits an output has fewer than the baseline's; None if unremarkable."""
        ...


class CallOperator(RuledOperator):
    """An operator whose calls a kernel answers whole, forward and backward: adapters implement one.

    Args:
        call: the class of its calls.
        suites: the folder of the suites that test it.
        absent: how a function declares that it does not return an output, by output.
        orders: the options that declare the order of axes, in words; "" where there are none.
    """

    call: ClassVar[type[TensorCall]]
    suites: ClassVar[str] = GENERAL
    absent: ClassVar[Mapping[str, str]] = MappingProxyType({})
    orders: ClassVar[str] = ""

    @abc.abstractmethod
    def panel(self, adapter: Adapter, profile: str) -> Choices:
        """A profile's fixed problems, inside what is taken, by names that begin with the format."""

    @abc.abstractmethod
    def random(self, adapter: Adapter, dtype: str, bounds: Any) -> SearchStrategy[Any]:
        """Random problems in a format, which shrink to the simplest."""

    def axes(self) -> Mapping[str, Axis]:
        """What tests go over, by the fixture that gets it, in the order of a test's id."""
        # an axis beside three others
        dtypes: Axis = lambda adapter, _: [(dtype, dtype) for dtype in adapter.dtypes]  # noqa: E731
        return MappingProxyType(
            {"dtype": dtypes, "named": self.panel, "lawful": self.lawful, "called": called}
        )

    def parameters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The parameters of a function of it: those passed by place, and those passed by name.

        Raises:
            AdapterError: no function of it can be called apart from the harness.
        """
        names = self.signature.names()
        call: Any = self.call  # a dataclass each
        others = tuple(field.name for field in fields(call) if field.name not in names)
        return names, others

    def wrapped(self, function: Function, options: Mapping[str, Any]) -> Adapter:
        """The adapter of a function of torch tensors; see `kernel`.

        Args:
            options: those of the decorator that were given.
        Raises:
            AdapterError: there is no such option or value, or adapters of it are classes.
        """
        from kdaverify.adapters.base import AdapterError  # it needs this module first

        raise AdapterError(f"op={self.name!r} is implemented by an Adapter class, not a function")

    def lawful(self, adapter: Adapter, profile: str) -> Choices:
        """The laws that an implementation is tested on, with formats; none by default."""
        return []

    def bounds(self, adapter: Adapter, chosen: Mapping[str, Any], profile: str) -> Any:
        """Which random problems a profile makes for an implementation, given the other axes."""
        del adapter, chosen, profile

    def misfit(self, adapter: Adapter) -> str | None:
        """Which declared convention, or what else, is wrong with any call, if it can be found."""
        del adapter

    def preflight(self, adapter: Adapter) -> list[Outcome]:
        """What is wrong with every call, before anything is scored; nothing by default."""
        return []

    def laws(self) -> Mapping[str, Law]:
        """Exact relations between calls of every right kernel, by name; none by default."""
        return MappingProxyType({})

    def not_applicable(self, adapter: Adapter, profile: str) -> dict[str, str]:
        """The properties that an implementation declares to lack, and why: no case has them."""
        lacking: dict[str, str] = (
            {}
            if adapter.differentiable
            else dict.fromkeys(named(lambda found: found.backward), adapter.no_backward)
        )
        if not adapter.open_ended:
            lacking["calls"] = FILES
        return lacking if self.laws() else {**lacking, "laws": NO_LAWS}

    def exposed(self, adapter: Adapter, profile: str) -> tuple[str, ...]:
        """The outputs that an implementation declares to return."""
        problems = [problem for _, problem in self.panel(adapter, profile)]
        return tuple(
            sorted({output for problem in problems for output in adapter.exposes(problem)})
        )

    def outside(self, adapter: Adapter) -> tuple[str, ...]:
        """What no case is generated for, because an implementation declares not to take it."""
        return ()

    def covered(
        self, adapter: Adapter, profile: str, verdicts: Sequence[Verdict]
    ) -> tuple[Covered, ...]:
        """Which combinations of properties were judged, where a profile counts them."""
        return ()

    @abc.abstractmethod
    def loss(self, problem: Any, exposed: tuple[str, ...], of: str, exponent: int) -> Any:
        """The cotangents of a loss, or why there is none for this problem, as a sentence.

        Args:
            exposed: the outputs that the implementation returns.
            of: the outputs that the loss depends on, BOTH or the name of one.
            exponent: of the power of two that scales it.
        """

    def may_decline(self, adapter: Adapter, call: Any) -> str:
        """What of a call an implementation may decline by an exception, though it declares nothing
        about it; "" where there is nothing, as by default.
        """
        return ""

    def handed(self, loss: Any, contract: Any) -> Any:
        """The cotangents of a loss as the backward of such a kernel gets them: in the formats of
        its outputs, where those hold fewer bits. As they are by default.
        """
        return loss

    def whole(self, exposed: tuple[str, ...]) -> str:
        """The `of` of the loss that depends on everything a kernel returns."""
        return BOTH

    def call_problem(
        self, adapter: Adapter, rule: CallRule, dtype: str, *, seed: int, turn: int
    ) -> Any:
        """The problem that a rule of calls is tested on; None where there is none of such a size.

        By default one of the panel, for rules about memory another one at every turn.

        Args:
            turn: counts what the rule is tested on.
        """
        if rule.is_real:
            return None
        found = [problem for _, problem in self.panel(adapter, "smoke") if problem.dtype == dtype]
        return found[turn % len(found) if rule.memory else 0].replace(seed=seed)

    @abc.abstractmethod
    def reference(
        self, call: Any, contract: Any, io: Format, *, cuts: tuple[int, ...] = ()
    ) -> Reference:
        """The exact outputs of a call, and the tolerances under the contract.

        Args:
            call: what the kernel received.
            contract: the arithmetic that it declares.
            io: the format of the problem.
            cuts: tokens at which the run was cut and resumed.
        Raises:
            ContractOverflow: every output overflows in some reference kernel.
            UncertifiedError: no oracle is accurate enough.
        """

    @abc.abstractmethod
    def gradient_reference(
        self, call: Any, cotangents: Any, contract: Any, io: Format
    ) -> Reference:
        """The same for the gradients of a loss."""

    def has_one_loss(self, problem: Any) -> bool:
        """Whether a panel problem's gradients are tested for the loss on all outputs alone."""
        return False

    def undefined(self, call: Any) -> Mapping[str, Any]:
        """Masks of the elements without an exact value, by output or gradient; none by default."""
        return {}

    def diagnosed(self, case: PropertyCase, judged: Adapter) -> DiagnosisCase:
        from kdaverify.diagnosis.call import DiagnosedCall

        return DiagnosedCall(case, judged, case.problem)

    def is_large(self, call: Any, contract: Any) -> bool:
        """Whether an accelerator makes tolerances faster and its float64 is accurate enough."""
        return False

    @abc.abstractmethod
    def output_format(self, output: str, contract: Any, io: Format) -> Format:
        """The format that an output is returned in."""

    def returned(self, values: Mapping[str, Any]) -> Any:
        """What adapters return, outputs or gradients, made of their values by name."""
        return dict(values)

    def cotangents(self, values: Mapping[str, Any]) -> Any:
        """What an adapter's backward is given, of cotangents by name, None where absent."""
        return dict(values)

    @abc.abstractmethod
    def place(self, output: str, index: tuple[int, ...], call: Any) -> ElementPlace:
        """An element of a tensor in the words of the operator, and the inputs that made it."""

    def listed(self, what: str) -> list[dict[str, Any]]:
        """Its items of a list of `kdaverify list` that each operator has its own of.

        Args:
            what: "regimes", "probes" or "panels", the number of fixed problems of a profile.
        """
        return []

    def chunk_size(self, contract: Any) -> int:
        """Tokens that a kernel of this contract takes together; 1 where it takes each by itself."""
        return 1

    def chunk_sizes(self, problem: Any, contract: Any) -> Sequence[int]:
        """Those of kernels that a fault is looked for in: the declared first, then what the
        contract permits besides, where it cuts the sequences of the problem elsewhere.
        """
        return (1,)

    def related(self, adapter: Adapter) -> Sequence[str]:
        """Whose known faults an implementation may have, its own first."""
        return (self.name,)

    def simple_mistakes(self) -> Sequence[Fault]:
        """Mistakes that need no catalogue; none by default."""
        return ()

    def fault_catalogue(self) -> FaultCatalogue:
        """The faults that its suites are measured on; those of the catalogue by default."""
        from kdaverify.kills.known_faults import shipped_catalogue

        return shipped_catalogue(self.name)

    def baseline(self, call: Any, contract: Any, io: Format) -> Baseline | None:
        """A simpler algorithm beside a call, to report outputs with fewer digits; or None."""
        return None


DEFAULT: Final = "kda"
"""The operator of what names none: kernels without op=, records of the time before there were
others."""
OPERATORS: Final[dict[str, str | Operator]] = {
    "kda": "kdaverify.operators.kda.operator:KDA",
    "gate_softplus": "kdaverify.operators.pointwise.operator:GATE_SOFTPLUS",
    "gate_bounded": "kdaverify.operators.pointwise.operator:GATE_BOUNDED",
    "beta_sigmoid": "kdaverify.operators.pointwise.operator:BETA_SIGMOID",
    "l2norm": "kdaverify.operators.pointwise.operator:L2NORM",
    "short_conv": "kdaverify.operators.short_conv.operator:SHORT_CONV",
    "gated_rms_norm": "kdaverify.operators.gated_norm.operator:GATED_RMS_NORM",
    "layer": "kdaverify.operators.layer.operator:LAYER",
    "attention": "kdaverify.operators.attention.dense:ATTENTION",
    "mla_decode": "kdaverify.operators.attention.decode:MLA_DECODE",
    "sparse_attention": "kdaverify.operators.attention.sparse:SPARSE",
    "merge_state": "kdaverify.operators.attention.merge:MERGE_STATE",
}
"""Where each operator is, by name; imported when it is first needed."""


def register(operator: Operator) -> None:
    """Registers the operator of an implementation, in the file or package of `--impl`."""
    OPERATORS[operator.name] = operator


def operator_named(name: str) -> Operator:
    """The operator of a problem's `op`.

    Raises:
        ProblemError: there is none.
    """
    if name not in OPERATORS:
        raise ProblemError(f"op: wanted one of {', '.join(OPERATORS)}, got {name!r}")
    found = OPERATORS[name]
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = OPERATORS[name] = getattr(import_module(module), attribute)
    return found


def call_operator(name: str) -> CallOperator:
    """The operator of this name, one that adapters implement.

    Raises:
        ProblemError: there is none.
    """
    found = operator_named(name)
    if not isinstance(found, CallOperator):
        raise ProblemError(
            f"op: {name} is no operator of whole calls; an implementation exposes it beside one"
        )
    return found


def operator_of(problem: Any) -> Operator:
    """The operator that a problem is one of."""
    return operator_named(problem.op)


def cost_of(text: str) -> float:
    """What judging the problem of this JSON costs; 0 where there is none."""
    problem = problem_from_json(text) if text else None
    return 0.0 if problem is None else operator_of(problem).cost(problem)


def problem_from_json(text: str) -> Any:
    """The problem that a `to_json` wrote, of whichever operator; one that names none is of KDA.

    Raises:
        ProblemError: the text is no JSON object, or a field is missing, unknown or wrong.
    """
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    op = given.get("op", DEFAULT) if isinstance(given, dict) else DEFAULT
    return operator_named(op if op in OPERATORS else DEFAULT).problem.from_json(text)
