"""What closes a record: number of rows, their hash, and facts of the session."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

from kdaverify.operator import DEFAULT
from kdaverify.verdicts.code_identity import CodeIdentity
from kdaverify.verdicts.verdict import SCHEMA, Verdict

BLANK: Final = "0" * 64
"""What stands in the place of a digest while it is taken."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Covered:
    """How many combinations of properties of a problem were judged together.

    Args:
        strength: how many properties: 2 or 3.
        judged: combinations of them that occur in a judged problem.
        possible: those that some problem has, inside the declared domain and at the costs of the
            profile.
    """

    strength: int
    judged: int
    possible: int

    @property
    def name(self) -> str:
        return {2: "pairs", 3: "triples"}[self.strength]

    @property
    def share(self) -> float:
        return self.judged / max(1, self.possible)

    def __str__(self) -> str:
        return (
            f"{self.judged:,} of {self.possible:,} {self.name} of properties judged together"
            f" ({math.floor(1000 * self.share) / 10:g} %)"
        )


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Expected:
    """What must be shown before an implementation is accepted.

    Args:
        implementation: its name.
        dtypes, outputs: every pair of them needs a pass.
        properties: each of them needs a pass.
        not_applicable: properties that the implementation declares it does not have, and in which
            words; `excused` in records of version 0.2 and before.
        outside: problems that it declares it does not take, one phrase each.
        covered: how many combinations of properties were judged.
        op: the operator that it implements.
    """

    implementation: str
    dtypes: tuple[str, ...]
    outputs: tuple[str, ...]
    properties: tuple[str, ...]
    not_applicable: Mapping[str, str] = Field(
        default_factory=dict[str, str], validation_alias=AliasChoices("not_applicable", "excused")
    )
    outside: tuple[str, ...] = ()
    covered: tuple[Covered, ...] = ()
    op: str = DEFAULT


class Account(BaseModel):
    """What a session says beside its rows: with it they decide the same later, elsewhere.

    Args:
        harness: version of kdaverify.
        profile, seed: of the session.
        finished: when it ended, in UTC, as ISO 8601.
        expected: what it wanted shown, by implementation.
        trouble: what went wrong in the harness, by implementation, one sentence each.
        judged: the code of every implementation; {} in records of the time before it was recorded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    harness: str = ""
    profile: str = ""
    seed: int = 0
    finished: str = ""
    expected: tuple[Expected, ...] = ()
    trouble: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    judged: dict[str, CodeIdentity] = Field(default_factory=dict)


class Seal(BaseModel):
    """The last line of a .jsonl record, and an entry in the footer of a .parquet one.

    Args:
        schema_version: of the newest row.
        rows: of the sessions it closes: the last ones before it.
        digest: SHA-256 in hex, taken with BLANK in its own place: of all up to the end of this
            line, or of the whole .parquet file.
        accounts: of the sessions whose rows these are; a .jsonl file has one seal for each.
        open_rows: how many of the rows are of sessions that never closed their record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = Field(default=SCHEMA, le=SCHEMA)
    rows: int = Field(ge=0)
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    accounts: tuple[Account, ...] = ()
    open_rows: int = Field(default=0, ge=0)


class SealedLine(BaseModel):
    """A seal as a line of its own, which no verdict can be taken for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seal: Seal


def published() -> dict[str, Any]:
    """The JSON schema of a line of a record: a verdict, or the seal that closes a session's."""
    row = Verdict.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
    seal = SealedLine.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
    inner = {**row.pop("$defs"), **seal.pop("$defs"), "Verdict": row, "SealedLine": seal}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a kdaverify record, version {SCHEMA}",
        "oneOf": [{"$ref": "#/$defs/Verdict"}, {"$ref": "#/$defs/SealedLine"}],
        "$defs": dict(sorted(inner.items())),
    }


def schema_text() -> str:
    """What `reports/schema.json` holds."""
    return json.dumps(published(), indent=1) + "\n"
