"""The benchmark of mutants changes files that exist, and runs tests that exist."""

from __future__ import annotations

import pytest

from benchmarks.mutation import PARTS, ROOT


@pytest.mark.parametrize("part", PARTS)
def test_every_file_and_every_test_of_a_part_exists(part: str) -> None:
    files, tests = PARTS[part]
    assert [name for name in files if not [*(ROOT / "kdaverify").glob(name)]] == []
    # pytest ends with an error where a path is missing, which would kill every mutant.
    assert [name for name in tests if not (ROOT / "tests" / name).exists()] == []
