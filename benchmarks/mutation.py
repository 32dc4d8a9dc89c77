"""Mutants of the harness itself: how many its own tests catch, by part.

    pip install 'kdaverify[mutation]'
    python -m benchmarks.mutation --only comparator --workers 2 --minutes 60 --out mutants.jsonl

Every worker changes one operator, number, keyword or decorator at a time in a copy of the tree and
runs the tests of that part, which must pass without a change. The order is seeded, so that a run
cut short is a fair sample. What is done is kept in --out, one line a mutant, and not done again.
Mutants of annotations are left out: nothing can see them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.progress import track

ROOT: Final = Path(__file__).parents[1]
TREE: Final = (
    "kdaverify",
    "oracles",
    "suites",
    "tests",
    "benchmarks",
    "reports",
    "conftest.py",
    "pyproject.toml",
)
SECONDS: Final = 180.0
SEED: Final = 0
PARTS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "comparator": (
        (
            "checks/compare.py",
            "checks/borderline.py",
            "checks/recheck.py",
            "checks/median_limit.py",
            "checks/negative_controls.py",
            "checks/bits.py",
        ),
        (
            "checks/test_compare.py",
            "checks/test_bits.py",
            "checks/test_negative_controls.py",
            "checks/test_recheck.py",
            "verdicts/test_recheck.py",
            "checks/test_laws.py",
        ),
    ),
    "activations": (
        ("operators/pointwise/elements.py", "operators/pointwise/tolerance.py"),
        ("operators/pointwise/test_elements.py", "operators/pointwise/test_activations.py"),
    ),
    "budgets": (
        (
            "budgets/standard.py",
            "budgets/gradient_standard.py",
            "budgets/budget.py",
            "budgets/bias.py",
            "budgets/statistics.py",
            "budgets/freedoms.py",
        ),
        (
            "budgets/test_allow.py",
            "budgets/test_statistics.py",
            "budgets/test_budget.py",
            "budgets/test_rms_limit.py",
            "budgets/test_standard.py",
            "budgets/test_declared_arithmetic.py",
            "budgets/test_ensemble.py",
            "checks/test_compare.py",
            "checks/test_gradients.py",
        ),
    ),
    "probes": (
        ("budgets/measures.py", "checks/probes.py"),
        ("budgets/test_measures.py", "checks/test_probes.py"),
    ),
    "laws": (("checks/laws/*.py",), ("checks/test_laws.py",)),
    "gate": (
        (
            "verdicts/decision.py",
            "verdicts/tally.py",
            "verdicts/gate.py",
            "verdicts/demands.py",
            "verdicts/waivers.py",
            "verdicts/ledger.py",
        ),
        ("verdicts", "cli/test_gate.py"),
    ),
    "records": (
        (
            "verdicts/record.py",
            "verdicts/lines.py",
            "verdicts/parquet.py",
            "verdicts/seal.py",
            "verdicts/merge.py",
            "verdicts/paired.py",
        ),
        ("verdicts",),
    ),
}
"""By part: its files, and the tests that answer for them."""


@dataclass(frozen=True)
class Mutant:
    """One change: the `occurrence`-th place of `file` where `operator` applies."""

    part: str
    file: str
    operator: str
    arguments: str
    occurrence: int
    line: int
    definition: str


@dataclass(frozen=True)
class Judged:
    """What the tests made of a mutant: killed,
    survived or incompetent (it does not even import), and its change.
    """

    mutant: Mutant
    outcome: str
    diff: str


def mutants(part: str) -> Iterator[Mutant]:
    """All of a part, file by file."""
    from cosmic_ray.commands import init
    from cosmic_ray.work_db import WorkDB, use_db

    found = sorted(path for name in PARTS[part][0] for path in (ROOT / "kdaverify").glob(name))
    for file in (str(path.relative_to(ROOT)) for path in found):
        hidden = _annotated(ROOT / file)
        with (
            tempfile.TemporaryDirectory() as folder,
            use_db(str(Path(folder) / "work.sqlite"), WorkDB.Mode.create) as work,
        ):
            init([ROOT / file], work, {})
            for change in (item.mutations[0] for item in work.work_items):
                if (change.start_pos[0], change.start_pos[1]) not in hidden:
                    arguments = json.dumps(change.operator_args)
                    yield Mutant(
                        part,
                        file,
                        change.operator_name,
                        arguments,
                        change.occurrence,
                        change.start_pos[0],
                        change.definition_name or "",
                    )


def _annotated(file: Path) -> set[tuple[int, int]]:
    """Places (line, column) inside annotations and docstrings."""
    found = set[tuple[int, int]]()
    for node in ast.walk(ast.parse(file.read_text())):
        for note in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(note, ast.AST):
                found |= {
                    (line, column)
                    for inner in ast.walk(note)
                    if isinstance(inner, ast.expr)
                    for line, column in _span(inner, file)
                }
    return found


def _span(node: ast.expr, file: Path) -> Iterator[tuple[int, int]]:
    lines = file.read_text().splitlines()
    for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
        first = node.col_offset if line == node.lineno else 0
        last = node.end_col_offset if line == node.end_lineno else len(lines[line - 1])
        yield from ((line, column) for column in range(first, (last or first) + 1))


def _tests(part: str) -> str:
    """The command that runs the tests of a part."""
    return " ".join(
        [
            sys.executable,
            "-m pytest -x -q -p no:cacheprovider",
            *(f"tests/{name}" for name in PARTS[part][1]),
        ]
    )


def fails_unchanged(part: str) -> str:
    """What the tests of a part say in this worker's copy without any change; "" where they pass."""
    from cosmic_ray.testing import run_tests

    os.chdir(_own_tree())
    outcome, output = run_tests(_tests(part), SECONDS)
    return "" if outcome.value == "survived" else output


