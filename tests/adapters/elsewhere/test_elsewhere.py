"""A kernel in another interpreter: its own packages, its own death, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.registry import find
from kdaverify.checks.conventions import conventions
from kdaverify.checks.status import Status
from kdaverify.verdicts.judge import FatalRejection, Judge, Rejected
from kdaverify.verdicts.verdict import Verdict
from tests.adapters.standins import PACK, MakeProblem
from tests.interruptible import interruptible
from tests.processes import alive
from tests.rows import ROOT

pytestmark = pytest.mark.whole_run

KERNELS = ROOT / "tests/adapters/numpy_kda.py"
NEEDED = ("numpy", "numpy.libs", "safetensors", "ml_dtypes")
Named = Callable[..., Adapter]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of its own with NumPy and safetensors, and neither torch nor kdaverify."""
    folder = tmp_path_factory.mktemp("venv")
    try:
        venv.create(folder, symlinks=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no second venv can be made here: {error}")
    python = folder / "bin/python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        (place,) = [Path(entry) / name for entry in sys.path if (Path(entry) / name).is_dir()][
            :1
        ] or [None]
        if place is not None:
            (packages / name).symlink_to(place)
    tested = subprocess.run(
        [python, "-c", "import numpy, safetensors, ml_dtypes"], capture_output=True, check=False
    )
    if tested.returncode:
        pytest.skip(f"the second venv does not find its packages: {tested.stderr.decode()[-200:]}")
    return python


@pytest.fixture
def named(python: Path, tmp_path: Path) -> Iterator[Named]:
    """Makes adapters for functions of KERNELS, as the command line would; ends their processes."""
    made: list[Adapter] = []

    def call(function: str, **changes: str) -> Adapter:
        options = {
            "python": str(python),
            "kernel": f"{KERNELS}:{function}",
            "framework": "numpy",
            "packing": "cu_seqlens",
        }
        words = ",".join(
            f"{name}={value}"
            for name, value in {**options, "dtypes": "fp32+bf16", **changes}.items()
        )
        made.append(find(f"elsewhere:{words}"))
        return made[-1]

    yield call
    for adapter in made:
        adapter.end()


def judged(adapter: Adapter, *problems: Any) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for problem in problems:
        try:
            Judge(adapter, verdicts.append, "forward")(problem)
        except (Rejected, FatalRejection):
            continue
    return verdicts


def test_nothing_of_ours_is_there(python: Path) -> None:
    for module in ("torch", "kdaverify", "pytest"):
        tried = subprocess.run(
            [python, "-c", f"import {module}"], cwd=python.parent, capture_output=True, check=False
        )
        assert b"ModuleNotFoundError" in tried.stderr


def test_a_right_kernel_passes_in_all_formats_and_packed(
    named: Named, make_problem: MakeProblem
) -> None:
    adapter = named("kda")
    assert adapter.missing() is None
    small = {"B": 1, "T": 7, "H": 1, "HV": 2, "K": 4, "V": 3}
    problems = [
        make_problem(**small),
        make_problem(**small, dtype="bf16"),
        make_problem(**{**small, "T": sum(PACK) + 1}, lengths=PACK, state="random"),
    ]
    verdicts = judged(adapter, *problems)
    assert [verdict.status for verdict in verdicts] == [Status.PASS] * 6
    assert {(verdict.mode, verdict.device) for verdict in verdicts} == {("elsewhere", "cpu")}
    about = verdicts[0].versions
    assert set(about) == {"python", "numpy", "kernel"}
    assert "numpy_kda.py:kda in " in about["kernel"]


def test_every_convention_gets_there_and_back(named: Named, make_problem: MakeProblem) -> None:
    problem = make_problem(B=2, T=5, H=1, HV=2, K=4, V=3)
    assert {
        verdict.status for verdict in judged(named("turned", layout="bhtd", state="vk"), problem)
    } == {Status.PASS}
    assert judged(named("turned"), problem)[0].status is not Status.PASS


