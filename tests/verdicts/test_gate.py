"""The gate's table: which records are accepted, which are not, and why;
no evidence lost is ever an acceptance.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdaverify.checks.status import Status
from kdaverify.verdicts.decision import heaviest
from kdaverify.verdicts.gate import GateCriteria, gate
from kdaverify.verdicts.record import RecordError, RecordWriter, read
from kdaverify.verdicts.toml_file import FileError
from kdaverify.verdicts.verdict import Verdict
from kdaverify.verdicts.waivers import read_waivers
from tests.rows import row
from tests.verdicts.gated import ACCOUNT, BROKEN, GOOD, TODAY, closed, decided, waiving


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_good_record_is_accepted_and_says_what_was_not_tested(
    tmp_path: Path, ending: str
) -> None:
    assert decided(closed(tmp_path / f"r.{ending}")) == (
        0,
        "not tested: packing (it declares packing='none')",
    )


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_broken_kernel_is_rejected(tmp_path: Path, ending: str) -> None:
    assert decided(closed(tmp_path / f"r.{ending}", [*GOOD, BROKEN])) == (
        1,
        "forward bf16 FAIL: 1 verdict",
    )


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({}, 0, "not tested"),
        ({"id": "forward/bf16/mild/kda-7/o/cut=3"}, 0, "not tested"),
        (
            {"expires": TODAY - timedelta(days=1)},
            1,
            "waiver of rms of forward/bf16/* (me) expired on 2026-02-28",
        ),
        ({"cap": 2.5}, 0, "not tested"),
        (
            {"cap": 2.4},
            1,
            "waiver of rms of forward/bf16/* (me) is exceeded: 2.5x tolerance, cap 2.4",
        ),
        ({"id": "resume/*"}, 1, "waiver of rms of resume/* (me) matches no failure of this run"),
        (
            {"statistic": "max"},
            1,
            "waiver of max of forward/bf16/* (me) matches no failure of this run",
        ),
        (
            {"statistic": "NONFINITE"},
            1,
            "waiver of NONFINITE of forward/bf16/* (me) matches no failure of this run",
        ),
        (
            {"impl": "other"},
            1,
            "waiver of rms of forward/bf16/* (me) of other, which is not in the record",
        ),
    ],
)
def test_a_waiver_caps_a_failure_and_nothing_else(
    tmp_path: Path, changes: dict[str, Any], code: int, reason: str
) -> None:
    found = decided(
        closed(tmp_path / "r.parquet", [*GOOD, BROKEN]), question=waiving(tmp_path, **changes)
    )
    assert found[0] == code
    assert found[1].startswith(reason)


def test_a_waived_failure_is_reported_and_is_no_evidence(tmp_path: Path) -> None:
    (found,) = gate([closed(tmp_path / "r.parquet", [*GOOD, BROKEN])], waiving(tmp_path))
    assert len(found.waived.rows) == 1 and found.reasons[-1].endswith(
        "until 2026-03-01 covers 1 verdict: known"
    )
    alone = [BROKEN.model_copy(update={"output": output}) for output in ("o", "final_state")]
    kept = [verdict for verdict in GOOD if verdict.dtype != "bf16"]
    assert decided(closed(tmp_path / "r.parquet", [*kept, *alone]), question=waiving(tmp_path)) == (
        3,
        "no pass for o in bf16",
    )


def test_a_waiver_of_a_status_caps_how_often(tmp_path: Path) -> None:
    broken = [row(Status.NONFINITE, case=f"kda-{i}", dtype="bf16") for i in range(3)]
    path = closed(tmp_path / "r.parquet", [*GOOD, *broken])
    assert decided(path, question=waiving(tmp_path, statistic="NONFINITE", cap=3))[0] == 0
    assert decided(path, question=waiving(tmp_path, statistic="NONFINITE", cap=2))[0] == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expires": TODAY + timedelta(days=91)}, "at most 90 days ahead, 2026-05-30"),
        ({"owner": ""}, "waiver.0.owner"),
        ({"cap": "inf"}, "waiver.0.cap"),
        ({"statistic": "PASS"}, "wanted a statistic"),
        ({"statistic": "ORACLE_UNCERTIFIED"}, "wanted a statistic"),
        ({"surprise": "x"}, "waiver.0.surprise"),
    ],
)
def test_a_waiver_that_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(FileError, match=said):
        waiving(tmp_path, **changes)


@pytest.mark.parametrize("content", ["", "waiver = []", "[[waiver]]", "nonsense", "\x00"])
def test_an_empty_file_of_waivers_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "w.toml").write_text(content)
    with pytest.raises(FileError):
        read_waivers(tmp_path / "w.toml", TODAY)


def test_a_half_run_is_not_enough(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "r.jsonl") as writer:
        for verdict in GOOD:
            writer.append(verdict)
    assert decided(tmp_path / "r.jsonl")[0] == 3
    assert decided(tmp_path / "r.jsonl")[1].startswith("half-run: 24 verdicts")


def test_a_half_run_beside_a_sealed_record_of_another_is_no_gap_of_it(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "half.jsonl") as writer:
        writer.append(row(implementation="other"))
    paths = [closed(tmp_path / "r.jsonl"), tmp_path / "half.jsonl"]
    found = {one.implementation: one for one in gate(paths, GateCriteria(TODAY))}
    assert found["port"].ruling.exit_code == 0
    assert found["other"].reasons[0].startswith("half-run: 1 verdicts")
    assert heaviest(found.values()).exit_code == 3


def test_a_record_that_names_no_implementation_is_a_gap_of_all(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl").write_text('{"schema_version":5,"imple')
    found = gate([closed(tmp_path / "r.jsonl"), tmp_path / "cut.jsonl"], GateCriteria(TODAY))
    assert [one.ruling.exit_code for one in found] == [3]


def test_a_truncated_record_is_not_enough_and_a_truncated_table_is_damaged(tmp_path: Path) -> None:
    path = closed(tmp_path / "r.jsonl")
    path.write_bytes(path.read_bytes()[:-1000])
    assert decided(path)[0] == 3 and "was cut off after" in decided(path)[1]
    table = closed(tmp_path / "r.parquet")
    table.write_bytes(table.read_bytes()[:-1000])
    with pytest.raises(RecordError, match="changed or damaged"):
        decided(table)


def test_mixed_versions_are_not_enough(tmp_path: Path) -> None:
    newer = [row(case="kda-new", versions={"torch": "2.9"})]
    assert decided(closed(tmp_path / "r.parquet", [*GOOD, *newer])) == (
        3,
        "mixed versions: torch in versions 2.8, 2.9",
    )
    other = closed(tmp_path / "o.parquet", GOOD, ACCOUNT.model_copy(update={"harness": "2"}))
    assert decided(closed(tmp_path / "r.parquet"), other) == (
        3,
        "mixed versions: kdaverify in versions 1, 2",
    )


def test_what_broke_in_the_harness_outweighs_all(tmp_path: Path) -> None:
    account = ACCOUNT.model_copy(update={"trouble": {"port": ("KeyError: 'x', in test_forward",)}})
    assert decided(closed(tmp_path / "r.parquet", [*GOOD, BROKEN], account)) == (
        2,
        "KeyError: 'x', in test_forward",
    )


@pytest.mark.parametrize("rows", [[], [row(Status.SKIP, message="no device")]])
def test_nothing_run_is_nothing_passed(tmp_path: Path, rows: list[Verdict]) -> None:
    for account in (ACCOUNT, None):
        for ending in ("jsonl", "parquet"):
            assert decided(closed(tmp_path / f"r.{ending}", rows, account))[0] == 3


def test_verdicts_whose_session_says_nothing_are_not_enough(tmp_path: Path) -> None:
    code, reason = decided(closed(tmp_path / "r.parquet", GOOD, None))
    assert code == 3 and reason.startswith("no session says what it declares")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{}",
        b"{}\n",
        b"nonsense\n",
        b"PAR1",
        b"PAR1PAR1",
        bytes(100),
        b"\x80\x04K\x01.",
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_no_file_accepts_by_being_empty_or_malformed(
    tmp_path: Path, content: bytes, ending: str
) -> None:
    path = tmp_path / f"r.{ending}"
    path.write_bytes(content)
    try:
        code = decided(path)[0]
    except RecordError:
        code = 2
    assert code in (2, 3)


def enough(verdicts: list[Verdict]) -> bool:
    """Whether every declared pair and suite has a pass and nothing rejects:
    said again, without the gate's own code.
    """
    passed = [verdict for verdict in verdicts if verdict.status is Status.PASS]
    pairs = {(verdict.dtype, verdict.output) for verdict in passed}
    suites = {verdict.property for verdict in passed}
    left = {Status.PASS, Status.SKIP}.issuperset(verdict.status for verdict in verdicts)
    return len(pairs) == 4 and suites == {"forward", "resume"} and left


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_rows_dropped_and_statuses_changed_before_the_seal_accept_only_what_is_shown(
    tmp_path: Path, data: st.DataObject
) -> None:
    lost = data.draw(st.sets(st.integers(0, len(GOOD) - 1)))
    changed = dict(
        data.draw(
            st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.sampled_from(Status)), max_size=2)
        )
    )
    rows = [
        verdict.model_copy(update={"status": changed.get(i, verdict.status)})
        for i, verdict in enumerate(GOOD)
        if i not in lost
    ]
    code, _ = decided(closed(tmp_path / "r.parquet", rows))
    assert (code == 0) == enough(rows)
    assert (code == 1) == any(
        v.status.rejects and v.status is not Status.ORACLE_UNCERTIFIED for v in rows
    )


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), ending=st.sampled_from(["jsonl", "parquet"]))
def test_a_closed_record_with_bytes_cut_or_changed_never_accepts(
    tmp_path: Path, data: st.DataObject, ending: str
) -> None:
    start, length, fill = data.draw(
        st.tuples(st.floats(0, 1), st.integers(1, 4000), st.binary(max_size=3))
    )
    path = closed(tmp_path / f"r.{ending}")
    content = path.read_bytes()
    place = round(start * (len(content) - 1))
    damaged = content[:place] + fill + content[place + length :]
    path.write_bytes(damaged)
    try:
        code = decided(path)[0]
    except RecordError:
        code = 2
    assert code in (2, 3) or damaged == content


def test_the_same_record_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text("about = 'ours'\n[at_least]\ntotal = 25\n")
    paths = (closed(tmp_path / "a.parquet"), closed(tmp_path / "b.jsonl"))
    assert len(read(paths[1]).verdicts) == 24
    assert decided(*paths, question=GateCriteria(TODAY, rules=str(tmp_path / "rules.toml"))) == (
        3,
        "24 passes in all, wanted 25",
    )
