"""Text of kernels and records on a page: shown as what it is, loads and runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from kdaverify.report.html.page import render
from kdaverify.report.html.rendering import code, plain
from kdaverify.verdicts.verdict import Verdict
from tests.report.html.pages import (
    HOSTILE,
    LINK,
    NOW,
    a_hostile_run,
    a_run,
    html,
    page_of,
)

LOADING = {
    "src",
    "srcset",
    "action",
    "formaction",
    "data",
    "poster",
    "background",
    "ping",
    "xlink:href",
}


FOREIGN = {
    "img",
    "iframe",
    "object",
    "embed",
    "base",
    "audio",
    "video",
    "source",
    "use",
    "image",
    "foreignobject",
    "frame",
}


class Elements(HTMLParser):
    """Names and attributes of all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("run", [a_run, a_hostile_run])
def test_nothing_is_loaded_and_no_script_but_ours_may_run(run: Callable[[], list[Verdict]]) -> None:
    text = html(page_of(run(), before=run()))
    elements = Elements(text).found
    [policy] = [
        about["content"] for tag, about in elements if tag == "meta" and about.get("http-equiv")
    ]
    assert (
        policy is not None
        and policy.startswith("default-src 'none'; style-src 'sha256-")
        and "unsafe" not in policy
    )
    assert not {tag for tag, _ in elements} & FOREIGN
    assert [tag for tag, _ in elements].count("script") == 1
    assert {about.get("href") for tag, about in elements if tag == "link"} == {"data:,"}
    assert all((about["href"] or "").startswith("#") for tag, about in elements if tag == "a")
    assert not [
        name for _, about in elements for name in about if name.startswith("on") or name == "style"
    ]
    assert not {name for _, about in elements for name in about} & LOADING


def test_hostile_text_is_shown_as_what_it_is() -> None:
    text = html(page_of(a_hostile_run(), before=a_hostile_run()))
    assert HOSTILE not in text
    assert "&lt;script&gt;document.title" in text
    assert "⟨U+202E⟩" in text and "⟨U+001B⟩[31m" in text and "⟨U+0000⟩" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)


def test_an_unescaped_page_would_be_noticed() -> None:
    tags = [
        tag
        for tag, _ in Elements(
            html(page_of(a_hostile_run())).replace("&lt;", "<").replace("&gt;", ">")
        ).found
    ]
    assert tags.count("img") > 0


def test_the_summary_cannot_link_mention_or_format() -> None:
    text = render(page_of(a_hostile_run(), before=a_hostile_run()), "summary.md", now=NOW)
    assert HOSTILE not in re.sub(r"(`+) .*? \1|`[^`]*`", "", text)
    assert f"]({LINK})" not in text
    assert (
        plain("[x](javascript:y) | <b> `c`\n# head")
        == r"\[x\]\(javascript:y\) \| \<b\> \`c\` \# head"
    )
    assert plain("@me #1 http://a www.b").split("\u200b") == [
        r"\@",
        r"me \#",
        "1 http:",
        "//a www",
        ".b",
    ]
    assert code("a ` b `` c") == "``` a ` b `` c ```"
