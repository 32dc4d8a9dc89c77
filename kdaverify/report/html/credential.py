"""What the harness is worth: planted faults it catches, conforming kernels it rejects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import kdaverify

NAME = "kill_matrix.json"
SMOKE: Final = "smoke"


class CredentialError(ValueError):
    """A kill matrix that cannot be read; the message names the file and what is wrong."""


class CredentialFault(BaseModel):
    """One planted fault.

    Args:
        id, stage, title: what it is, and where.
        killed: whether it was rejected.
        why: of one that was not.
        profile: under which that was decided.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    stage: str = ""
    title: str = ""
    killed: bool
    why: str = ""
    profile: str = ""


class ConformingRun(BaseModel):
    """Runs of one conforming kernel under one profile, and those that were rejected."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    profile: str
    runs: int = Field(ge=0)
    false_alarms: tuple[Any, ...] = ()


@dataclass(frozen=True)
class ProfileCredential:
    """What was measured under one profile: faults caught, and conforming kernels rejected."""

    profile: str
    caught: int
    total: int
    runs: int
    rejected: int


class Credential(BaseModel):
    """The kill matrix in figures.

    Args:
        profile: what survived smoke was tested under this one.
        total, killed: planted faults, and those that were rejected.
        killed_under_smoke: of these, by smoke alone; None where that is not known.
        legal_runs, false_alarms: runs of conforming kernels, and those that were rejected.
        unfinished: faults that were not tested in full, and are not among the total.
        faults: each of the total.
        conforming: runs of conforming kernels by profile.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    profile: str = ""
    total: int = Field(ge=0)
    killed: int = Field(ge=0)
    killed_under_smoke: int | None = None
    legal_runs: int = Field(ge=0)
    false_alarms: int = Field(ge=0)
    unfinished: int = Field(default=0, ge=0)
    faults: tuple[CredentialFault, ...] = ()
    conforming: tuple[ConformingRun, ...] = ()

    def under(self, profile: str) -> ProfileCredential | None:
        """The same for one profile; None where the matrix was not measured under it."""
        runs = [run for run in self.conforming if run.profile == profile]
        caught = (
            self.killed
            if profile == self.profile
            else self.killed_under_smoke
            if profile == SMOKE
            else None
        )
        if caught is None or not profile:
            return None
        alarms = sum(len(run.false_alarms) for run in runs)
        return ProfileCredential(profile, caught, self.total, sum(run.runs for run in runs), alarms)

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
    path = next(
        (path for path in (package / NAME, package.parent / "reports" / NAME) if path.is_file()),
        None,
    )
    if path is None:
        return None
    try:
        return Credential.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise CredentialError(
            f"{path}: {where}: {first['msg']}; `kdaverify kill-matrix` writes it"
        ) from None
