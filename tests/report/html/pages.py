"""Verdicts and pages that the tests of the HTML report share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kdaverify.checks.status import RuleOutcome, Status
from kdaverify.report.html.credential import (
    ConformingRun,
    Credential,
    CredentialFault,
)
from kdaverify.report.html.page import Page, render
from kdaverify.report.html.rows import rows_of
from kdaverify.report.html.rulings import ruled
from kdaverify.verdicts.gate import GateCriteria, Gated, decided, heaviest_first
from kdaverify.verdicts.record import Table
from kdaverify.verdicts.seal import Account, Expected
from kdaverify.verdicts.verdict import Opinion, Verdict
from kdaverify.verdicts.waivers import Waiver
from tests.rows import row

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
SUITES = ("forward", "resume")
RULES = {"fla": RuleOutcome.PASS, "ascend-L0": RuleOutcome.FAIL}


def verdict(
    status: Status = Status.PASS, *, T: int = 8, key: str = "random", **fields: Any
) -> Verdict:
    """A row whose problem has a length and a key regime."""
    gate = fields.get("regime", "mild")
    problem = json.dumps(
        {"B": 1, "T": T, "gate": gate, "key": key, "op": "kda"}, separators=(",", ":")
    )
    said = {
        rule: Opinion(says=says, statistic='a "statistic", with }', value=0.5, limit=1.0)
        for rule, says in RULES.items()
    }
    given: dict[str, Any] = {
        "problem": problem,
        "T": T,
        "ratio": 0.5,
        "grade": "A",
        "case": f"kda-{T}-{gate}-{key}",
        "message": "o: rms 0.5",
        "published": said,
    }
    about = {
        "device": "cpu",
        "mode": "interpreted",
        "contract": "chunk64-bf16",
        "versions": {"torch": "2.13", "kernel": "a kernel"},
    }
    return row(status, **{**given, **about, **fields})


def wrong(**fields: Any) -> Verdict:
    given: dict[str, Any] = {
        "ratio": 7.0,
        "grade": "F",
        "message": "o: rms error 7\n  worst at token 3",
        "stage": "solve",
    }
    return verdict(Status.FAIL, **{**given, **fields})


def a_run(name: str = "port") -> list[Verdict]:
    """Two suites, three formats, many lengths; wrong on hard resets in bf16."""
    own: dict[str, Any] = {"implementation": name}
    found = [
        verdict(T=2**n, dtype=dtype, property=suite, ratio=2.0**-n, regime=gate, key=key, **own)
        for n, (gate, key) in enumerate(
            [
                ("mild", "random"),
                ("zero", "coherent-0.9"),
                ("slow", "identical"),
                ("mixed", "one-hot"),
            ]
        )
        for dtype in ("fp32", "bf16", "fp16")
        for suite in SUITES
    ]
    found += [
        wrong(T=4, dtype="bf16", regime="hard-reset", output=output, **own)
        for output in ("o", "final_state")
    ]
    found += [
        verdict(property="stages", output=output, ratio=0.9, **own)
        for output in ("solve.R", "solve.R (I + Akk) = I", "state.h")
    ]
    return [
        *found,
        verdict(
            Status.SKIP, case="kda-skipped", message="not supported", ratio=None, grade=None, **own
        ),
    ]


HOSTILE = "<script>document.title='struck'</script><img src=x onerror=\"document.title='struck'\">"
LINK = "javascript:document.title='struck'"


def a_hostile_run() -> list[Verdict]:
    """Markup, quotes, links, controls and rich's marks in every field that an adapter can fill."""
    name = f"\"'><b onmouseover=\"document.title='struck'\">{HOSTILE}"
    texts = dict.fromkeys(
        ("message", "located", "worst", "oracle", "contract", "device", "mode", "benchmark"),
        f"{name} [link={LINK}]x[/link] \x00\x1b[31m\u202e",
    )
    about: dict[str, Any] = {
        **texts,
        "implementation": name,
        "property": f"forward{HOSTILE}",
        "op": f"kda{HOSTILE}",
        "regime": f"mild{HOSTILE}",
    }
    about |= {
        "dtype": f"bf16{HOSTILE}",
        "output": f"o{HOSTILE}",
        "stage": f"solve{HOSTILE}",
        "case": f"{HOSTILE}",
        "replay": f"kdaverify {HOSTILE}",
    }
    about |= {
        "versions": {HOSTILE: HOSTILE, "kernel": HOSTILE},
        "published": {HOSTILE: Opinion(says=RuleOutcome.PASS, statistic=HOSTILE)},
    }
    problem = json.dumps({"T": 4, "key": "</title><script>document.title='struck'</script>"})
    stage: dict[str, Any] = {
        **about,
        "property": "stages",
        "output": f"solve{HOSTILE}.R{HOSTILE}",
        "problem": problem,
    }
    return [
        wrong(**about),
        wrong(**{**about, "problem": problem}),
        verdict(**about),
        verdict(**stage),
        wrong(**stage),
    ]


