"""Settings of every test of the harness, and which of many like tests a commit runs."""

from __future__ import annotations

import os

import pytest
import torch

from kdaverify.verdicts.code_identity import git
from tests.rotation import SHARE, turn
from tests.rows import ROOT


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Sums made in one order; and the workers of a parallel run do not fight for cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """A test has the same numbers alone and behind any others: behind 9,000 of them a formula of a
    test that cancels at -8 met such a one, and a whole run failed.
    """
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def no_worker_a_session() -> None:
    """Sessions under test that take every core would take those of the other tests: a worker costs
    4 s of CPU to start. What workers change is tested where a test requests them.
    """
    os.environ["PYTEST_XDIST_AUTO_NUM_WORKERS"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", action="store_true", help="leave out no case of tests that rotate")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not of this commit's turn."""
    if not _rotates(config):
        return
    rotating = [item for item in items if item.get_closest_marker("rotates")]
    chosen = turn({item.nodeid: _share(item) for item in rotating}, _commit())
    out = [item for item in rotating if item.nodeid not in chosen]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in {*out}]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _rotates(config):
        terminalreporter.write_line(
            f"of tests that rotate one case in {SHARE} ran, or fewer, by the turn of commit"
            f" {_commit() or 'unknown'}; --every runs all"
        )


def _share(item: pytest.Item) -> int:
    """One in how many of its cases runs."""
    mark = item.get_closest_marker("rotates")
    return mark.args[0] if mark is not None and mark.args else SHARE


def _rotates(config: pytest.Config) -> bool:
    """Not where a test is named by its node id: it runs always."""
    return not config.getoption("--every") and not any("::" in part for part in config.args)


def _commit() -> str:
    return git(ROOT, "rev-parse", "HEAD")
