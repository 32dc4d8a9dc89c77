"""`kdaverify campaign` and `kdaverify nightly`: what they test,
keep and say, with workers in this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.campaign.task import Orders
from kdaverify.verdicts.record import read
from tests.campaign.inline import InlineEngine
from tests.rows import PORT

pytestmark = pytest.mark.whole_run

Cli = Callable[..., tuple[int, str, str]]

SUITE = """
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kdaverify.problems import problems
from kdaverify.problems.problem import Problem

SMALL = Problem(
    B=1, T=20, H=1, HV=1, K=8, V=8, dtype="bf16", gate="mild", key="random", beta="uniform",
    state="random", value="normal", seed=0,
)

@given(data=st.data())
def test_forward(judge, dtype, data):
    judge(data.draw(problems(dtype=dtype, packed=False, max_cost=0.02)))

@pytest.mark.parametrize("seed", range(8))
def test_forward_of_the_same(judge, seed): judge(SMALL.replace(seed=seed))
"""
BF16 = PORT.replace('("fp32", "bf16")', '("bf16",)')


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One suite, a kernel in bf16, one worker here."""
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "test_forward.py").write_text(SUITE)
    (tmp_path / "port.py").write_text(BF16)
    monkeypatch.setattr("kdaverify.suites_folder", lambda: tmp_path / "suites")

    def engine(orders: Orders, *_options: object) -> InlineEngine:
        return InlineEngine(orders)

    for command in ("campaign", "nightly"):
        monkeypatch.setattr(f"kdaverify.cli.{command}.engine_of", engine)


def test_a_campaign_ends_in_a_decision_and_goes_on_with_its_record(
    cli: Cli, tmp_path: Path
) -> None:
    command = (
        "campaign",
        "--impl",
        "port.py",
        "--profile",
        "smoke",
        "--no-isolate",
        "--record",
        "r.jsonl",
        "--json",
        "out/d.json",
    )
    code, out, _ = cli(*command, "--cases", 4)
    assert code == 0 and "decision: ACCEPT" in out
    assert json.loads((tmp_path / "out/d.json").read_text())["cases"] == 5
    assert {verdict.number for verdict in read(tmp_path / "r.jsonl").verdicts} == {None, 0, 1, 2, 3}
    assert cli(*command, "--cases", 6)[0] == 0
    assert {verdict.number for verdict in read(tmp_path / "r.jsonl").verdicts} == {None, *range(6)}


def test_the_gate_decides_on_the_record_of_a_campaign_as_the_campaign_did(
    cli: Cli, tmp_path: Path
) -> None:
    command = (
        "campaign",
        "--impl",
        "port.py",
        "--profile",
        "smoke",
        "--no-isolate",
        "--record",
        "r.jsonl",
        "--cases",
    )
    record = tmp_path / "r.jsonl"
    assert cli(*command, 4)[0] == 0
    code, out, _ = cli("gate", "r.jsonl")
    assert code == 0 and "rules: campaign" in out
    code, out, _ = cli("gate", "r.jsonl", "--rules", "acceptance")
    assert code == 3 and "ran profile campaign, wanted acceptance or nightly" in out
    sealed = record.read_bytes()
    assert cli(*command, 4)[0] == 0
    assert len(record.read_bytes().splitlines()) == len(sealed.splitlines())
    # What an interrupted campaign leaves.
    record.write_bytes(b"".join(sealed.splitlines(keepends=True)[:-2]))
    code, out, _ = cli("gate", "r.jsonl")
    assert code == 3 and "- half-run" in out.splitlines()[1]
    record.write_bytes(sealed.replace(b'"status":"PASS"', b'"status":"FAIL"', 1))
    assert cli("gate", "r.jsonl")[0] == 2
    (tmp_path / "port.py").write_text(BF16.replace("o.to(q.dtype)", "2 * o.to(q.dtype)"))
    record.unlink()
    assert cli(*command, 4, "--diagnosis", 0)[0] == 1
    code, out, _ = cli("gate", "r.jsonl")
    assert code == 1 and "- forward bf16 FAIL" in out.splitlines()[1]


def test_a_campaign_on_a_broken_kernel_rejects_with_lines_to_replay(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "port.py").write_text(BF16.replace("o.to(q.dtype)", "2 * o.to(q.dtype)"))
    code, out, _ = cli(
        "campaign",
        "--impl",
        "port.py",
        "--cases",
        3,
        "--profile",
        "smoke",
        "--no-isolate",
        "--json",
        "d.json",
        "--diagnosis",
        1,
    )
    assert code == 1 and "port: FAIL" in out and "made smaller" in out
    kind, *_others = json.loads((tmp_path / "d.json").read_text())["kinds"]
    assert kind["smaller"].startswith("kdaverify replay --impl port.py --property forward")
    assert kind["smaller"] in out
    assert kind["diagnosis"] and kind["diagnosis"][:60] in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--impl", "nobody"), "--impl"),
        (("--profile", "huge"), "--profile"),
        (("--record", "r.parquet"), "ending in .jsonl"),
        (("--impl", "port.py", "--impl", "./port.py"), "are both named 'port'"),
    ],
)
def test_misuse_is_one_line_and_no_decision(cli: Cli, words: tuple[str, ...], said: str) -> None:
    code, _, err = cli("campaign", "--cases", 1, *words)
    assert code == 2 and said in err and len(err.splitlines()) == 1


def test_nights_compare_promote_and_reject_what_got_worse(cli: Cli, tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")

    def night(date: str, *words: object) -> tuple[int, str]:
        command = (
            "nightly",
            "--impl",
            "port.py",
            "--history",
            "nights",
            "--profile",
            "smoke",
            "--no-isolate",
            "--cases",
            3,
        )
        return cli(*command, "--date", date, "--json", "n.json", *words)[:2]

    code, out = night("2026-01-01")
    assert code == 0 and "the first night of this history" in out
    code, out = night("2026-01-02")
    assert code == 0 and "beside 1 earlier nights" in out
    # The cases that the first night promoted are tested again.
    first, second = (
        read(tmp_path / f"records/nightly-2026-01-0{day}-port.jsonl").verdicts for day in (1, 2)
    )
    assert {v.problem for v in first if v.number is not None} <= {
        v.problem for v in second if v.number is None
    }
    # As if the kernel had been better in the nights before.
    for path in (tmp_path / "nights" / "nights").iterdir():
        pl.read_parquet(path).with_columns(pl.col("ratio") * 0.9).write_parquet(path)
    code, out = night("2026-01-03")
    reported = json.loads((tmp_path / "n.json").read_text())["implementations"][0]
    assert (code, reported["failing"]) == (1, []), out
    assert any(
        "forward o bf16: worse than in the nights before" in reason
        for reason in reported["reasons"]
    )


def test_a_night_without_time_is_not_enough_and_goes_on(cli: Cli) -> None:
    pytest.importorskip("polars")
    command = (
        "nightly",
        "--impl",
        "port.py",
        "--history",
        "nights",
        "--profile",
        "smoke",
        "--no-isolate",
        "--cases",
        1,
        "--date",
        "2026-01-01",
    )
    code, out, _ = cli(*command, "--minutes", 0)
    assert code == 3 and "fixed cases were not tested" in out
    assert cli(*command)[0] == 0


def test_a_wrong_date_says_what_is_wanted(cli: Cli) -> None:
    code, _, err = cli("nightly", "--history", "nights", "--date", "yesterday")
    assert code == 2 and "wanted a date such as 2026-01-31" in err
