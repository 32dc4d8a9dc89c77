"""Settings of every test of the harness, and which of many like tests a commit runs."""

from __future__ import annotations

import hashlib

import pytest
import torch

from kdaverify.verdicts.code_identity import git
from tests.rows import ROOT

SHARE = 3
"""One in this many cases of a test that rotates runs a commit: each runs again within a few days,
and what all of them share is tested by every commit."""


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Sums made in one order; and the workers of a parallel run do not fight for cores."""
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", action="store_true", help="leave out no case of tests that rotate")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not of this commit's turn, where not one test alone is requested."""
    if config.getoption("--every") or any("::" in argument for argument in config.args):
        return
    commit = git(ROOT, "rev-parse", "HEAD")
    out = [item for item in items if item.get_closest_marker("rotates") and not turn(item, commit)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in {*out}]


def turn(item: pytest.Item, commit: str) -> bool:
    """Whether a commit runs a case: the same on every worker and machine."""
    digest = hashlib.sha256(f"{commit} {item.nodeid}".encode()).digest()
    return digest[0] % SHARE == 0
