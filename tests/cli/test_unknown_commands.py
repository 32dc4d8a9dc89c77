"""A command that there is not is named, with the one that is nearest, or with all there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("verfy",), "Did you mean 'verify'?"),
        (("kernel",), "There are verify, replay, "),
        (("contracts", "describe"), "There are list, show."),
    ],
)
def test_an_unknown_command_is_answered_by_those_there_are(
    cli: Cli, words: tuple[str, ...], wanted: str
) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert wanted in err
