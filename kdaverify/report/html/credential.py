"""What the harness itself is worth: how many planted faults it catches, and how many legal kernels it accuses."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import kdaverify

NAME = "kill_matrix.json"


class CredentialError(ValueError):
    """A kill matrix that cannot be read; the message names the file and what is wrong."""


class CredentialFault(BaseModel):
    """One planted fault.

    Args:
        id, stage, title: what it is, and where.
        killed: whether it was rejected.
        why: of one that was not.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    stage: str = ""
    title: str = ""
    killed: bool
    why: str = ""


class Credential(BaseModel):
    """The kill matrix in figures.

    Args:
        total, killed: planted faults, and those that were rejected.
        legal_runs, false_alarms: runs of legal kernels, and those that were rejected.
        unfinished: faults that were not asked everything, and are not among the total.
        faults: each of the total.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    total: int = Field(ge=0)
    killed: int = Field(ge=0)
    legal_runs: int = Field(ge=0)
    false_alarms: int = Field(ge=0)
    unfinished: int = Field(default=0, ge=0)
    faults: tuple[CredentialFault, ...] = ()

    @property
    def survivors(self) -> list[CredentialFault]:
        return [fault for fault in self.faults if not fault.killed]

    @property
    def stages(self) -> dict[str, tuple[int, int]]:
        """Faults killed, and all, by stage."""
        found: dict[str, tuple[int, int]] = {}
        for fault in self.faults:
            killed, total = found.get(fault.stage, (0, 0))
            found[fault.stage] = killed + fault.killed, total + 1
        return found


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
        raise CredentialError(f"{path}: {where}: {first['msg']}; `kdaverify kill-matrix` writes it") from None
