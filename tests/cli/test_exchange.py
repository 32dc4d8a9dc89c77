"""`kdaverify export` and `score`: with a kernel that ran somewhere else, the verdicts are those of
one that ran here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdaverify.adapters.declaration import Declaration
from kdaverify.operators.kda.commands.declaration import OPTIONS
from kdaverify.verdicts.record import read
from kdaverify.verdicts.verdict import Verdict
from tests.rows import ROOT

pytestmark = pytest.mark.whole_run

Cli = Callable[..., tuple[int, str, str]]
Done = subprocess.CompletedProcess[str]

# Those that call in every way: once, resumed, packed; the others test more of the same.
SHIPPED = ("conventions", "packing", "resume", "state")
DECLARED = (
    "--name",
    "port",
    "--dtype",
    "bf16",
    "--contract",
    "chunk64-bf16",
    "--packing",
    "cu_seqlens",
    "--state",
    "vk",
)
# Wrong where heads are grouped, and raises at one scale: every kind of verdict has to survive the
# journey.
PORT = """
import torch
import kdaverify as kv
from kdaverify.adapters.eager import EAGER
from oracles.inputs import Inputs
torch.set_num_threads(1)

@kv.kernel(name="port", contract="chunk64-bf16", state="vk", packing="cu_seqlens", dtypes=("bf16",))
def port(q, k, v, g, beta, *, scale, initial_state, cu_seqlens):
    if scale == 0.5:
        raise ValueError("a half")
    state = None if initial_state is None else initial_state.mT.contiguous()
    call = Inputs(q, k, v, g, beta, scale=scale, initial_state=state, cu_seqlens=cu_seqlens)
    out = EAGER.forward(call)
    return out.o * (1 if v.shape[2] == q.shape[2] else 1.02), out.final_state.mT
"""
# The command line with the suites of this folder, in one process.
START = """
import sys, kdaverify
from pathlib import Path
from rich.console import Console
kdaverify.suites_folder = lambda: Path("suites").resolve()
from kdaverify.cli import apart, run
apart.judge_apart = lambda request: run.run(request, Console(width=160))
from kdaverify.cli.app import main
main()
"""
# What the journey may change in a row; where the kernel raised, nobody says on which device.
APART: dict[str, Any] = {
    "diagnosis": "",
    "duration_s": 0.0,
    "versions": {},
    "device": "",
    "mode": "",
    "replay": "",
}


def python(folder: Path, *words: str) -> Done:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def rows(path: Path) -> list[Verdict]:
    return list(read(path).verdicts)


def alike(verdict: Verdict) -> Verdict:
    """The row without where it ran; a message says which file it came from."""
    message = verdict.message.partition("\n  from ")[0]
    return verdict.model_copy(
        update={**APART, "message": message.partition(".safetensors: ")[2] or message}
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an export of shipped suites, its outputs there."""
    folder = tmp_path_factory.mktemp("exchange")
    (folder / "port.py").write_text(PORT)
    (folder / "suites").mkdir()
    for name in SHIPPED:
        shutil.copy(ROOT / f"suites/kda/test_{name}.py", folder / "suites")
    done = python(folder, "-c", START, "export", "cases", *DECLARED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "python run.py my_module:my_function" in done.stdout
        and "kdaverify score cases" in done.stdout
    )
    ran = python(folder, "cases/run.py", "port.py:port")
    assert ran.returncode == 0, ran.stderr
    return folder


def test_export_run_and_score_give_the_rows_of_verify(exported: Path) -> None:
    here = python(
        exported,
        "-c",
        START,
        "verify",
        "--impl",
        "port.py:port",
        "--record",
        "here.jsonl",
        "--workers",
        "0",
        "--diagnosis",
        "0",
    )
    there = python(
        exported,
        "-c",
        START,
        "score",
        "cases",
        "--record",
        "there.jsonl",
        "--json",
        "there.json",
        "--workers",
        "0",
    )
    assert (here.returncode, there.returncode) == (1, 1), there.stdout + there.stderr
    reported, brought = rows(exported / "here.jsonl"), rows(exported / "there.jsonl")
    assert [alike(verdict) for verdict in brought] == [alike(verdict) for verdict in reported]
    assert {verdict.status.value for verdict in brought} >= {"PASS", "FAIL", "ERROR"}
    assert {(verdict.mode, verdict.device) for verdict in brought if verdict.ratio is not None} == {
        ("offline", "cpu")
    }
    assert {
        verdict.versions["kernel"].split(",")[0] for verdict in brought if verdict.ratio is not None
    } == {"port.py:port"}
    summary = json.loads((exported / "there.json").read_text())
    assert (summary["decision"], summary["implementations"][0]["name"]) == ("reject", "port")
    line = next(verdict.replay for verdict in brought if verdict.status == "FAIL")
    assert line.startswith("kdaverify replay --impl offline:score=cases --property ")


