"""Sentences of the documentation are short: median below 20 words, none above 35."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from tests.docs.blocks import PAGES, ROOT
from tests.docs.sentences import sentences, words

LONGEST, TYPICAL = 35, 20


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    lengths = {sentence: words(sentence) for sentence in sentences(page)}
    assert {sentence: number for sentence, number in lengths.items() if number > LONGEST} == {}
    assert median(lengths.values()) < TYPICAL


def test_sentences_are_found_in_paragraphs_and_lists_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading. Not one\n\nOne here. `code` begins two, with\na break: and `more code`.\n\n-"
        " three, in a list\n\n| a table. | No |\n|---|---|\n| a cell. | No |\n\n    some code."
        " None\n"
    )
    found = [*sentences(page)]
    assert found == [
        "One here.",
        "`code` begins two, with a break: and `code`.",
        "three, in a list",
    ]
    assert [words(sentence) for sentence in found] == [2, 8, 4]
