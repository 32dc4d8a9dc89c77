"""What a campaign or night leaves in its record beside verdicts, for the gate to decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kdaverify.campaign.suite_tests import CONVENTIONS, questions
from kdaverify.campaign.tally import CampaignCounts
from kdaverify.campaign.task import Orders
from kdaverify.plugin.account import account_of
from kdaverify.plugin.expected import declared
from kdaverify.plugin.suite_files import shipped
from kdaverify.verdicts.code_identity import identity_of
from kdaverify.verdicts.rules import CAMPAIGN
from kdaverify.verdicts.seal import Account

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter


def of_campaign(orders: Orders, tally: CampaignCounts) -> Account:
    """It runs the random tests of the suites: of suites without any no pass is wanted, and rules
    for whole sessions are not met.
    """

    def tested(adapter: Adapter) -> set[str]:
        return shipped(adapter.op) & {CONVENTIONS.property} | {
            *(question.property for question in questions(adapter, orders.profile, random=True))
        }

    return _account(CAMPAIGN, orders, tally, tested)


def of_night(orders: Orders, tally: CampaignCounts) -> Account:
    """It runs all that a session of its profile runs, and is held against the same rules."""
    return _account(
        orders.profile,
        orders,
        tally,
        lambda adapter: shipped(adapter.op) | tally.tested(adapter.name),
    )


def _account(
    profile: str, orders: Orders, tally: CampaignCounts, properties: Callable[[Adapter], set[str]]
) -> Account:
    from kdaverify.adapters.registry import find

    adapters = [find(spec) for spec in orders.specs.values()]
    expected = [
        declared(
            adapter,
            properties(adapter),
            orders.profile,
            tally.heard(adapter.name),
            missing=adapter.missing(),
        )
        for adapter in adapters
    ]
    trouble = {name: tuple(reported) for name, reported in tally.trouble.items()}
    return account_of(
        profile,
        orders.seed,
        expected,
        trouble,
        {name: identity_of(spec) for name, spec in orders.specs.items()},
    )
