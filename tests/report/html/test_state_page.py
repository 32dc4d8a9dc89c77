"""The page of a survey in a real browser: narrow, wide, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.survey.finding import FIELDS, Finding
from kdaverify.survey.pages import write_state
from kdaverify.survey.state import FormatState, ImplementationState, KernelState
from tests.report.html.conftest import Browser

LARGEST = 2 * 2**20
"""Bytes: what opens at once over a slow line."""
FINDING = Finding(
    "port_wrong",
    "A title <b>with markup</b>",
    dict.fromkeys(FIELDS, "text") | {"severity": "high: always", "implementation": "`port3`"},
    "print(1)\n",
)


def state() -> KernelState:
    formats = tuple(
        FormatState(dtype=name, cases=900, failing=n, worst=0.5 + n, worst_regime="mild")
        for n, name in enumerate(("fp32", "bf16"))
    )
    many = tuple(
        ImplementationState(
            implementation=f"port{n}",
            op=("kda", "attention")[n % 2],
            decision=("accept", "reject", "not enough evidence", "reject")[n % 4],
            reasons=("forward bf16 FAIL: 3 verdicts",),
            profile="smoke",
            seed=0,
            harness="0.1.0",
            finished="",
            ran="native on cpu",
            versions={"a-package-of-a-long-name": "1.2.3", "torch": "2.13.0"},
            formats=formats,
            findings=("port_wrong",) if n % 4 == 3 else (),
            seconds=12.0,
            record="port.jsonl",
        )
        for n in range(40)
    )
    return KernelState(implementations=many, not_run={"cudnn": f"not installed: {80 * 'x'}"})


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    write_state(state(), (FINDING,), folder)
    return folder / "state.html"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_without_network_complaint_or_overflow(
    browser: Browser, page: Path, theme: str, width: int
) -> None:
    browser.open(page, width=width, theme=theme)
    # The page has no table of cases, which the script of records works on.
    assert browser.complaints() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.one("#finding-port_wrong summary").text.endswith("A title <b>with markup</b>")


def test_it_is_small(page: Path) -> None:
    assert page.stat().st_size < LARGEST
