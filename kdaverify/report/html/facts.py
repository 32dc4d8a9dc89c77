"""What was run: profile, seed, contract, rules, and the code that was judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from kdaverify.verdicts.code_identity import CodeIdentity
from kdaverify.verdicts.rules import BY_PROFILE, CAMPAIGN
from kdaverify.verdicts.seal import Account

RELEASE: Final = ("acceptance", "nightly")
"""Profiles that are meant to decide on a release."""
PURPOSES: Final = {
    "smoke": "a quick check while a kernel is written: every suite, with few and small cases",
    "acceptance": (
        "the check before a release: every suite, sizes of real models, and more random cases"
    ),
    "nightly": (
        "the longest check: every suite, sizes of real models, and hundreds of random cases a test"
    ),
    CAMPAIGN: (
        "random cases alone, as many as were requested; the fixed cases of the suites were not run"
    ),
}
APPROVES: Final = (
    "A release is decided by the profile acceptance: kdaverify verify --profile acceptance, then"
    " kdaverify gate on its record."
)
SESSION: Final = BY_PROFILE["smoke"]


@dataclass(frozen=True)
class RunFacts:
    """What was run on one implementation.

    Args:
        profiles, seeds, harnesses, finished: of its sessions; () where none recorded them.
        contracts: that it declares, by name.
        rules: by which it was decided.
        codes: the code that was judged, each version once; () where it was not recorded.
    """

    profiles: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    contracts: tuple[str, ...] = ()
    rules: str = SESSION
    codes: tuple[CodeIdentity, ...] = ()
    harnesses: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()

    @property
    def is_release(self) -> bool:
        """Whether the profiles are those that decide on a release."""
        return bool(self.profiles) and {*self.profiles} <= {*RELEASE}

    @property
    def profile(self) -> str:
        """The profiles in a word or a few."""
        return " and ".join(self.profiles) or "an unrecorded profile"

    @property
    def purposes(self) -> tuple[str, ...]:
        """What each profile is for."""
        return tuple(
            f"{profile}: {PURPOSES[profile]}" for profile in self.profiles if profile in PURPOSES
        )


def run_facts(
    accounts: Sequence[Account], implementation: str, own: pl.DataFrame, rules: str = SESSION
) -> RunFacts:
    """The facts of one implementation.

    Args:
        accounts: of the sessions that judged it.
        own: its rows.
    """
    codes = {one.short: one for account in accounts if (one := account.judged.get(implementation))}
    return RunFacts(
        profiles=_each(account.profile for account in accounts if account.profile),
        seeds=tuple(sorted({account.seed for account in accounts})),
        contracts=_each(sorted(name for name in own["contract"].cast(pl.String).unique() if name)),
        rules=rules,
        codes=tuple(codes.values()),
        harnesses=_each(account.harness for account in accounts if account.harness),
        finished=_each(account.finished for account in accounts if account.finished),
    )


def _each(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
