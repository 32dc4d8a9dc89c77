"""The page in a real browser: by mouse and keyboard, narrow and wide,
dark and light, on paper, and in hostile hands.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from tests.report.html.conftest import Browser
from tests.report.html.pages import HOSTILE, a_hostile_run, a_run, page_of, verdict, written

CONTRAST = Path(__file__).with_name("contrast.js").read_text()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [
        *a_run(),
        *a_run("other"),
        *(
            verdict(T=2**n, implementation="calm", property=s)
            for n in range(9)
            for s in ("forward", "resume")
        ),
    ]
    return written(page_of(runs, before=a_run()), tmp_path_factory.mktemp("page") / "run.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_without_network_complaint_or_overflow(
    browser: Browser, page: Path, theme: str, width: int
) -> None:
    browser.open(page, width=width, theme=theme)
    assert browser.complaints() == []
    assert {address.partition(":")[0] for address in browser.requests()} <= {"file", "data"}
    assert browser.run("return document.documentElement.scrollWidth") <= width
    low = [reported for contrast, reported in browser.run(CONTRAST) if contrast < 4.5]
    assert low == []


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_scrolls_inside_the_page_and_the_charts_use_its_width(
    browser: Browser, page: Path, width: int
) -> None:
    browser.open(page, width=width)
    browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
    inner = """
    const parts = document.body.querySelectorAll('*:not(select):not(option):not(input)');
    return [...parts].filter((part) => {
      const {overflowX, overflowY, position} = getComputedStyle(part);
      const scrolls = [overflowX, overflowY].some((way) => way === 'auto' || way === 'scroll');
      const {scrollWidth, clientWidth, scrollHeight, clientHeight} = part;
      const overflows = scrollWidth > clientWidth || scrollHeight > clientHeight;
      return scrolls && position !== 'absolute' && overflows;
    }).map((part) => part.outerHTML.slice(0, 80))"""
    assert browser.run(inner) == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    wide = """
    const right = (e) => e.getBoundingClientRect().right;
    const most = (name) => Math.max(...[...document.querySelectorAll(name)].map(right));
    return arguments[0].map((name) => most(name) / right(document.querySelector('main')))"""
    assert min(browser.run(wide, [".bars", ".run", ".heat"])) > 0.96


def test_dark_is_dark_and_light_is_light(browser: Browser, page: Path) -> None:
    browser.open(page, theme="dark")
    paper = "return getComputedStyle(document.body).backgroundColor"
    dark = browser.run(paper)
    browser.settings(theme="light")
    darkness, lightness = (
        sum(map(int, re.findall(r"\d+", colour))) for colour in (dark, browser.run(paper))
    )
    assert darkness < 150
    assert lightness > 600


def test_filters_show_what_fits_and_say_how_many(browser: Browser, page: Path) -> None:
    browser.open(page)
    everything = len(browser.all("#cases tbody tr"))
    for name, value, text in (
        ("status", "FAIL", ""),
        ("implementation", "other", ""),
        ("implementation", "", "final_state: nothing like this"),
    ):
        browser.run("arguments[0].reset()", browser.one(".filters"))
        browser.one(f".filters [name={name}]").send_keys(value)
        browser.one(".filters [name=text]").send_keys(text)
        shown = [row for row in browser.all("#cases tbody tr") if row.is_displayed()]
        assert browser.one("#showing").text == f"{len(shown)} of {everything} shown"
        assert len(shown) < everything
        assert all(value in row.text for row in shown)
    assert shown == []
    browser.one(".filters [type=reset]").click()
    browser.run("return new Promise((done) => setTimeout(done, 20))")
    assert browser.one("#showing").text == f"{everything} of {everything} shown"


def test_columns_sort_both_ways_and_say_so(browser: Browser, page: Path) -> None:
    browser.open(page)
    [button] = [button for button in browser.all("#cases .sort") if "Error" in button.text]
    for direction in ("ascending", "descending"):
        browser.run("arguments[0].focus()", button)
        browser.press("\ue007")
        found = [
            float(text)
            for text in browser.run(
                "return [...document.querySelectorAll('#cases [data-number]')].map((c) =>"
                " c.dataset.number)"
            )
        ]
        assert found == sorted(found, reverse=direction == "descending")
        assert browser.one("#cases th[aria-sort]").get_attribute("aria-sort") == direction
        assert direction in browser.one("#announced").get_attribute("textContent")


def test_it_works_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.one("body").send_keys("\ue004")
    skip = browser.driver.switch_to.active_element
    assert skip.text == "Skip to the decision"
    assert skip.location["x"] >= 0
    browser.press("\ue007")
    assert browser.driver.switch_to.active_element.get_attribute("id") == "main"
    seen: set[str] = set()
    for _ in range(60):
        browser.press("\ue004")
        here = browser.driver.switch_to.active_element
        seen.add(here.tag_name)
        assert browser.run("return getComputedStyle(arguments[0]).outlineStyle", here) != "none"
        if here.tag_name == "summary" and "kind" in (
            browser.run("return arguments[0].parentElement.className", here) or ""
        ):
            browser.press("\ue007")
            break
    assert seen >= {"summary", "a"}
    assert browser.one(".kind[open] .paste code").text.startswith("kdaverify replay")


def test_a_line_is_copied(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    browser.one(".kind summary").click()
    browser.one(".kind[open] .copy").click()
    browser.run("return new Promise((done) => setTimeout(done, 150))")
    assert browser.one(".kind[open] .copy").text == "copied"
    assert (
        browser.run("return navigator.clipboard.readText()")
        == browser.one(".kind[open] .paste code").text
    )


def test_on_paper_nothing_is_hidden_that_was_folded(browser: Browser, page: Path) -> None:
    browser.open(page)
    closed = len(browser.all(".kind:not([open])"))
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    assert len(browser.all(".kind[open]")) == closed > 0
    browser.settings(medium="print")
    assert not browser.one("nav").is_displayed()
    assert not browser.one(".filters").is_displayed()
    assert browser.one("#cases").is_displayed()
    # Of buttons Chromium repeats nothing on the next sheet: six of eight headings were missing.
    assert {
        heading.value_of_css_property("display") for heading in browser.all("#cases .sort")
    } == {"contents"}
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    assert len(browser.all(".kind[open]")) == 0
    paper = base64.b64decode(
        browser.driver.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.3, "paperHeight": 11.7})[
            "data"
        ]
    )
    assert paper.startswith(b"%PDF")


def test_no_hostile_text_runs(browser: Browser, tmp_path: Path) -> None:
    page = written(
        page_of(a_hostile_run(), before=a_hostile_run(), sources=(HOSTILE,)),
        tmp_path / "hostile.html",
    )
    browser.open(page)
    for part in browser.all("details > summary"):
        browser.run("arguments[0].parentElement.open = true", part)
    assert browser.complaints() == []
    assert "struck" not in browser.driver.title.partition("rejected")[2]
    assert browser.driver.title.endswith("· kdaverify")
    assert HOSTILE in browser.one("h1").text
    assert (
        browser.run(
            "return document.querySelectorAll('main img, main script, [onmouseover],"
            " [onerror]').length"
        )
        == 0
    )
    assert {address.partition(":")[0] for address in browser.requests()} <= {"file", "data"}


@pytest.mark.parametrize(("policy", "runs"), [(True, False), (False, True)])
def test_what_escaped_escaping_would_be_stopped_by_the_policy_and_seen_without_it(
    browser: Browser, tmp_path: Path, *, policy: bool, runs: bool
) -> None:
    page = written(page_of(a_run(), sources=("PLACE",)), tmp_path / "planted.html")
    text = page.read_text().replace("PLACE", HOSTILE)
    page.write_text(
        text if policy else re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    )
    browser.open(page)
    assert (browser.driver.title == "struck") is runs
    assert browser.complaints() != [] or runs
