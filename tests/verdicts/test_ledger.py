"""The ledger is a ratchet: what got worse over the panel is rejected, what was not run is missed,
and nothing loosens unseen.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kdaverify.checks.status import Status
from kdaverify.verdicts.gate import GateCriteria
from kdaverify.verdicts.ledger import Ledger, file_name
from kdaverify.verdicts.ledger_update import updates
from kdaverify.verdicts.record import RecordError, RecordWriter
from kdaverify.verdicts.toml_file import FileError
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row
from tests.verdicts.gated import GOOD, TODAY, closed, decided


def panel(
    factor: float = 1.0, *, scatter: float = 0.0, cases: int = 16, dtype: str = "bf16"
) -> list[Verdict]:
    """Verdicts of a fixed panel, `factor` times the error that was accepted, within `scatter`."""
    draw = random.Random(5)
    shares = [0.1 + 0.02 * i for i in range(cases)]
    return [
        row(
            property="panel",
            case=f"kda-{i}",
            dtype=dtype,
            output=output,
            ratio=share * factor * draw.uniform(1 - scatter, 1 + scatter),
        )
        for i, share in enumerate(shares)
        for output in ("o", "final_state")
    ]


def accepted(tmp_path: Path) -> Ledger:
    """A ledger of `panel()`."""
    folder = tmp_path / "ledger"
    folder.mkdir(exist_ok=True)
    for update in updates([closed(tmp_path / "accepted.parquet", [*GOOD, *panel()])], folder):
        update.path.write_text(update.after)
    return Ledger(folder)


def against(tmp_path: Path, rows: list[Verdict]) -> tuple[int, str]:
    return decided(
        closed(tmp_path / "r.parquet", [*GOOD, *rows]),
        question=GateCriteria(TODAY, ledger=accepted(tmp_path)),
    )


@pytest.mark.parametrize(("factor", "scatter"), [(1.0, 0.0), (0.9, 0.0), (1.0, 0.2), (1.015, 0.0)])
def test_the_same_or_a_better_kernel_is_accepted(
    tmp_path: Path, factor: float, scatter: float
) -> None:
    assert against(tmp_path, panel(factor, scatter=scatter))[0] == 0


def test_a_kernel_that_got_worse_is_rejected_with_its_figures(tmp_path: Path) -> None:
    code, reason = against(tmp_path, panel(1.05))
    assert code == 1
    assert reason.startswith(
        "o in bf16 got worse than the ledger: median 1.05 times the accepted error over 16 panel"
        " cases"
    )
    one = [
        v.model_copy(update={"ratio": (v.ratio or 0) * 1.1}) if v.output == "final_state" else v
        for v in panel()
    ]
    assert against(tmp_path, one)[1].startswith("final_state in bf16 got worse")


def test_the_median_that_is_reported_is_the_lower_of_the_two_in_the_middle(tmp_path: Path) -> None:
    rises = {f"kda-{i}": 1.1 + i / 100 for i in range(16)}
    risen = [
        verdict.model_copy(update={"ratio": (verdict.ratio or 0) * rises[verdict.case]})
        for verdict in panel()
    ]
    assert "median 1.17 times the accepted error" in against(tmp_path, risen)[1]


def test_one_case_that_got_worse_is_no_ratchet(tmp_path: Path) -> None:
    first, *others = panel()
    assert against(tmp_path, [first.model_copy(update={"ratio": 0.9}), *others])[0] == 0


def test_a_case_that_was_not_judged_is_missed(tmp_path: Path) -> None:
    absent = (
        "of the ledger's cases 1 did not pass or were not judged, the first"
        " panel/bf16/mild/kda-15/final_state"
    )
    assert against(tmp_path, panel()[:-1]) == (3, absent)
    assert against(tmp_path, []) == (
        3,
        "no case of the fixed panel was judged, and the ledger is about these",
    )
    skipped = [
        verdict.model_copy(update={"status": Status.SKIP, "ratio": None}) for verdict in panel()
    ]
    assert against(tmp_path, skipped)[0] == 3


def test_another_device_has_no_accepted_precision(tmp_path: Path) -> None:
    code, reason = against(
        tmp_path, [verdict.model_copy(update={"device": "H200"}) for verdict in panel()]
    )
    assert (code, reason.split(":")[0]) == (3, "no accepted precision on H200-")


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "# other\n",
        "{before}nonsense\n",
        "{before}{line}{line}",
        "{before}",
        "{before}x  a/b/c/d/e\n",
    ],
)
def test_a_file_that_is_none_of_the_ledger_is_refused(tmp_path: Path, damage: str) -> None:
    ledger = accepted(tmp_path)
    (path,) = ledger.folder.iterdir()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(damage.format(before="".join(lines[:2]), line=lines[2]))
    with pytest.raises(FileError, match=r"ledger: "):
        decided(
            closed(tmp_path / "r.parquet", [*GOOD, *panel()]),
            question=GateCriteria(TODAY, ledger=ledger),
        )


def test_no_folder_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no folder"):
        Ledger(tmp_path / "absent")


def test_the_file_is_sorted_one_line_a_case_and_does_not_depend_on_the_order_of_rows(
    tmp_path: Path,
) -> None:
    (update,) = updates([closed(tmp_path / "a.parquet", panel())], tmp_path)
    (again,) = updates([closed(tmp_path / "b.jsonl", panel()[::-1])], tmp_path)
    assert update.after == again.after
    lines = update.after.splitlines()
    assert len(lines) == 2 + 32
    assert lines[2] == "1.000e-01  panel/bf16/mild/kda-0/final_state"
    assert [line.split()[1] for line in lines[2:]] == sorted(line.split()[1] for line in lines[2:])


def test_what_gets_worse_or_is_left_out_is_named(tmp_path: Path) -> None:
    ledger = accepted(tmp_path)
    (better,) = updates([closed(tmp_path / "b.parquet", panel(0.9))], ledger.folder)
    (worse,) = updates([closed(tmp_path / "w.parquet", panel(1.1)[:-1])], ledger.folder)
    assert (len(better.loosened), len(worse.loosened)) == (0, 32)


def test_only_a_closed_run_on_one_version_is_accepted(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "open.jsonl") as writer:
        writer.append(panel()[0])
    mixed = [
        row(property="panel", versions={"torch": version}, ratio=0.5) for version in ("1", "2")
    ]
    for path, said in (
        (tmp_path / "open.jsonl", "never closed"),
        (closed(tmp_path / "m.parquet", mixed), "mixed versions"),
        (closed(tmp_path / "n.parquet", GOOD), "no case of the fixed panel"),
    ):
        with pytest.raises(RecordError, match=said):
            updates([path], tmp_path)


def test_a_hostile_name_stays_in_the_folder_and_on_its_line(tmp_path: Path) -> None:
    hostile = [
        verdict.model_copy(update={"implementation": "../../x\n\x1b[31m", "device": "a/b"})
        for verdict in panel()
    ]
    (update,) = updates([closed(tmp_path / "h.parquet", hostile)], tmp_path)
    assert update.path.parent == tmp_path
    assert (
        update.path.name == file_name("../../x\n\x1b[31m", "a/b-") and "/" not in update.path.name
    )
    assert len(update.after.splitlines()) == 34 and "\x1b" not in update.after
