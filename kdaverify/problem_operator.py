"""What the machinery needs of the problems of an operator: how they are judged, made smaller
and distinguished, whether adapters implement the operator or expose it beside another.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_args

from pydantic import BaseModel

from kdaverify.canonical import Canonical

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.checks.location import Location, Step
    from kdaverify.diagnosis.question import DiagnosisCase, PropertyCase
    from oracles.signature import CallSignature

GENERAL: Final = "general"
"""The suites, and the group, of operators that have none of their own."""
BLOCKS: Final = (1, 16, 32, 64, 128, 1024)
"""Sizes of tiles: what a kernel does otherwise above one of them."""


@dataclass(frozen=True)
class ContrastAxis:
    """What can be changed of a problem by itself.

    Args:
        about: how the names of its traits begin.
        levels: changes, those first that separate most kinds of fault.
    """

    about: tuple[str, ...]
    levels: tuple[Mapping[str, Any], ...]


class Operator(abc.ABC):
    """One operator, or one of a group of operators with the same properties.

    Args:
        name: the `op` of its problems.
        about: what it computes, in one line for people.
        group: operators of a group have the same properties: `Property.group` names it.
        problem: the class of its problems.
        signature: the tensors of a call.
        staged: whether its calls have stages, so that a failure can be localised.
        hidden_stages: those that no kernel exposes, in order, found by outputs alone.
        is_stage: whether it is a stage itself, and a failure needs no localisation.
        has_known_bugs: whether the diagnosis can compare a failure with those of a catalogue.
        accuracy_fields: the fields that accuracy depends on most, for a line about many.
        resampled: whether borderline failures are tested again: tolerances are estimates.
    """

    name: str
    about: str = ""
    group: ClassVar[str] = GENERAL
    problem: ClassVar[type[Canonical]]
    signature: CallSignature
    staged: ClassVar[bool] = False
    hidden_stages: ClassVar[tuple[str, ...]] = ()
    is_stage: ClassVar[bool] = False
    accuracy_fields: ClassVar[tuple[str, ...]] = ()
    resampled: ClassVar[bool] = False
    has_known_bugs: ClassVar[bool] = False

    @abc.abstractmethod
    def refusal(self, adapter: Adapter, problem: Any) -> str | None:
        """Why an implementation cannot be tested on a problem; None if it can."""

    def fitted(self, adapter: Adapter, problem: Any, *, backward: bool) -> Any:
        """The nearest problem that the implementation takes; itself if nothing is declared."""
        return problem

    def within(self, adapter: Adapter, problem: Any) -> Any:
        """The nearest problem of the declared domain; the problem itself if none is declared."""
        return problem

    def cost(self, problem: Any) -> float:
        """Seconds, about, that judging a problem takes on one core; 0 for a moment."""
        return 0.0

    def is_early(self, problem: Any) -> bool:
        """Whether the gradients of a problem show most faults of a backward by themselves: they are
        tested with the plain calls.
        """
        return False

    @abc.abstractmethod
    def smaller(
        self, problem: Any, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Changes that make a problem smaller, largest first, with the details that follow."""

    def traits(self, problem: Any) -> Mapping[str, bool]:
        """Sentences about a problem, true or not, which distinguish failing cases from others."""
        fields = {
            name: value
            for name, value in problem.model_dump().items()
            if name not in ("op", "dtype", "seed")
        }
        sizes = {name: value for name, value in fields.items() if type(value) is int}
        named = {
            f"{name} = {value}": True
            for name, value in fields.items()
            if isinstance(value, bool | str)
        }
        return {
            **named,
            **{
                f"{name} > {block}": value > block
                for name, value in sizes.items()
                for block in BLOCKS
            },
        }

    def contrasts(self, problem: Any, detail: Mapping[str, Any]) -> Sequence[ContrastAxis]:
        """Changes of a problem in one thing each; which of them pass shows the dependence."""
        return one_change_each(
            problem, (change for change, own in self.smaller(problem, detail) if own == detail)
        )

    def levels(self, field: str) -> tuple[str, ...]:
        """The names a field of problems can have, in a map's order; () without such an order."""
        return ()

    def example(self) -> Canonical | None:
        """A small problem to start from; None where there is none."""
        return None

    def schema(self) -> dict[str, Any]:
        """The JSON schema of its problems."""
        return self.problem.model_json_schema()

    def stage_steps(self, adapter: Adapter, problem: Any, *, both_passes: bool) -> Iterator[Step]:
        """Every exposed stage, judged alone, in order; none where calls are not `staged`.

        Args:
            both_passes: whether the stages of the backward follow.
        """
        return iter(())

    def diagnosed(self, case: PropertyCase, judged: Adapter) -> DiagnosisCase:
        """A case with tensors, for diagnosing a failure of `judged`, where known bugs exist."""
        raise NotImplementedError(f"{self.name} has no known bugs")

    def varied(self, case: PropertyCase) -> Iterator[PropertyCase]:
        """Cases of the kind of a failing one, on which suspects that agree on it may differ."""
        for n in (1, 2):
            yield replace(case, problem=case.problem.replace(seed=case.problem.seed + n))

    def traced(self, case: PropertyCase, judged: Adapter, wrong: frozenset[str]) -> Location | None:
        """The hidden stage that wrong outputs point to by themselves, and why; None where to none.

        Args:
            wrong: the outputs and gradients of the case that are wrong.
        """
        del case, judged, wrong

    def explain_error(self, case: PropertyCase, judged: Adapter, *, until: float) -> str:
        """What wrong outputs of `judged` single out themselves, as a sentence; "" if nothing.

        Args:
            until: of the monotonic clock; what is begun is ended.
        """
        return ""


SIZES: Final = (64, 65, 1, 16, 17, 128, 2, 3)
"""Whole tiles, one more and less: what a fault of tiles depends on."""
SAME: Final = frozenset(("op", "dtype", "seed"))
"""Fields that say which kernel is called and with which random numbers."""


def one_change_each(problem: BaseModel, smaller: Iterable[Mapping[str, Any]]) -> list[ContrastAxis]:
    """An axis for every field, and for fields that change together.

    Args:
        smaller: changes that make the problem smaller, those of one thing each; they come first.
    """
    found = dict[frozenset[str], dict[str, Mapping[str, Any]]]()
    for change in (*smaller, *_other_values(problem)):
        found.setdefault(frozenset(change), {}).setdefault(str(change), change)
    return [ContrastAxis(("",), tuple(levels.values())) for levels in found.values()]


def _other_values(problem: BaseModel) -> Iterator[Mapping[str, Any]]:
    for name, field in type(problem).model_fields.items():
        if name in SAME:
            continue
        own = getattr(problem, name)
        yield from ({name: value} for value in _values(field.annotation) if value != own)


def _values(annotation: Any) -> tuple[Any, ...]:
    """Of a choice all, of a size some; none of what else there is."""
    if annotation is bool:
        return (False, True)
    return SIZES if annotation is int else get_args(annotation) if _is_choice(annotation) else ()


def _is_choice(annotation: Any) -> bool:
    values = get_args(annotation)
    return bool(values) and all(isinstance(value, str | int) for value in values)
