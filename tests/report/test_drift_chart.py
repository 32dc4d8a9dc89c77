"""The chart of drift shows the kernel over its band, and in red where it is over tolerance."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdaverify.report.drift_chart import BAND, POINT, chart
from kdaverify.report.drift_picture import write
from tests.checks.test_growth import curve, growth


def test_every_length_has_its_point_and_the_band_shows() -> None:
    text = chart(growth(curve("kernel"), curve("conforming", size=5e-4), curve("other", size=2e-3)))
    drawn = text.plain[: text.plain.index("o: relative")]
    assert drawn.count(POINT) == 4 and BAND in drawn
    assert drawn.splitlines()[-1].split() == ["256", "4k"]


def test_points_over_budget_are_red() -> None:
    colours = {str(span.style) for span in chart(growth(curve("kernel", slope=1.0))).spans}
    assert {"bold red", "bold green"} <= colours


@pytest.mark.parametrize(
    ("suffix", "head"), [(".svg", b"<svg"), (".png", b"\x89PNG"), (".html", b"<!DOCTYPE html>")]
)
def test_pictures_are_written_in_every_format(tmp_path: Path, suffix: str, head: bytes) -> None:
    path = tmp_path / f"drift{suffix}"
    write(path, (growth(curve("kernel", slope=0.65)),), "kernel")
    assert path.read_bytes().lstrip().startswith(head)
