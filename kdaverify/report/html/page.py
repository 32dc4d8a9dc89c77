"""The page of records: everything that it shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from kdaverify.checks.status import Status
from kdaverify.report.html import words
from kdaverify.report.html.comparison import RunComparison, comparison
from kdaverify.report.html.credential import Credential, ProfileCredential, credential
from kdaverify.report.html.distributions import Distribution, distributions
from kdaverify.report.html.environment import Environment, environments
from kdaverify.report.html.failures import EvidenceLimit, Kinds, evidence_limits, kinds, worst
from kdaverify.report.html.glance import Glance, glance
from kdaverify.report.html.heat import SHADES, Heat, heats
from kdaverify.report.html.lengths import Lengths, lengths
from kdaverify.report.html.rendering import rendered
from kdaverify.report.html.rows import Rows
from kdaverify.report.html.rulings import Ruled
from kdaverify.report.html.stages import Stage, stages
from kdaverify.report.html.standards import Standards, standards
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.waivers import Held


@dataclass(frozen=True)
class Page:
    """The contents of a page on one or more runs.

    Args:
        ruled: of every implementation.
        sources: the records it was made from.
        troubles: what is wrong with these, in sentences.
        waivers: what was held against failures; None where none could be given.
        before: the rows of another run, and what it is called.
    """

    rows: Rows
    ruled: tuple[Ruled, ...]
    sources: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    waivers: tuple[Held, ...] | None = None
    before: tuple[Rows, str] | None = None

    @property
    def title(self) -> str:
        """The decision in a line."""
        if len(self.ruled) > words.MOST_TITLED:
            accepted = [one for one in self.ruled if one.ruling is Ruling.ACCEPT]
            if any(one.is_provisional for one in accepted):
                how = "pass a check that is no release approval"
            else:
                how = "accepted"
            return f"{len(accepted)} of {len(self.ruled)} implementations {how}"
        by_verdict: dict[str, list[str]] = {}
        for one in self.ruled:
            by_verdict.setdefault(one.verdict, []).append(one.implementation)
        return (
            "; ".join(f"{' and '.join(names)} {verdict}" for verdict, names in by_verdict.items())
            or "nothing was judged"
        )

    @cached_property
    def glance(self) -> Glance:
        return glance(self.rows)

    @cached_property
    def kinds(self) -> Kinds:
        return kinds(self.rows)

    @cached_property
    def limits(self) -> list[EvidenceLimit]:
        return evidence_limits(self.rows)

    @cached_property
    def worst(self) -> list[Mapping[str, Any]]:
        return worst(self.rows)

    @cached_property
    def distributions(self) -> list[Distribution]:
        return distributions(self.rows)

    @cached_property
    def heats(self) -> list[Heat]:
        return heats(self.rows)

    @cached_property
    def lengths(self) -> list[Lengths]:
        return lengths(self.rows)

    @cached_property
    def stages(self) -> list[Stage]:
        return stages(self.rows)

    @cached_property
    def standards(self) -> list[Standards]:
        return standards(self.rows)

    @property
    def rules(self) -> list[str]:
        """Every published rule that was applied to any implementation."""
        return list(dict.fromkeys(tally.rule for own in self.standards for tally in own.tallies))

    @cached_property
    def environments(self) -> list[Environment]:
        return environments(self.rows)

    @cached_property
    def credential(self) -> Credential | None:
        return credential()

    @property
    def credentials(self) -> list[ProfileCredential]:
        """What the harness was measured to be worth under each profile that ran here."""
        profiles = dict.fromkeys(profile for one in self.ruled for profile in one.facts.profiles)
        found = [self.credential.under(profile) for profile in profiles] if self.credential else []
        return [one for one in found if one is not None]

    @cached_property
    def comparison(self) -> RunComparison | None:
        return None if self.before is None else comparison(self.rows, *self.before)


def write_html(page: Page, path: Path, *, now: datetime | None = None) -> None:
    """Writes the page.

    Raises:
        OSError: the file cannot be written.
        CredentialError: the kill matrix of the harness is malformed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(page, "page.html", now=now), encoding="utf-8")


def render(page: Page, template: str, *, now: datetime | None = None) -> str:
    """The page by one of the templates; those that end in .html escape all that they are given."""
    return rendered(
        template, now=now, page=page, words=words, Ruling=Ruling, Status=Status, shades=SHADES
    )
