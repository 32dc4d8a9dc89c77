"""What a session leaves in its record beside verdicts, so that the record alone decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import pytest

import kdaverify
from kdaverify.verdicts.code_identity import CodeIdentity
from kdaverify.verdicts.seal import Account, Expected

COMPLETE: Final = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""Ends of pytest after which the verdicts are worth reading: all passed, some failed."""


def cut_off(ended: int) -> str:
    """What is said of a session that pytest ended before its time."""
    said = "was interrupted" if ended == pytest.ExitCode.INTERRUPTED else f"ended with {ended!r}"
    return f"the session {said} before every case was judged"


def account(
    config: pytest.Config,
    expected: Sequence[Expected],
    trouble: Mapping[str, Sequence[str]],
    *,
    cut_short: str,
    judged: Mapping[str, CodeIdentity],
) -> Account:
    """The account of a session that ends now.

    Args:
        expected: what it wants shown of every implementation.
        trouble: what went wrong in the harness, by implementation.
        cut_short: why not every case was judged; "" where all were.
        judged: the code of every implementation.
    """
    reported = {
        one.implementation: (*trouble[one.implementation], *([cut_short] if cut_short else []))
        for one in expected
    }
    return account_of(config.option.profile, config.option.kda_seed, expected, reported, judged)


def account_of(
    profile: str,
    seed: int,
    expected: Sequence[Expected],
    reported: Mapping[str, tuple[str, ...]],
    judged: Mapping[str, CodeIdentity],
) -> Account:
    """The account of whatever ends now.

    Args:
        expected: what it wants shown of every implementation.
        reported: what went wrong in the harness, by implementation.
        judged: the code of every implementation.
    """
    return Account(
        harness=kdaverify.__version__,
        profile=profile,
        seed=seed,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        expected=tuple(expected),
        trouble={name: sentences for name, sentences in reported.items() if sentences},
        judged=dict(judged),
    )
