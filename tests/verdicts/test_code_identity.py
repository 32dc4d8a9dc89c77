"""The code that was judged is known by the content of its local modules; a gate says where it is
mixed, or has changed since.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Final

import pytest

from kdaverify.adapters.local_modules import local_modules
from kdaverify.adapters.registry import find, source_of
from kdaverify.checks.status import Status
from kdaverify.verdicts.code_identity import CodeIdentity, identity_of
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.gate import GateCriteria, Gated, gate
from kdaverify.verdicts.record import RecordWriter, read
from kdaverify.verdicts.seal import Account, Expected
from tests.rows import row

KERNEL: Final = """
import json, torch, kdaverify
from helper import half
@kdaverify.kernel
def port(q, k, v, g, beta, *, scale):
    from pieces.late import late
    from pieces.bare.inner import x
    import importlib
    return importlib.import_module("named"), late, half
"""
EXPECTED: Final = Expected("port", ("fp32",), ("o",), ("forward",))


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a port of four files; the session runs in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("helper", "named", "pieces", "pieces.late", "pieces.deep"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "pieces").mkdir()
    files = {"port.py": KERNEL, "helper.py": "half = 0.5", "named.py": "", "unused.py": ""}
    pieces = {
        "pieces/__init__.py": "",
        "pieces/late.py": "from . import deep\nlate = 1",
        "pieces/deep.py": "from ..nowhere import x",
        "pieces/bare/inner.py": "import jaxlib.mlir.ir",
    }
    (tmp_path / "pieces" / "bare").mkdir()
    for name, text in {**files, **pieces}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    about = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=main")
    command = ("git", "-C", str(folder), *about, *words)
    subprocess.run(command, check=True, capture_output=True)


def test_local_modules_are_those_that_are_imported_wherever_the_import_stands(port: Path) -> None:
    find("port.py")
    names = [path.relative_to(port).as_posix() for path in local_modules(Path("port.py"))]
    assert names == [
        "helper.py",
        "named.py",
        "pieces/__init__.py",
        "pieces/bare/inner.py",
        "pieces/deep.py",
        "pieces/late.py",
        "port.py",
    ]


@pytest.mark.parametrize("spec", ["eager", "fault:H1"])
def test_what_ships_has_a_version_and_no_local_module(spec: str) -> None:
    found = identity_of(spec)
    assert (found.files, found.version.startswith("kdaverify ")) == ({}, True)


def test_an_option_that_names_the_kernel_is_followed() -> None:
    assert source_of("elsewhere:python=/usr/bin/python3,kernel=ports/mine.py:run") == Path(
        "ports/mine.py"
    )
    assert source_of("fla_port:module=my.port,gate=log") == "my.port"
    assert source_of("fla:autotune=0") == "kdaverify.adapters.fla.adapter"


def test_the_digest_is_of_names_and_contents_wherever_they_lie(port: Path) -> None:
    before = identity_of("port.py")
    assert (before.folder, before.changed_since()) == (".", ())
    (port / "unused.py").write_text("1")
    assert identity_of("port.py") == before
    (port / "pieces" / "late.py").write_text("from . import deep\nlate = 2")
    after = identity_of("port.py")
    assert after.digest != before.digest
    assert before.changed_since() == ("pieces/late.py",)


def test_what_is_not_here_is_not_called_changed(
    port: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = identity_of("port.py")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert found.changed_since() == ()
    monkeypatch.chdir(port)
    (port / "helper.py").unlink()
    assert found.changed_since() == ("helper.py",)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_git_says_the_commit_and_which_judged_files_no_commit_holds(port: Path) -> None:
    assert identity_of("port.py").commit == ""
    git(port, "init", "-q")
    git(port, "add", "helper.py", "named.py", "pieces", "port.py")
    git(port, "commit", "-q", "-m", "x")
    git(port, "tag", "v7")
    clean = identity_of("port.py")
    assert (clean.commit, clean.uncommitted, clean.is_dirty) == ("v7", (), False)
    (port / "helper.py").write_text("half = 1")
    git(port, "rm", "-q", "--cached", "named.py")
    dirty = identity_of("port.py")
    assert (dirty.commit, dirty.uncommitted, dirty.is_dirty) == (
        "v7-dirty",
        ("helper.py", "named.py"),
        True,
    )
    assert "git v7-dirty (modified), not committed: helper.py, named.py" in str(dirty)


def gated(*judged: CodeIdentity | None, rules: str) -> Gated:
    for number, identity in enumerate(judged):
        writer = RecordWriter(Path(f"{number}.jsonl"))
        account = Account(
            harness="1",
            profile="smoke",
            expected=(EXPECTED,),
            judged={} if identity is None else {"port": identity},
        )
        writer.settle([row(Status.PASS, case=f"kda-{number}")], account)
    [found] = gate(
        [Path(f"{number}.jsonl") for number in range(len(judged))],
        GateCriteria(date(2026, 1, 1), rules),
    )
    return found


STRICT: Final = 'about = "strict"'
REPORTED: Final = 'about = "reported"\nmixed_versions = "report"'
OLDER: Final = REPORTED.replace('"report"', '"tell"')


def test_a_record_holds_the_identity_and_an_older_one_has_none(port: Path) -> None:
    identity = identity_of("port.py")
    assert gated(identity, rules="session").judged == (identity,)
    assert read(port / "0.jsonl").accounts[0].judged == {"port": identity}
    (port / "0.jsonl").unlink()
    old = gated(None, rules="session")
    assert (old.ruling, old.judged) == (Ruling.ACCEPT, ())


@pytest.mark.parametrize(
    ("text", "ruling"),
    [(STRICT, Ruling.INSUFFICIENT), (REPORTED, Ruling.ACCEPT), (OLDER, Ruling.ACCEPT)],
)
def test_a_gate_says_where_records_are_of_different_code(
    port: Path, text: str, ruling: Ruling
) -> None:
    (port / "rules.toml").write_text(text)
    first = identity_of("port.py")
    (port / "helper.py").write_text("half = 0.25")
    second = identity_of("port.py")
    found = gated(first, second, rules="rules.toml")
    said = (
        f"mixed versions: its code in 2 versions: {', '.join(sorted((first.short, second.short)))}"
    )
    assert (found.ruling, said in found.reasons) == (ruling, True), found.reasons
    assert (
        f"helper.py changed since it was judged as {first.short}; judge it again" in found.reasons
    )


def test_a_gate_says_where_the_code_of_some_sessions_is_unknown(port: Path) -> None:
    del port
    assert (
        "mixed versions: 1 of 2 sessions did not record which code they judged"
        in gated(identity_of("port.py"), None, rules="session").reasons
    )
