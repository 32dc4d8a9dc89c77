"""What every problem has: one canonical JSON, an id made of it, and a reader of it."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class ProblemError(ValueError):
    """A problem that cannot be tested; the message names the field, what came and what to do."""


class Canonical(BaseModel):
    """A frozen model whose JSON is the problem itself.

    Args:
        op: the operator; dtype: the format of what it computes with; seed: of every random number.
        omits_defaults: whether its JSON omits fields with defaults, or only absent ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    # Each operator narrows these to its own choices, which only Any lets it.
    op: Any
    dtype: Any
    seed: Any
    omits_defaults: ClassVar[bool] = False

    @property
    @abstractmethod
    def stem(self) -> str:
        """The readable part of the id."""

    @property
    @abstractmethod
    def regime(self) -> str:
        """What a record calls the regime of its values."""

    def describe(self) -> str:
        """The problem in words, for messages."""
        return self.stem

    @property
    def id(self) -> str:
        """The stem and 10 hexadecimal digits of the SHA-256 of `to_json()`."""
        return f"{self.stem}-{hashlib.sha256(self.to_json().encode()).hexdigest()[:10]}"

    def to_json(self) -> str:
        """The one canonical form: sorted keys, no spaces."""
        fields = self.model_dump(
            mode="json", exclude_none=True, exclude_defaults=self.omits_defaults
        )
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The problem that `to_json` wrote.

        Raises:
            ProblemError: the text is no JSON object, or a field is missing, unknown or wrong.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ProblemError(
                f"problem: {explain(error)}; write it with {cls.__name__}(...).to_json()"
            ) from None

    def replace(self, **changes: Any) -> Self:
        """The same problem with some fields changed, checked again."""
        return type(self)(**{**self.model_dump(), **changes})


def explain(error: ValidationError) -> str:
    """Every field that is wrong, in one line."""
    parts: list[str] = []
    for item in error.errors(include_url=False):
        where = ".".join(str(step) for step in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        parts.append(f"{where}: {message} (got {item['input']!r})" if where else message)
    return "; ".join(parts)
