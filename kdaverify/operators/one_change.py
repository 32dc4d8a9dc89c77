"""Problems that differ from a given one in one thing, read off its fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

from kdaverify.problem_operator import ContrastAxis

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
