"""Conventions: layout, state order, gate base and beta are what the adapter declares."""

from __future__ import annotations

from kdaverify.verdicts.judge import Judge


def test_conventions(judge: Judge) -> None:
    judge.conventions()