def test_a_wrong_convention_is_found_by_calling_the_same_process(named: Named) -> None:
    found = conventions(named("kda", gate="log2"))
    assert (found.status, "behaves as gate='log'" in found.message) == (Status.CONVENTION, True)


def test_what_a_kernel_prints_is_no_answer(named: Named, make_problem: MakeProblem) -> None:
    assert {verdict.status for verdict in judged(named("talks"), make_problem(T=3))} == {
        Status.PASS
    }


@pytest.mark.parametrize(
    ("function", "status", "said"),
    [
        ("breaks", Status.ERROR, "the kernel raised ValueError: seven is too many (numpy_kda.py:"),
        ("exits", Status.CRASH, "the kernel's process ended with code 9 during this call"),
        ("aborts", Status.CRASH, "the kernel's process died of SIGABRT during this call"),
        ("hangs", Status.HANG, "within 3 s (option limit); its process was ended"),
    ],
)
def test_what_a_kernel_does_to_its_process_ends_one_case(
    named: Named, make_problem: MakeProblem, function: str, status: Status, said: str
) -> None:
    adapter = named(function, limit="3")
    good, bad = (
        make_problem(B=1, T=5, H=1, HV=1, K=4, V=3),
        make_problem(B=1, T=7, H=1, HV=1, K=4, V=3),
    )
    verdicts = judged(adapter, good, bad, good)
    assert [verdict.status for verdict in verdicts] == [
        Status.PASS,
        Status.PASS,
        status,
        Status.PASS,
        Status.PASS,
    ]
    assert said in verdicts[2].message


def test_a_kernel_that_cannot_be_imported_is_said_at_once_and_is_not_the_kernel_s_verdict(
    named: Named, make_problem: MakeProblem, tmp_path: Path
) -> None:
    port = tmp_path / "port.py"
    port.write_text("import nonesuch\n")
    adapter = named("kda", kernel=f"{port}:kda")
    for _ in range(2):
        with pytest.raises(
            AdapterError, match=r"did not get ready within 300 s: .*No module named 'nonesuch'"
        ):
            adapter.forward(make_problem(T=3).inputs())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": "/nowhere/python"}, "no interpreter /nowhere/python"),
        ({"kernel": "/nowhere/port.py:f"}, "no file /nowhere/port.py"),
        ({"framework": "jax"}, "has no jax: .* -m pip install jax"),
        ({"framework": "torch"}, "has no torch: .* -m pip install torch"),
    ],
)
def test_what_is_missing_there_is_named(named: Named, changes: dict[str, str], said: str) -> None:
    import re

    assert re.search(said, str(named("kda", **changes).missing()))


def test_no_process_and_no_file_is_left(named: Named, make_problem: MakeProblem) -> None:
    adapter = named("kda")
    adapter.forward(make_problem(T=3).inputs())
    folder = adapter._interpreter.folder  # pyright: ignore[reportAttributeAccessIssue]
    process = adapter._interpreter._process.pid  # pyright: ignore[reportAttributeAccessIssue]
    assert folder.is_dir() and alive(process)
    adapter.end()
    assert not folder.exists() and not alive(process)


LONELY = """
import sys
from kdaverify.adapters.registry import find
from kdaverify.problems import Problem
adapter = find(sys.argv[1])
adapter.environment()
print(adapter._interpreter._process.pid, flush=True)
adapter.forward(Problem.from_json(sys.argv[2]).inputs())
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_calls(
    python: Path, make_problem: MakeProblem, end: signal.Signals
) -> None:
    spec = f"elsewhere:python={python},kernel={KERNELS}:hangs,framework=numpy"
    problem = make_problem(B=1, T=7, H=1, HV=1, K=4, V=3).to_json()
    command = [sys.executable, "-c", LONELY, spec, problem]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    waiting = subprocess.Popen(
        interruptible(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=surroundings
    )
    assert waiting.stdout is not None
    process = int(waiting.stdout.readline())
    time.sleep(0.3)
    assert alive(process)
    waiting.send_signal(end)
    waiting.wait(timeout=120)
    waiting.stdout.close()
    until = time.monotonic() + 10
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(process)
