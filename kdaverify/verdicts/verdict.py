"""One row of a record: what one output of one run of one problem came to."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from kdaverify.checks.borderline import CLEAR, SETTLED, Recheck
from kdaverify.checks.location import NoStage
from kdaverify.checks.status import Grade, RuleOutcome, Status
from kdaverify.operators.sizes import RecordedSizes, sizes_of

SCHEMA = 5
"""Version of the row; a reader takes every older one and refuses a newer one."""


class Opinion(BaseModel):
    """One rule's verdict.

    Args:
        says: pass, fail or n/a.
        statistic: what it measured, or why nothing was.
        value, limit: of that; None where there is no figure.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    says: RuleOutcome
    statistic: str
    value: float | None = None
    limit: float | None = None


class Verdict(RecordedSizes):
    """The result of one comparison.

    Args:
        implementation: name of the adapter.
        property: what was tested ("forward", "resume", ...): the suite's name.
        op, dtype, regime: the operation, the problem's format and its gate regime.
        case: id of the problem; "" where no problem was tested.
        problem: the problem as JSON; "" likewise.
        B, T, N, H, HV, K, V: its sizes: batch entries, tokens of each, sequences, heads of keys and
            of values, widths; None: not stated.
        detail: what the property chose beside the problem (a cut, an arrangement).
        output: "o", "final_state", or "call" for what concerns the whole call.
        status: what is concluded.
        statistic, value, budget, ratio: the worst statistic, what was found, its tolerance, value /
            tolerance; None without a comparison.
        grade: A componentwise, B row-scaled, C norm only, F.
        worst: token, head and element, with the inputs that made it.
        message: the comparison in words, what the call did wrong, or why it was skipped.
        stage: the first stage outside its tolerance ("solve"; of stages fused into one with its
            tensor, "intra (R)"), or a NoStage in its place; None where nothing was localised.
        located: what of that stage is off and on which inputs, or what was judged of the stages and
            what was not.
        diagnosis: of one case of every property that fails, which known fault it cannot be
            distinguished from, or that none fits.
        minimised: of the same case, how to replay the smallest one that fails in the same way, or
            why there is none.
        contrast: of the same case or a smaller one, what its failure depends on, found by changing
            one thing at a time; "" of all others.
        same_as: the plain call ("forward", "gradients") that fails in the same way on the same
            problems, where that was found: this failure adds nothing to that one.
        vacuous: of zeros, the negated and a shuffled output, those that would pass too: the verdict
            is then inconclusive.
        peers: the rms error over that of every emulated conforming kernel that rounds to nearest;
            () where those have
        unusually small errors, and where nothing was compared.
        digits_fewer: correct digits that a pass has fewer than a token recurrence on the same
            inputs; None for an unremarkable number.
        recheck: of a borderline failure, what fresh seeds found; status and grade follow it, the
            figures are those of the first seed.
        published: what the rules of others say of the same output, by rule; never part of `status`.
        benchmark: whose errors those that compare errors held its own against.
        contract, oracle: what was declared, and how the exact value was obtained.
        oracle_bits: the precision at which it was; None where no exact value was needed.
        device, mode, versions: where and with what it ran.
        seed: of the session that drew the problem.
        number: of the case in the campaign of that seed; None for any other case.
        duration_s: of the check, oracle included.
        replay: the command that repeats it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    schema_version: int = Field(default=SCHEMA, le=SCHEMA)
    implementation: str
    property: str
    op: str = "kda"
    dtype: str = ""
    regime: str = ""
    case: str = ""
    problem: str = ""
    detail: dict[str, Any] = Field(default_factory=dict)
    output: str = "call"
    status: Status
    statistic: str | None = None
    value: float | None = None
    budget: float | None = None
    ratio: float | None = None
    grade: Grade | None = None
    worst: str = ""
    message: str = ""
    stage: str | None = None
    located: str = ""
    diagnosis: str = ""
    minimised: str = ""
    contrast: str = ""
    same_as: str = ""
    vacuous: tuple[str, ...] = ()
    peers: tuple[float, ...] = ()
    digits_fewer: float | None = None
    recheck: Recheck | None = None
    published: dict[str, Opinion] = Field(default_factory=dict)
    benchmark: str = ""
    contract: str = ""
    oracle: str = ""
    oracle_bits: int | None = None
    device: str = ""
    mode: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    seed: int = 0
    number: int | None = None
    duration_s: float = 0.0
    replay: str = ""

    def proves(self) -> bool:
        """Whether it is evidence: a pass that no negative control would get."""
        return self.status is Status.PASS and not self.vacuous

    def is_clear(self) -> bool:
        """Whether it is a failure that another seed would not take back."""
        return self.status.rejects and (self.ratio is None or not self.ratio < CLEAR)

    def left_open(self) -> bool:
        """Whether it is a borderline failure not run again, as the kernel is rejected anyway."""
        return self.status.rejects and self.recheck is not None and self.recheck.reason == SETTLED

    def case_key(self) -> tuple[str, str, str, str]:
        """What was tested, whatever the result: verdicts that agree in it are of one case."""
        detail = ",".join(f"{name}={value}" for name, value in sorted(self.detail.items()))
        return self.property, self.dtype, self.case, detail

    def names_stage(self) -> bool:
        """Whether a stage is to blame by name."""
        return self.stage is not None and self.stage not in {*NoStage}

    def whereabouts(self) -> str:
        """Which stage is wrong, or what is to be said instead; "" where nothing was localised."""
        if self.stage is None:
            return ""
        if self.names_stage():
            found = f"first wrong stage: {self.stage}, "
        else:
            found = f"stages: {self.stage}; "
        return f"{found}{self.located}".rstrip(",; ")

    def headline(self) -> str:
        """The first line of the message."""
        return self.message.partition("\n")[0]


DOUBLE: Final = 53
"""Bits of a float64."""

_BITS: Final = re.compile(r"(\d+) bits\b")


def bits_of(oracle: str) -> int | None:
    """The precision that an oracle's description states; None where it states none."""
    found = _BITS.search(oracle)
    if found is not None:
        return int(found[1])
    return DOUBLE if oracle.startswith("float64") else None


def completed(verdict: Verdict) -> Verdict:
    """A verdict of version 1 with the figures that it did not have; any other as it is."""
    if verdict.schema_version > 1:
        return verdict
    return verdict.model_copy(
        update={**sizes_of(verdict.problem), "oracle_bits": bits_of(verdict.oracle)}
    )


NAME_FIELDS: Final = ("property", "dtype", "regime", "case", "output", "detail")
"""The fields of a row that make its name; `detail` as JSON."""


def identity(about: Sequence[str]) -> str:
    """The name of a verdict, by which waivers and the ledger find it from run to run:
    PROPERTY/DTYPE/REGIME/CASE/OUTPUT, then /NAME=VALUE,... for the property's own choices.

    Args:
        about: the values of NAME_FIELDS.
    """
    *named, detail = about
    chosen: dict[str, Any] = json.loads(detail)
    reported = ",".join(f"{name}={value}" for name, value in sorted(chosen.items()))
    return "/".join((*named, *([reported] if reported else [])))
