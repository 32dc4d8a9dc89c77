"""The state of the kernels as files: a page, a table for a README, data with its schema."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kdaverify.report.html.rendering import rendered
from kdaverify.survey.finding import Finding
from kdaverify.survey.state import ImplementationState, KernelState, schema

SIGNS: Final = {"accept": "✓", "reject": "✗", "harness error": "!", "not enough evidence": "?"}
OPERATORS: Final = {
    "kda": "Kimi Delta Attention",
    "gated_delta": "Gated DeltaNet",
    "delta": "DeltaNet",
    "short_conv": "short convolution",
    "gated_rms_norm": "gated RMSNorm",
    "attention": "softmax attention",
    "mla_decode": "MLA decode",
    "sparse_attention": "attention over lists of slots",
    "merge_state": "merge of attention states",
    "layer": "whole layers",
}
"""What an operator is called; its name where it is not here."""


def write_state(state: KernelState, findings: tuple[Finding, ...], folder: Path) -> None:
    """Writes state.html, state.md, releases.md, state.json and state.schema.json.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "state.html": page(state, findings),
        "state.md": table(state),
        "releases.md": timeline(findings),
        "state.json": state.model_dump_json(indent=1) + "\n",
        "state.schema.json": schema(),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def page(state: KernelState, findings: tuple[Finding, ...]) -> str:
    """One file that needs no network."""
    return rendered(
        "state.html",
        state=state,
        findings=findings,
        operators=OPERATORS,
        signs=SIGNS,
        cell=cell,
        timelines=[one for one in findings if one.releases],
    )


def table(state: KernelState) -> str:
    """A line an implementation, in Markdown."""
    head = "| operator | implementation | ran | decision | worst case | finding |"
    rows = [_row(one) for op in state.operators for one in state.of(op)]
    return "\n".join((head, "|---|---|---|---|---|---|", *rows, ""))


def timeline(findings: Iterable[Finding]) -> str:
    """A line a release on which a finding was looked for, in Markdown."""
    rows = [
        f"| [{one.name.replace('_', ' ')}](../findings/{one.name}.md) | {release} | {result} |"
        for one in findings
        for release, result in one.releases
    ]
    return "\n".join(("| finding | release | result |", "|---|---|---|", *rows, ""))


def cell(one: ImplementationState, dtype: str) -> str:
    """One format of one implementation in a few words; "" where it was not judged."""
    found = next((form for form in one.formats if form.dtype == dtype), None)
    if found is None:
        return ""
    if found.failing:
        return f"✗ {found.failing:,} wrong"
    return "✓" if found.worst is None else f"✓ {100 * found.worst:.0f} %"


def _row(one: ImplementationState) -> str:
    worst = one.worst
    where = "" if worst is None else f"{worst.worst:.3g}x tolerance ({worst.dtype})"
    links = ", ".join(f"[{name}](../findings/{name}.md)" for name in one.findings)
    return (
        f"| {OPERATORS.get(one.op, one.op)} | `{one.implementation}` | {one.ran} |"
        f" {SIGNS.get(one.decision, '')} {one.decision} | {where} | {links} |"
    )