SUITES = """
from kdaverify.problems import Problem
REGIMES = dict(gate="mild", key="random", beta="uniform", state="random", value="normal")
def test_{0}(judge):
    for seed in (1, 2):
        judge(Problem(B=1, T=7, H=1, HV=1, K=8, V=3, dtype="bf16", seed=seed, **REGIMES){1})
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for suites of two problems each."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "port.py").write_text(PORT)
    (folder / "suites").mkdir()
    for name, detail in (("forward", ""), ("resume", ', cut=3, way="chunk-chunk"')):
        (folder / f"suites/test_{name}.py").write_text(SUITES.format(name, detail))
    (folder / "suites/test_conventions.py").write_text(
        "def test_conventions(judge): judge.conventions()\n"
    )
    done = python(folder, "-c", START, "export", "cases", *DECLARED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 cases, 10 calls" in done.stdout, done.stdout
    assert python(folder, "cases/run.py", "port.py:port").returncode == 0
    return folder


def keep(outputs: Path) -> None:
    del outputs


def remove(outputs: Path) -> None:
    (outputs / "00005-0.safetensors").unlink()


def cut(outputs: Path) -> None:
    path = outputs / "00005-0.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def add(outputs: Path) -> None:
    shutil.copy(outputs / "00005-0.safetensors", outputs / "00099-0.safetensors")


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (keep, 0, "port: ACCEPT"),
        (
            remove,
            3,
            "1 case without outputs: outputs/00005-0.safetensors: is not there; run run.py",
        ),
        (
            cut,
            1,
            (
                "outputs/00005-0.safetensors: wanted a safetensors file, got one that is cut off or"
                " damaged"
            ),
        ),
        (
            add,
            2,
            "kdaverify: again/outputs/00099-0.safetensors: no call of this export has such outputs",
        ),
    ],
)
def test_the_exit_code_says_what_came_back(
    small: Path, tmp_path: Path, spoil: Callable[[Path], None], code: int, said: str
) -> None:
    shutil.copytree(small / "suites", tmp_path / "suites")
    shutil.copytree(small / "cases", tmp_path / "again")
    spoil(tmp_path / "again/outputs")
    done = python(tmp_path, "-c", START, "score", "again", "--workers", "0")
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ["export", "cases", "--layout", "tbhd"],
            "layout: wanted one of bthd, bhtd, thd, got 'tbhd'",
        ),
        (["export", "cases", "--dtype", "fp8"], "dtypes: wanted some of fp64"),
        (["export", "cases", "--profile", "huge"], "--profile: no profile named 'huge'"),
        (["export", "a,b"], "a,b: wanted a name without commas"),
        (["export", "."], ".: is not empty; name a new folder"),
        (
            ["score", "nowhere"],
            "nowhere/manifest.json: no such file; `kdaverify export nowhere` makes the folder",
        ),
        (["score", ".", "--workers", "many"], "--workers: wanted a number or auto"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(cli: Cli, words: list[str], complaint: str) -> None:
    code, _, err = cli(*words)
    assert code == 2
    assert complaint in err
    assert err.count("\n") == 1
    assert not Path("cases").exists()


@pytest.mark.parametrize("verb", ["export", "score"])
def test_help_teaches_the_way_there_and_back(cli: Cli, verb: str) -> None:
    code, out, _ = cli(verb, "--help")
    assert code == 0
    assert f"kdaverify {verb} cases" in out
    assert "Exit codes: 0" in out


def test_options_of_a_declaration_have_its_defaults() -> None:
    # Written out where the command line is made, which starts without torch.
    of_declarations = {name: one.default for name, one in Declaration.model_fields.items()}
    stated = {one.name: one.default for one in OPTIONS if one.default is not None}
    assert len(stated) > 10
    assert stated == {name: of_declarations[name] for name in stated}
