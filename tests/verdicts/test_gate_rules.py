"""What rules require of records beyond what was declared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kdaverify.checks.borderline import Recheck, RetestFinding
from kdaverify.checks.status import Status
from kdaverify.verdicts.decision import heaviest
from kdaverify.verdicts.gate import GateCriteria, gate
from kdaverify.verdicts.seal import Covered
from kdaverify.verdicts.toml_file import FileError
from tests.rows import row
from tests.verdicts.gated import (
    ACCOUNT,
    BROKEN,
    EXPECTED,
    GOOD,
    TODAY,
    closed,
    decided,
    first,
    waiving,
)

RULES = [
    ("[at_least]\ntotal = 25", 3, "24 passes in all, wanted 25"),
    ("[at_least]\noutput = 7", 3, "6 passes for o in fp32, wanted 7"),
    ("[require]\nregimes = ['zero']", 3, "no passes for regime zero, wanted 1"),
    ("[require]\nops = ['l2norm']", 3, "no passes for op l2norm, wanted 1"),
    ("[require]\noutputs = ['dq']", 3, "no passes for dq in fp32, wanted 1"),
    ("[require]\ndtypes = ['fp16']", 3, "no passes for dtype fp16, wanted 1"),
    ("[require]\nproperties = ['drift']", 3, "no passes for property drift, wanted 1"),
    ("[require]\nproperties = ['packing']", 0, "not tested: packing"),
    ("profiles = ['nightly']", 3, "the session ran profile smoke, wanted nightly"),
    (
        "[[limits]]\nstatistic = 'worst'\nmost = 0.4",
        1,
        "worst of all verdicts: 0.5, at most 0.4 wanted",
    ),
    (
        "[[limits]]\nstatistic = 'q99'\nmost = 0.4\ndtype = 'bf*'",
        1,
        "q99 of dtype bf*: 0.5, at most 0.4 wanted",
    ),
    (
        "[[limits]]\nstatistic = 'median'\nmost = 0.4\noutput = 'absent'",
        1,
        "median of output absent: nothing to measure",
    ),
    ("[[limits]]\nstatistic = 'skipped'\nmost = 0.0", 0, "not tested: packing"),
    ("[at_least]\ntotal = 24\n[require]\nops = ['kda']", 0, "not tested: packing"),
    ("[at_least]\npairs = 0.9", 3, "the record states no coverage of pairs, wanted 90%"),
]


@pytest.mark.parametrize(("text", "code", "reason"), RULES, ids=[text for text, _, _ in RULES])
def test_rules_require_more_than_was_declared(
    tmp_path: Path, text: str, code: int, reason: str
) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(f"about = 'ours'\n{text}\n")
    found = decided(closed(tmp_path / "r.parquet"), question=GateCriteria(TODAY, rules=str(path)))
    assert found[0] == code and found[1].startswith(reason)


@pytest.mark.parametrize(
    ("rule", "code", "reason"),
    [
        ("pairs = 1.0", 0, "not tested: packing"),
        ("triples = 0.75", 0, "not tested: packing"),
        (
            "triples = 0.76",
            3,
            "3,000 of 4,000 triples of properties judged together (75 %), wanted 76%",
        ),
    ],
)
def test_a_rule_wants_a_share_of_all_combinations_judged(
    tmp_path: Path, rule: str, code: int, reason: str
) -> None:
    """Of two sessions the one that judged more of them counts:
    both may have judged the same ones.
    """
    path = tmp_path / "rules.toml"
    path.write_text(f"about = 'ours'\n[at_least]\n{rule}\n")
    lists = ((Covered(2, 100, 100), Covered(3, 3000, 4000)), (Covered(2, 60, 100),))
    records = [
        closed(
            tmp_path / f"{n}.parquet",
            account=ACCOUNT.model_copy(update={"expected": (replace(EXPECTED, covered=covered),)}),
        )
        for n, covered in enumerate(lists)
    ]
    found = gate(records, GateCriteria(TODAY, rules=str(path)))
    assert heaviest(found).exit_code == code and first(found).startswith(reason)
    assert found[0].reasons[-2:] == (
        "coverage: 100 of 100 pairs of properties judged together (100 %)",
        "coverage: 3,000 of 4,000 triples of properties judged together (75 %)",
    )


@pytest.mark.parametrize(("most", "code"), [(0.04, 0), (0.03, 1)])
@pytest.mark.parametrize(
    ("statistic", "changes"),
    [
        ("skipped", {"status": Status.SKIP}),
        ("vacuous", {"vacuous": ("zeros",)}),
        ("acquitted", {"recheck": Recheck(RetestFinding.PASSED_ON_RETEST, seeds=200)}),
    ],
)
def test_a_share_of_all_verdicts_is_limited(
    tmp_path: Path, statistic: str, changes: dict[str, Any], most: float, code: int
) -> None:
    """One of 26 verdicts; a failure is inconclusive and re-tested as well,
    but no share of what passed.
    """
    wrong = BROKEN.model_copy(
        update={"vacuous": ("zeros",), "recheck": Recheck(RetestFinding.CONFIRMED)}
    )
    path = tmp_path / "rules.toml"
    path.write_text(f"about = 'ours'\n[[limits]]\nstatistic = '{statistic}'\nmost = {most}\n")
    rows = [*GOOD, wrong, row(case="kda-x", **changes)]
    found = decided(
        closed(tmp_path / "r.parquet", rows), question=replace(waiving(tmp_path), rules=str(path))
    )
    assert found[0] == code and (
        code == 0 or found[1] == f"{statistic} of all verdicts: 0.0385, at most 0.03 wanted"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "about = ''",
        "about = 'x'\nsurprise = 1",
        "about = 'x'\n[at_least]\ntotal = 0",
        "[[",
        "about = 1",
    ],
)
def test_rules_that_say_nothing_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.toml").write_text(text)
    with pytest.raises(FileError, match=r"rules\.toml"):
        decided(
            closed(tmp_path / "r.parquet"),
            question=GateCriteria(TODAY, rules=str(tmp_path / "rules.toml")),
        )


def test_the_profile_that_ran_chooses_the_rules_and_smoke_is_no_acceptance(tmp_path: Path) -> None:
    smoke, wanted = (
        closed(tmp_path / "s.parquet"),
        "the session ran profile smoke, wanted acceptance or nightly",
    )
    assert decided(smoke, question=GateCriteria(TODAY, rules="acceptance")) == (3, wanted)
    thorough = closed(
        tmp_path / "a.parquet", GOOD, ACCOUNT.model_copy(update={"profile": "acceptance"})
    )
    assert decided(thorough) == (3, "24 passes in all, wanted 300")
