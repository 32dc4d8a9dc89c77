"""Replaced words stay out of messages, docstrings, comments, names, templates and pages."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

import pytest

from tests.docs.blocks import ROOT
from tests.docs.prose import (
    QUOTED,
    Passage,
    comments,
    docstrings,
    keys,
    literals,
    modules,
    names,
    page,
    passages,
)

OLD: Final = {
    r"(?<![-\w])ask(?:s|ed|ing)?(?![-\w])": "tested, not tested; requested",
    r"\b(?:tells?|told|telling)\b": "reports, reported; distinguishes",
    r"\bloses\b|\bmisses\b|\b(?:may|can|kernels) miss\b": "error",
    r"\bthe famil(?:y|ies)\b|\bfamily of legal\b|\bfamily members?\b": "reference ensemble",
    r"\bmembers? of the\b": "reference kernel",
    r"(?<![-\w])legal(?:ly)?(?![-\w])": "conforming kernel",
    r"\b(?:un)?luck(?:y|ily)?\b": "sampling variation",
    r"\bdrawn\b|\b(?:a|no|every|the|fresh|eight|of) draws?\b": (
        "random, resampled; stochastic-rounding samples"
    ),
    r"\bvacu(?:ous|ously|ity)\b": "inconclusive",
    r"\bimpostors?\b": "negative control",
    r"\bnear miss(?:es)?\b": "borderline",
    r"\bacquit\w*": "passed on re-test",
    r"\baccus\w+": "failed",
    r"\bexcus\w+": "not applicable",
    r"(?<!--)\bbudgets?\b": "tolerance",
    r"\ballowance\w*|, allowed [\d.{]|\bis allowed of\b": "tolerance",
    r"\bmailbox(?:es)?\b": "intermediate buffer",
    r"\bpeers?\b": "nearest reference kernels",
    r"\blast page\b": "terminal summary",
    r"\bdear(?:er|est)?\b|\bcheap\w*": "expensive, inexpensive",
    r"\banew\b": "again, resampled",
    r"\bstrictest reading\b": "defaults to recurrent-fp32, the strictest contract",
    r"\bindistinguishable from\b|\bnone comes near\b|\bno known fault fits\b": (
        "matches known bug; no known bug matches"
    ),
    r"\bproves? (?:nothing|something|anything)\b": "inconclusive",
    r"\bplain(?:est)? (?:legal )?kernel\b": "baseline reference kernel",
}
"""What is out, and what stands for it."""
MAILBOXES: Final = "mailbox"
"""The study of Ascend's designs calls its buffers so: files with it in their path, and the
designs."""
STUDY: Final = (
    MAILBOXES,
    "budgets/designs",
    "adapters/emulated.py",
    "budgets/formats.py",
    "docs/commands.md",
    "reports/README.md",
    "docs/how_to.md",
)
IN_NAMES: Final = re.compile(
    r"ask(?:s|ed|ing)?|tells?|told|telling|excus(?:ed?|es)|acquit(?:ted|tal)|accused|jury"
    r"|(?:un)?luck(?:y)?|dear|cheap|impostors?|vacuity|misses|loses|legal"
)
"""Words that no function, class, argument or variable has as a part."""
PUBLIC: Final = frozenset({"legal_runs"})
"""A column of reports/kill_matrix.json."""
IN_RECORDS: Final = ("all within budget", "stages: all within budget", "all within budget; cumsum")
"""Values of records, which old records have, too."""
KEYS: Final = PUBLIC | {
    *("--no-legal", "acquitted", "asked", "beside_legal", "excused", "legal"),
    *("legal_suites_unfinished", "tell"),
}
"""Names of options and fields of records and files of rules, which older ones have, too."""
_ALL: Final = re.compile("|".join(f"(?:{pattern})" for pattern in OLD), re.IGNORECASE)


def found(passage: Passage) -> list[str]:
    """The old words of a passage."""
    if passage.text.strip().startswith(IN_RECORDS):
        return []
    words = [match[0].lower() for match in _ALL.finditer(passage.text)]
    study = any(part in passage.file for part in STUDY)
    return [word for word in words if not (study and word.startswith(MAILBOXES))]


def left() -> dict[str, list[str]]:
    """Old words by file, each with its line."""
    files: dict[str, list[str]] = defaultdict(list)
    for passage in passages():
        files[passage.file] += [f"{passage.line}: {word}" for word in found(passage)]
    return {file: words for file, words in files.items() if words}


def parts(name: str) -> set[str]:
    """Words of a name, in lower case."""
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def is_old(name: str) -> bool:
    """Whether a name has an old word as a part."""
    return any(map(IN_NAMES.fullmatch, parts(name.replace("-", "_"))))


def test_old_words_stay_out() -> None:
    assert left() == {}, "\n".join(
        f"{pattern}: write {instead}" for pattern, instead in OLD.items()
    )


def test_old_words_stay_out_of_names() -> None:
    new = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        for name in names(path.read_text())
        if name not in PUBLIC and is_old(name)
    }
    assert new == set()


def test_old_words_stay_out_of_keys() -> None:
    new = {
        f"{path.relative_to(ROOT)}: {key}"
        for path in modules()
        if path.name != QUOTED
        for key in keys(path.read_text())
        if key not in KEYS and is_old(key)
    }
    assert new == set()


def test_old_words_stay_out_of_the_page_of_a_run() -> None:
    new = {
        f"{path.name}: {name}"
        for kind in ("html", "js", "css")
        for path in (ROOT / "kdaverify" / "report").rglob(f"*.{kind}")
        for name in re.findall(r"[A-Za-z_]\w*", path.read_text())
        if name not in PUBLIC and is_old(name)
    }
    assert new == set()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('x = "within its budget"', ["budget"]),
        ('def f():\n    """Asked of nobody."""', ["asked"]),
        ('x = f"{budget}: {draws} of the family"', ["the family"]),
        ('x = {"budget": 1, "legal": 2}', []),
        ('x = "see `budget`, --no-legal and legal_runs"', []),
        ("budget = 1  # the budget", []),
    ],
)
def test_words_of_literals_and_docstrings_are_seen_and_names_are_not(
    source: str, words: list[str]
) -> None:
    assert [
        word for passage in literals("kdaverify/x.py", source) for word in found(passage)
    ] == words


def test_words_of_comments_docstrings_and_names_are_seen() -> None:
    source = 'def f(legalRow):\n    """Asked."""\n    unlucky, x = "told", 1  # a near miss'
    assert [word for passage in comments("x.py", source) for word in found(passage)] == [
        "near miss"
    ]
    assert [word for passage in docstrings("x.py", source) for word in found(passage)] == ["asked"]
    assert [*names(source)] == ["f", "legalRow", "unlucky", "x"]
    assert parts("legalRow") == {"legal", "row"}


def test_words_of_pages_are_seen_and_names_are_not() -> None:
    assert found(page("docs/x.md", "A legal kernel, and `legal`; every MAILBOX.")) == [
        "legal",
        "mailbox",
    ]
    assert found(page("reports/mailboxes.md", "A legal mailbox")) == ["legal"]
