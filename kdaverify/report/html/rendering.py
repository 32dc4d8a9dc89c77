"""Pages as single files that need no network: the templates, what they may load, their filters."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

import jinja2
from markupsafe import Markup

import kdaverify
from kdaverify.report.html import words

TEMPLATES: Final = "templates"
POLICY: Final = (
    "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; base-uri"
    " 'none'; form-action 'none'"
)
"""What a browser may load and run: the style and the script of this file, and nothing else."""


def rendered(template: str, *, now: datetime | None = None, **values: Any) -> str:
    """A template with the style and the script of all pages, and the values that it names."""
    style, script = (_asset(name) for name in ("style.css", "script.js"))
    return _environment().get_template(template).render(
        **values,
        created=now or datetime.now(UTC),
        version=kdaverify.__version__,
        style=Markup(style),  # noqa: S704 # our own file
        script=Markup(script),  # noqa: S704 # likewise
        policy=POLICY.format(style=_digest(style), script=_digest(script)),
    )  # fmt: skip


# Controls but tab and line feed, marks that change the direction of text, invisible ones, and
# halves of surrogate pairs.
UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ud800-\udfff\ufffe\uffff]"
)


def visible(value: Any) -> Any:
    """What the template prints; what is already markup stays."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return UNSEEN.sub(_name, value)
    return value


def _name(found: re.Match[str]) -> str:
    return f"⟨U+{ord(found[0]):04X}⟩"


MEANT: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~@&-])")
LINKED: Final = re.compile(r"(?<=@)(?=\w)|(?<=#)(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""Where forges find mentions, numbers of issues and addresses, whatever is escaped."""
APART: Final = "\u200b"
MOST: Final = 300


def plain(value: Any) -> str:
    """The text on one line, its marks escaped: no link, embedding, mention or format."""
    text = " ".join(str(visible(value)).split())
    short = text if len(text) <= MOST else f"{text[:MOST]} ..."
    return MEANT.sub(r"\\\1", LINKED.sub(APART, short))


def code(value: Any) -> str:
    """The text as code on one line, whatever ticks are in it."""
    text = " ".join(str(visible(value)).split())
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def _distinct(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    """The texts of a column, each once, for a filter."""
    return sorted({row[column] for row in rows if row[column]})


FILTERS: Final[dict[str, Any]] = {
    "figure": words.figure,
    "counted": words.counted,
    "headline": words.headline,
    "distinct": _distinct,
    "plain": plain,
    "code": code,
}


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=jinja2.select_autoescape(("html",), default=False),
        undefined=jinja2.StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment


def _asset(name: str) -> str:
    return files("kdaverify.report.html").joinpath(TEMPLATES, name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a content security policy allows a script by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
