"""The bar of a campaign, on a terminal and in a log."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from kdaverify.campaign.tally import CampaignCounts
from kdaverify.report.campaign import Pace


def drawn(*, terminal: bool) -> str:
    out = StringIO()
    with Pace(Console(file=out, force_terminal=terminal, width=120), wanted=3, known=0) as pace:
        pace.see(CampaignCounts(wanted=3))
        pace.say("2 kinds of failure to make smaller")
    return out.getvalue()


def test_a_terminal_shows_what_is_going_on() -> None:
    shown = drawn(terminal=True)
    assert "0/3" in shown and "2 kinds of failure to make smaller" in shown


def test_a_log_has_no_bar() -> None:
    assert drawn(terminal=False) == ""
