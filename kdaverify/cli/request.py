"""What one session is asked, handed from the command line to the process that runs it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Request(BaseModel):
    """One call of `kdaverify verify`, its defaults filled in.

    Args:
        seed: None for the profile's own.
        workers: a number, or "auto".
    """

    model_config = ConfigDict(frozen=True)

    impls: tuple[str, ...]
    profile: str
    seed: int | None
    record: Path
    json_file: Path | None
    workers: str
    require_impl: bool

    def pytest_arguments(self, suites: Path, settings: Path) -> list[str]:
        """The same session, whatever folder it is started from and whatever that folder tells pytest."""
        seed = [] if self.seed is None else [f"--kda-seed={self.seed}"]
        return [
            str(suites),
            f"--config-file={settings}",
            f"--rootdir={suites}",
            f"--confcutdir={suites}",
            "-pkdaverify.plugin",
            "-pno:terminal",
            "-pno:cacheprovider",
            f"--numprocesses={self.workers}",
            "--dist=worksteal",
            *(f"--impl={impl}" for impl in self.impls),
            f"--profile={self.profile}",
            f"--record={self.record}",
            *seed,
            *(["--require-impl"] if self.require_impl else []),
        ]
