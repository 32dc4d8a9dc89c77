"""The published schema of a row, generated from the typed model."""

from __future__ import annotations

import json
from typing import Any

from kdaverify.verdicts.seal import SealedLine
from kdaverify.verdicts.verdict import SCHEMA, Verdict


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


def text() -> str:
    """What `reports/schema.json` holds."""
    return json.dumps(published(), indent=1) + "\n"
