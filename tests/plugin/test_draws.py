"""What Hypothesis draws depends on --kda-seed and the test alone:
not on order, worker, implementation or environment.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kdaverify.plugin.options import default_seed
from kdaverify.problems import settings_for
from kdaverify.verdicts.verdict import Verdict

from datetime import UTC, datetime  # isort: skip

pytestmark = pytest.mark.whole_run

Suite = Callable[..., None]
Rows = Callable[..., list[Verdict]]

DRAWING = """
from hypothesis import given
from hypothesis import strategies as st
@given(data=st.data())
def test_{name}(judge, dtype, data):
    report(judge, case=str(data.draw(st.integers(0, 10**9))), dtype=dtype)
"""


@pytest.fixture
def drawing(suite: Suite) -> None:
    suite(**{name: DRAWING.format(name=name) for name in ("forward", "resume", "state")})


@pytest.fixture
def reversing(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import os\ndef pytest_collection_modifyitems(items):\n    if 'BACKWARDS' in os.environ:"
        " items.reverse()"
    )


@pytest.mark.usefixtures("drawing", "reversing")
def test_the_record_is_the_same_for_any_number_of_workers_and_any_order(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = rows(name="alone.jsonl")
    assert len(alone) == settings_for("smoke").max_examples * 2 * 3
    assert len({verdict.case for verdict in alone}) > len(alone) / 2
    assert rows("-n2", name="two.jsonl") == alone
    monkeypatch.setenv("BACKWARDS", "1")
    assert rows(name="backwards.jsonl") == alone


@pytest.mark.usefixtures("drawing")
def test_the_seed_and_nothing_else_moves_the_draws(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    alone = rows(name="alone.jsonl")
    monkeypatch.setenv("CI", "true")
    assert rows("-k", "resume", name="ci.jsonl") == [
        verdict for verdict in alone if verdict.property == "resume"
    ]
    other = rows("--kda-seed=1", name="other.jsonl")
    # The first of two random problems of a test is always the simplest one.
    assert (
        sum(verdict.case == before.case for verdict, before in zip(other, alone, strict=True))
        <= len(alone) / 2
    )


def test_only_nightly_takes_its_seed_from_the_date() -> None:
    night = datetime(2031, 2, 3, tzinfo=UTC)
    assert [default_seed(profile, night) for profile in ("smoke", "acceptance", "nightly")] == [
        0,
        0,
        20310203,
    ]
