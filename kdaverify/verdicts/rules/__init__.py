"""Rules: what must be shown beside the declaration, and what must not be exceeded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from kdaverify.verdicts.toml_file import FileError, read_toml

_FOLDER: Final = Path(__file__).parent
SHIPPED: Final = ("session", "campaign", "acceptance", "nightly")
"""The strictest last."""
CAMPAIGN: Final = "campaign"
"""What the account of a campaign gives for its profile: it runs the random tests, and nothing
else."""
BY_PROFILE: Final = {
    "smoke": "session",
    CAMPAIGN: "campaign",
    "acceptance": "acceptance",
    "nightly": "nightly",
}
"""The rules of a record whose reader names none; of a profile there is not, acceptance."""

Count = Annotated[int, Field(ge=1, strict=True)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _renamed(value: object) -> object:
    """Rule files of version 0.2 and before have the older name."""
    return "report" if value == "tell" else value


class Require(BaseModel):
    """What needs a pass whatever the implementation declares: names of each axis."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ops: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    regimes: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()


class AtLeast(BaseModel):
    """The fewest conclusive verdicts: in all, and of everything that is required or declared.

    Args:
        total: in all.
        op, dtype, regime, property: of each.
        output: of each output in each format.
        pairs, triples: the least share of combinations of properties that must be judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    total: Count = 1
    op: Count = 1
    output: Count = 1
    dtype: Count = 1
    regime: Count = 1
    property: Count = 1
    pairs: Share = 0.0
    triples: Share = 0.0


class Limit(BaseModel):
    """A statistic over verdicts that must not be exceeded.

    Args:
        statistic: of ratios, value / tolerance: "worst", "q99" (99 % quantile) or "median"; of
            verdicts, the share that is "skipped", `vacuous` or `acquitted` (borderline failures
            that passed at fresh seeds).
        most: the largest it may be.
        property, op, dtype, regime, output: globs; which verdicts count.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    statistic: Literal["worst", "q99", "median", "skipped", "vacuous", "acquitted"]
    most: Share
    property: str = "*"
    op: str = "*"
    dtype: str = "*"
    regime: str = "*"
    output: str = "*"


class Rules(BaseModel):
    """What an implementation must show to be accepted, beside what it declares.

    Args:
        about: in words.
        profiles: the sessions must have run one of these; () takes any.
        require: what needs passes.
        at_least: how many.
        limits: what must not be exceeded.
        mixed_versions: whether verdicts on several versions are no evidence, or reported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    about: str = Field(min_length=1)
    profiles: tuple[str, ...] = ()
    require: Require = Require()
    at_least: AtLeast = AtLeast()
    limits: tuple[Limit, ...] = ()
    mixed_versions: Annotated[Literal["refuse", "report"], BeforeValidator(_renamed)] = "refuse"


def rules_named(name: str) -> Rules:
    """Shipped rules by name, or those of a file.

    Raises:
        FileError: there are none of that name, or the file is wrong.
    """
    if name in SHIPPED:
        return read_toml(_FOLDER / f"{name}.toml", Rules, "rules")
    if not name.endswith(".toml"):
        raise FileError(
            f"rules: wanted {', '.join(SHIPPED)} or a file ending in .toml, got {name!r}"
        )
    return read_toml(Path(name), Rules, "rules")
