"""What a survey reads off sealed records: decisions, formats, findings, releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kdaverify.checks.status import Status
from kdaverify.survey.finding import FIELDS, Finding, read_findings
from kdaverify.survey.pages import SIGNS, table, timeline, write_state
from kdaverify.survey.state import KernelState, commit_file, schema, state_of, with_earlier
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.record import RecordWriter
from kdaverify.verdicts.seal import Account, Expected
from kdaverify.verdicts.verdict import Verdict
from tests.report.html.pages import verdict

ABOUT = {"implementation": "`port`", "severity": "high: it is wrong"}
WRONG = Finding("port_wrong", "It is wrong", dict.fromkeys(FIELDS, "text") | ABOUT, "print(1)\n")


def record(path: Path, *verdicts: Verdict, op: str = "kda") -> Path:
    name = verdicts[0].implementation
    expected = Expected(name, ("fp32",), ("o",), ("forward",), op=op)
    account = Account(harness="0.1.0", profile="smoke", seed=3, expected=(expected,))
    with RecordWriter(path) as writer:
        writer.settle(verdicts, account)
    return path


@pytest.fixture
def state(tmp_path: Path) -> KernelState:
    right: dict[str, Any] = {"implementation": "right"}
    port: dict[str, Any] = {"implementation": "port"}
    newer: dict[str, Any] = {"versions": {"torch": "3.0"}}
    records = [
        record(tmp_path / "right.jsonl", verdict(**right, ratio=0.25), verdict(T=9, **right)),
        record(tmp_path / "port.jsonl", verdict(**port), verdict(Status.FAIL, ratio=7.0, **port)),
        record(tmp_path / "newer.jsonl", verdict(**port, **newer), op="attention"),
    ]
    absent = {"absent": "not installed", "right": "has a record"}
    return state_of(records, [WRONG], absent, "0123456789abcdef")


def test_a_decision_stands_beside_formats_worst_case_and_finding(state: KernelState) -> None:
    right, rejected = (
        next(one for one in state.of("kda") if one.implementation == name)
        for name in ("right", "port")
    )
    assert right.is_accepted
    assert right.worst is not None
    assert (right.worst.dtype, right.worst.worst, right.cases) == ("fp32", 0.5, 2)
    assert rejected.is_rejected
    assert rejected.findings == ("port_wrong",)
    assert rejected.formats[0].failing == 1
    assert (right.profile, right.seed, right.ran) == ("smoke", 3, "interpreted on cpu")
    assert state.not_run == {"absent": "not installed"}
    assert state.operators == ("kda", "attention")


def test_a_session_that_was_ended_stands_below_the_operator_that_it_judged(tmp_path: Path) -> None:
    """It has no seal, which would state the operator: torch's attention stood below KDA."""
    verdicts = [verdict(op="kda"), *(verdict(T=T, op="attention") for T in (1, 2))]
    with RecordWriter(tmp_path / "cut.jsonl") as writer:
        for one in verdicts:
            writer.append(one)
    (cut,) = state_of([tmp_path / "cut.jsonl"], [], {}).implementations
    assert (cut.op, cut.is_accepted, cut.cases) == ("attention", False, 3)


def test_two_releases_are_two_lines_and_an_unexplained_rejection_is_named(
    state: KernelState, tmp_path: Path
) -> None:
    assert [one.versions["torch"] for one in state.releases()["port"]] == ["3.0", "2.13"]
    assert state.unexplained() == ()
    bare = state_of([tmp_path / "port.jsonl"], [], {})
    assert bare.unexplained() == ("port",)


def test_a_row_states_the_commit_that_judged_it(state: KernelState, tmp_path: Path) -> None:
    """Records of two commits are two rows that say so; without a file beside it, none is said."""
    assert {one.commit for one in state.implementations} == {""}
    commit_file(tmp_path / "port.jsonl").write_text("89abcdef01234567\n")
    again = state_of([tmp_path / "right.jsonl", tmp_path / "port.jsonl"], [WRONG], {})
    assert {one.implementation: one.commit for one in again.implementations} == {
        "right": "",
        "port": "89abcdef01234567",
    }
    write_state(again, (WRONG,), tmp_path / "out")
    assert "; commit 89abcdef0123<" in (tmp_path / "out" / "state.html").read_text()


def test_rows_of_an_earlier_page_stay_until_there_is_a_record_in_the_same_place(
    state: KernelState, tmp_path: Path
) -> None:
    absent = {"right": "not reached", "absent": "not installed"}
    now = state_of([tmp_path / "port.jsonl"], [], absent)
    both = with_earlier(now, state, [WRONG])
    assert [one for one in both.implementations if one.implementation == "right"] == [
        one for one in state.implementations if one.implementation == "right"
    ]
    assert [one.findings for one in both.implementations if one.implementation == "port"] == [()]
    assert both.not_run == {"absent": "not installed"}
    alone = with_earlier(KernelState(implementations=(), not_run={}), state, [])
    assert {one.implementation for one in alone.implementations} == {"right", "port"}
    assert alone.unexplained() == ("port",)


def test_the_files_are_whole_and_the_data_fit_their_schema(
    state: KernelState, tmp_path: Path
) -> None:
    write_state(state, (WRONG,), tmp_path / "out")
    data = json.loads((tmp_path / "out" / "state.json").read_text())
    assert "judged at commit 0123456789ab<" in (tmp_path / "out" / "state.html").read_text()
    jsonschema.validate(data, json.loads((tmp_path / "out" / "state.schema.json").read_text()))
    assert KernelState.model_validate(data) == state
    assert "| `right` | interpreted on cpu | ✓ accept | 0.5x tolerance (fp32) |" in table(state)
    assert "[port_wrong](../findings/port_wrong.md)" in table(state)
    assert {*SIGNS} == {ruling.value for ruling in Ruling}


def test_the_page_lists_findings_by_severity_and_counts_what_is_undecided(
    state: KernelState, tmp_path: Path
) -> None:
    """Those without a row of their own stood behind all others: high below low."""
    fields = {**WRONG.fields, "severity": "low: it is slightly wrong"}
    slight = Finding("port_slight", "It is slightly wrong", fields, "print(1)\n")
    unseen = Finding("unseen", "It is wrong elsewhere", WRONG.fields, "print(1)\n")
    cut = state.implementations[0].model_copy(
        update={"decision": "not enough evidence", "reasons": ("few cases",)}
    )
    more = state.model_copy(update={"implementations": (*state.implementations, cut)})
    write_state(more, (WRONG, unseen, slight), tmp_path / "out")
    page = (tmp_path / "out" / "state.html").read_text()
    order = [page.index(f'id="finding-{name}"') for name in ("port_wrong", "unseen", "port_slight")]
    assert order == sorted(order)
    assert f"rejected, {state.undecided + 1} undecided, 1 not run" in page


def test_the_published_state_is_whole_and_states_which_rejections_have_no_finding() -> None:
    folder = Path(__file__).parents[2] / "reports" / "state"
    published = KernelState.model_validate_json((folder / "state.json").read_text())
    assert table(published) == (folder / "state.md").read_text()
    assert schema() == (folder / "state.schema.json").read_text()
    findings = read_findings(folder.parent / "findings")
    assert timeline(findings) == (folder / "releases.md").read_text()
    readme = (folder / "README.md").read_text()
    assert [name for name in published.unexplained() if f"`{name}`" not in readme] == []
    assert (folder / "state.html").stat().st_size < 2 * 2**20
    assert (folder / "state.png").stat().st_size < 300_000
