"""The request of one session, handed from the command line to the process that runs it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from kdaverify.limits import Limits


class Request(BaseModel):
    """One call of `kdaverify verify`, its defaults filled in.

    Args:
        seed: None for the profile's own.
        record: None to keep none.
        html: where the page of the run goes; None for none.
        workers: a number, or "auto".
        benchmark: whose errors published standards compare with; None for an emulated one.
        crash_folder: where a session leaves during which test it ended; None where nobody reads it.
        isolate: whether kernels run in worker processes; None leaves it to each.
        standards: whether every published standard has its row in the terminal summary.
        only: the properties that are tested; none for all.
        maxfail: failing tests after which no more are run; 0 for no limit.
        diagnosis: seconds, for each implementation that is rejected, to name what is wrong with it;
            None for a share of what the tests took.
    """

    model_config = ConfigDict(frozen=True)

    impls: tuple[str, ...]
    profile: str
    seed: int | None
    record: Path | None
    json_file: Path | None
    html: Path | None = None
    workers: str
    require_impl: bool
    benchmark: str | None = None
    isolate: bool | None = None
    crash_folder: Path | None = None
    limits: Limits = Limits()
    diagnosis: float | None = None
    standards: bool = False
    only: tuple[str, ...] = ()
    maxfail: int = 0

    def pytest_arguments(self, suites: Path, settings: Path) -> list[str]:
        """The same session, whatever folder it is started
        from and whatever pytest configuration that folder has.
        """
        seed = [] if self.seed is None else [f"--kda-seed={self.seed}"]
        return [
            *self._paths(suites),
            f"--config-file={settings}",
            f"--rootdir={suites}",
            f"--confcutdir={suites}",
            "-pkdaverify.plugin",
            "-pno:terminal",
            "-pno:cacheprovider",
            # Plugins of the user's environment cost every process their import (anyio 0.1 s), and
            # may reorder tests or warn (pytest-benchmark does, in every worker).
            "--disable-plugin-autoload",
            "-p_hypothesis_pytestplugin",
            "-pxdist.plugin",
            # The suites hold no assert statement; rewriting those of the package costs each process
            # a second of CPU before its first test.
            "--assert=plain",
            f"--numprocesses={self.workers}",
            "--dist=load",
            *(f"--impl={impl}" for impl in self.impls),
            f"--profile={self.profile}",
            *([] if self.record is None else [f"--record={self.record}"]),
            *seed,
            *([] if self.benchmark is None else [f"--benchmark={self.benchmark}"]),
            *(["--require-impl"] if self.require_impl else []),
            *({True: ["--isolate"], False: ["--no-isolate"], None: []}[self.isolate]),
            *([] if self.crash_folder is None else [f"--crash-folder={self.crash_folder}"]),
            *([f"--maxfail={self.maxfail}"] if self.maxfail else []),
            *([] if self.diagnosis is None else [f"--diagnosis={self.diagnosis}"]),
            f"--time-limit={self.limits.seconds}",
            f"--memory-limit={self.limits.gib}",
        ]

    def _paths(self, suites: Path) -> list[str]:
        """The folder of the suites, or the files of those that are tested, the conventions first:
        nothing is scored without them.
        """
        wanted = ("conventions", *self.only)
        return (
            [str(path) for name in wanted for path in sorted(suites.rglob(f"test_{name}.py"))]
            if self.only
            else [str(suites)]
        )
