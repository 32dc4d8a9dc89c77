"""Drift as a picture: a Vega-Lite chart, written as SVG, PNG or HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from kdaverify.checks.growth import LEVEL, Growth

SUFFIXES: Final = (".svg", ".png", ".html")
MISSING: Final = "vl-convert-python is not installed: pip install kdaverify[pictures]"
KERNEL, CONFORMING, LIMIT = "#c2410c", "#60a5fa", "#6b7280"
VERSION: Final = "5.20"
LEGEND: Final = (
    "line: the kernel; band: conforming kernels of its contract on the same inputs; dashed:"
    " tolerance"
)
LENGTH: Final = (
    "datum.value >= 1024 && datum.value % 1024 == 0 ? datum.value / 1024 + 'k' : datum.value"
)


def write(path: Path, growths: tuple[Growth, ...], title: str) -> None:
    """Draws error against length, a panel an output: kernel, conforming band, tolerance.

    Raises:
        ImportError: the renderer is not installed.
        OSError: the file cannot be written.
    """
    import vl_convert

    spec = _spec(growths, title)
    if path.suffix == ".png":
        path.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=VERSION, scale=2.0))
    elif path.suffix == ".svg":
        path.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VERSION))
    else:
        path.write_text(vl_convert.vegalite_to_html(spec, vl_version=VERSION, bundle=True))


def _spec(growths: tuple[Growth, ...], title: str) -> dict[str, Any]:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": {
            "text": title,
            "subtitle": LEGEND,
            "anchor": "start",
            "fontSize": 14,
            "offset": 12,
        },
        "hconcat": [_panel(growth) for growth in growths],
        "config": {
            "font": "sans-serif",
            "view": {"stroke": None},
            "axis": {"gridColor": "#e5e7eb"},
        },
    }


def _panel(growth: Growth) -> dict[str, Any]:
    fit = f"T^{growth.own_slope:.2f}; relative to conforming kernels T^{growth.slope:.2f}"
    return {
        "title": {
            "text": growth.output,
            "subtitle": f"grows as {fit}; {float(growth.used[-1]):.2f}x tolerance",
            "anchor": "start",
            "fontSize": 12,
        },
        "width": 380,
        "height": 260,
        "data": {"values": _rows(growth)},
        "layer": _layers(growth),
    }


def _rows(growth: Growth) -> list[dict[str, float]]:
    least, most = (band.tolist() for band in growth.band)
    points = zip(
        growth.lengths, growth.error.tolist(), least, most, growth.used.tolist(), strict=True
    )
    return [
        {
            "tokens": T,
            "error": error,
            "least": low,
            "most": high,
            "allowed": LEVEL * high,
            "used": used,
        }
        for T, error, low, high, used in points
    ]


def _layers(growth: Growth) -> list[dict[str, Any]]:
    """The band of conforming kernels, the tolerance, and the kernel's own error."""
    ticks = {
        "title": "tokens",
        "values": list(growth.lengths),
        "labelExpr": LENGTH,
        "labelOverlap": True,
    }
    x = {
        "field": "tokens",
        "type": "quantitative",
        "scale": {"type": "log", "base": 2, "nice": False},
        "axis": ticks,
    }

    def y(field: str) -> dict[str, Any]:
        axis = {"title": "relative error", "format": ".0e"}
        return {"field": field, "type": "quantitative", "scale": {"type": "log"}, "axis": axis}

    tooltip = [
        {"field": field, "type": "quantitative", "format": ".3g"}
        for field in ("tokens", "error", "allowed", "used")
    ]
    return [
        {
            "mark": {"type": "area", "color": CONFORMING, "opacity": 0.35},
            "encoding": {"x": x, "y": y("least"), "y2": {"field": "most"}},
        },
        {
            "mark": {"type": "line", "color": LIMIT, "strokeDash": [4, 3]},
            "encoding": {"x": x, "y": y("allowed")},
        },
        {
            "mark": {"type": "line", "color": KERNEL, "point": {"color": KERNEL}},
            "encoding": {"x": x, "y": y("error"), "tooltip": tooltip},
        },
    ]