def account_of(verdicts: Sequence[Verdict], **about: Any) -> Account:
    """What the session of these verdicts says: of whole calls it wanted every output in every
    format that they have.
    """
    whole = [
        verdict for verdict in verdicts if verdict.property == "forward" and verdict.status.judged
    ]
    expected = [
        Expected(
            name,
            tuple(sorted({verdict.dtype for verdict in whole if verdict.implementation == name})),
            tuple(sorted({verdict.output for verdict in whole if verdict.implementation == name})),
            SUITES,
        )
        for name in dict.fromkeys(verdict.implementation for verdict in verdicts)
    ]
    given: dict[str, Any] = {"profile": "smoke", "expected": tuple(expected), **about}
    return Account(**given)


def gated(
    verdicts: Sequence[Verdict], waivers: tuple[Waiver, ...] = (), **about: Any
) -> list[Gated]:
    """The gate's decisions on a closed record of these verdicts, under the rules of a session.

    Args:
        about: of its account.
    """
    table = Table(rows_of(verdicts).full, accounts=(account_of(verdicts, **about),))
    return heaviest_first(decided([table], GateCriteria(NOW.date(), "session", waivers=waivers)))


def page_of(
    verdicts: list[Verdict],
    before: list[Verdict] | None = None,
    waivers: tuple[Waiver, ...] = (),
    about: Mapping[str, Any] = MappingProxyType({}),
    **fields: Any,
) -> Page:
    rows, found = rows_of(verdicts), gated(verdicts, waivers, **about)
    decisions = ruled(
        found,
        rows,
        {one.implementation: one.waived.rows for one in found},
        {one.implementation: one.accounts for one in found},
        {one.implementation: one.rules for one in found},
    )
    other = None if before is None else (rows_of(before), "before.jsonl")
    given: dict[str, Any] = {"sources": ("run.jsonl",), **fields}
    held = dict.fromkeys(held for one in found for held in one.waived.held)
    return Page(rows, tuple(decisions), waivers=tuple(held), before=other, **given)


def written(page: Page, path: Path) -> Path:
    path.write_text(render(page, "page.html", now=NOW), encoding="utf-8")
    return path


CAUGHT, SURVIVOR = (
    CredentialFault(id="H1", stage="state", killed=True),
    CredentialFault(id="H2", stage="state", killed=False, title="a lost carry", why="not yet"),
)


RUNS = tuple(
    ConformingRun(profile=profile, runs=runs)
    for profile, runs in (("smoke", 200), ("smoke", 100), ("acceptance", 1200))
)


MATRIX = Credential(
    profile="acceptance",
    total=120,
    killed=118,
    killed_under_smoke=117,
    legal_runs=1500,
    false_alarms=0,
    unfinished=3,
    faults=(CAUGHT, SURVIVOR),
    conforming=RUNS,
)


def html(page: Page) -> str:
    return render(page, "page.html", now=NOW)
