"""The code that was judged: local modules by content, their version, and git's state."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

# A repository on a drive that does not answer costs the name of the commit, not the session.
GIT_SECONDS: Final = 10
# Hex digits of a digest that people are shown: 48 bits, by which no two files of a run are alike.
SHORT: Final = 12
# Files named in a sentence; of the others their number.
MOST_NAMED: Final = 3


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CodeIdentity:
    """The identity of what was judged.

    Args:
        digest: SHA-256 in hex of the names and contents of `files`; "" where there are none, as for
            installed packages.
        files: SHA-256 in hex of every local module, by its name below `folder`.
        folder: of the files, as seen from where the session ran.
        version: of the implementation's package; "" where it states none.
        commit: `git describe --always --tags --dirty` of the folder; "" outside of a repository.
        uncommitted: files that no commit holds in this form.
    """

    digest: str = ""
    files: Mapping[str, str] = Field(default_factory=dict[str, str])
    folder: str = ""
    version: str = ""
    commit: str = ""
    uncommitted: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line for people."""
        count = len(self.files)
        if count:
            code = f"{count} local module{'' if count == 1 else 's'}, sha256 {self.digest[:SHORT]}"
        else:
            code = ""
        left = f"not committed: {_listed(self.uncommitted)}" if self.uncommitted else ""
        repository = (
            f"git {self.commit}{' (modified)' if self.is_dirty else ''}"
            if self.commit
            else ""
            if not count
            else "no git repository"
        )
        version = f"version {self.version}" if self.version else ""
        return ", ".join(filter(None, (code, version, repository, left))) or "unknown"

    @property
    def is_dirty(self) -> bool:
        return self.commit.endswith("-dirty") or bool(self.uncommitted)

    @property
    def short(self) -> str:
        """What distinguishes two identities."""
        return self.digest[:SHORT] if self.digest else self.version

    def changed_since(self) -> tuple[str, ...]:
        """The files whose content differs from the judged one; () where none is here."""
        here = {name: Path(self.folder) / name for name in self.files}
        if not any(path.is_file() for path in here.values()):
            return ()
        return tuple(
            name
            for name, path in here.items()
            if not path.is_file() or file_digest(path) != self.files[name]
        )


def identity_of(spec: str) -> CodeIdentity:
    """The identity of an implementation that `find` has found, as its files are now.

    Args:
        spec: what `find` found it by.
    """
    # The command line starts without torch.
    import kdaverify
    from kdaverify.adapters.local_modules import local_modules
    from kdaverify.adapters.registry import source_of

    source = source_of(spec)
    paths = () if source is None else local_modules(source)
    if not paths:
        return CodeIdentity(
            version=_version(source) if source else f"kdaverify {kdaverify.__version__}"
        )
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    files = {path.relative_to(folder).as_posix(): file_digest(path) for path in paths}
    return CodeIdentity(
        digest=hashlib.sha256(
            "".join(f"{name}\0{digest}\n" for name, digest in files.items()).encode()
        ).hexdigest(),
        files=files,
        folder=Path(os.path.relpath(folder)).as_posix(),
        version=_version(source) if isinstance(source, str) else "",
        commit=git(folder, "describe", "--always", "--tags", "--dirty"),
        uncommitted=_uncommitted(folder, [*files]),
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file in hex."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def mixed_identities(found: Sequence[CodeIdentity]) -> tuple[str, ...]:
    """A sentence where these are not all of the same code."""
    short = sorted({one.short for one in found})
    return (f"its code in {len(short)} versions: {', '.join(short)}",) if len(short) > 1 else ()


def changed(found: Sequence[CodeIdentity]) -> tuple[str, ...]:
    """A sentence for every identity whose files have changed since they were judged."""
    reported = {one.digest: one.changed_since() for one in found}
    return tuple(
        f"{_listed(names)} changed since it was judged as {digest[:SHORT]}; judge it again"
        for digest, names in reported.items()
        if names
    )


def _listed(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMED
    return ", ".join((*names[:MOST_NAMED], *([f"{left} more"] if left > 0 else [])))


def _version(module: Path | str | None) -> str:
    """Of a module's package: what it says itself, or what it was installed as."""
    top = str(module).partition(".")[0]
    said = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(said, str):
        return f"{top} {said}"
    try:
        return f"{top} {metadata.version(top)}"
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def _uncommitted(folder: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Files that are changed, new or ignored."""
    lines = git(
        folder, "status", "--porcelain", "-z", "--ignored", "--untracked-files=all", "--", *names
    )
    prefix = git(folder, "rev-parse", "--show-prefix")
    return tuple(sorted({line[3:].removeprefix(prefix) for line in lines.split("\0")} & {*names}))


def git(folder: Path, *words: str) -> str:
    """What git says of a folder; "" where there is no git, or no repository."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    try:
        # A read of the index must not write it: somebody else may hold its lock.
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip("\n") if done.returncode == 0 else ""
