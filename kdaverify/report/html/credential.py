"""What the harness itself is worth: how many planted faults it catches, and how many legal kernels it accuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import kdaverify

NAME = "kill_matrix.json"


class CredentialError(ValueError):
    """A kill matrix that cannot be read; the message names the file and what is wrong."""


class Credential(BaseModel):
    """The kill matrix in figures.

    Args:
        total, killed: planted faults, and those that were rejected.
        legal_runs, false_alarms: runs of legal kernels, and those that were rejected.
        faults: one entry each, as the file has it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    total: int = Field(ge=0)
    killed: int = Field(ge=0)
    legal_runs: int = Field(ge=0)
    false_alarms: int = Field(ge=0)
    faults: dict[str, Any] | list[Any] = Field(default_factory=list[Any])


def credential() -> Credential | None:
    """The kill matrix that ships with this version; None where there is none.

    Raises:
        CredentialError: it is malformed.
    """
    package = Path(kdaverify.__file__).parent
    path = next((path for path in (package / NAME, package.parent / "reports" / NAME) if path.is_file()), None)
    if path is None:
        return None
    try:
        return Credential.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise CredentialError(f"{path}: {where}: {first['msg']}; `python -m benchmarks.kill_matrix` writes it") from None