def judge(mutant: Mutant) -> Judged:
    """Changes this worker's copy of the tree, runs the tests of the part, and changes it back."""
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import MutationSpec

    os.chdir(_own_tree())
    change = MutationSpec(
        module_path=mutant.file,
        operator_name=mutant.operator,
        occurrence=mutant.occurrence,
        start_pos=(0, 0),
        end_pos=(0, 1),
        operator_args=json.loads(mutant.arguments),
    )
    result = mutate_and_test([change], _tests(mutant.part), SECONDS)
    outcome = result.test_outcome.value if result.test_outcome else result.worker_outcome.value
    return Judged(mutant, outcome, result.diff or "")


def _own_tree() -> Path:
    """A copy of the tree for this process, made at its first mutant."""
    here = Path(tempfile.gettempdir()) / f"kdaverify-mutants-{os.getppid()}" / str(os.getpid())
    if not here.exists():
        here.mkdir(parents=True)
        for name in TREE:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, here / name)
        os.environ["KDAVERIFY_CACHE"] = str(here / "cache")
    return here


def run(todo: list[Mutant], *, workers: int, minutes: float, out: Path) -> None:
    """Judges mutants until all are or the time is up; every one is written when it is known.

    Tests that fail in a copy of the tree without any change would kill every mutant: they end the
    run before that.
    """
    ends = time.monotonic() + 60 * minutes
    try:
        with ProcessPoolExecutor(workers) as pool, out.open("a") as file:
            _pass_unchanged(pool, sorted({mutant.part for mutant in todo}))
            waiting = [pool.submit(judge, mutant) for mutant in todo]
            for done in track(as_completed(waiting), total=len(waiting), description="mutants"):
                file.write(json.dumps(asdict(done.result())) + "\n")
                file.flush()
                if time.monotonic() > ends:
                    pool.shutdown(cancel_futures=True)
                    break
    finally:
        shutil.rmtree(
            Path(tempfile.gettempdir()) / f"kdaverify-mutants-{os.getpid()}", ignore_errors=True
        )


def _pass_unchanged(pool: ProcessPoolExecutor, parts: list[str]) -> None:
    for part, output in zip(parts, pool.map(fails_unchanged, parts), strict=True):
        if output:
            sys.exit(
                f"mutation: the tests of {part} fail without any change; mend them first\n{output}"
            )


def read(out: Path) -> dict[Mutant, Judged]:
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    judged = [Judged(Mutant(**row["mutant"]), row["outcome"], row["diff"]) for row in rows]
    return {row.mutant: row for row in judged}


def show(judged: list[Judged]) -> None:
    """The score by part and file, then every survivor with its change."""
    counted = Counter((row.mutant.part, row.mutant.file, row.outcome) for row in judged)
    for part, file in sorted({key[:2] for key in counted}):
        killed, lived = counted[part, file, "killed"], counted[part, file, "survived"]
        print(
            f"{part:12s} {file:40s} {killed:4d} of {killed + lived:4d} killed,"
            f" {counted[part, file, 'incompetent']} incompetent"
        )
    for row in judged:
        if row.outcome == "survived":
            changed = [
                line
                for line in row.diff.splitlines()
                if line[:1] in "+-" and line[:3] not in {"+++", "---"}
            ]
            print(
                f"\n{row.mutant.file}:{row.mutant.line} {row.mutant.operator}", *changed, sep="\n  "
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(PARTS), help="one part (default all)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after (default 60)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("mutants.jsonl"),
        help="the journal, read and continued (default mutants.jsonl)",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="judge the survivors in --out once more, and nothing else",
    )
    reported = parser.parse_args()
    parts = [reported.only] if reported.only else sorted(PARTS)
    known = read(reported.out)
    every = [mutant for part in parts for mutant in mutants(part)]
    print(f"{len(every)} mutants, {sum(mutant in known for mutant in every)} judged before")
    lived = {mutant for mutant, row in known.items() if row.outcome == "survived"}
    todo = [
        mutant for mutant in every if (mutant in lived if reported.again else mutant not in known)
    ]
    random.Random(SEED).shuffle(todo)  # noqa: S311
    run(todo, workers=reported.workers, minutes=reported.minutes, out=reported.out)
    show([row for row in read(reported.out).values() if row.mutant.part in parts])


if __name__ == "__main__":
    main()
