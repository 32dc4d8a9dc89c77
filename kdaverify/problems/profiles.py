"""Our Hypothesis settings, stated in full so that a CI profile of Hypothesis changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, get_args

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from kdaverify.internals import BACKEND

Profile: TypeAlias = Literal["smoke", "acceptance", "nightly"]

PROFILES: tuple[Profile, ...] = get_args(Profile)

# The first example is always the simplest problem. What depends on several properties at once is
# tested by covering arrays besides.
_EXAMPLES = {"smoke": 2, "acceptance": 6, "nightly": 150}

# Shrinking calls a failing kernel with some 50 new shapes a test, hours where each is compiled or
# interpreted: only a night has them. Before that the diagnosis makes one case smaller, in bounded
# time. Explaining would add dozens more; targeting needs Hypothesis' own backend.
_DRAWING = (Phase.explicit, Phase.generate)
_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

_SUPPRESSED = (
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
)


# Largest `cost` of a random problem, in seconds: smoke judges some 450 of them within a minute.
_COST = {"smoke": 0.1, "acceptance": 0.3, "nightly": 1.2}


def cost_of(profile: str) -> float:
    """The largest `cost` a random problem of a profile may have.

    Raises:
        ValueError: no such profile.
    """
    check_profile(profile)
    return _COST[profile]


def check_profile(profile: str) -> None:
    """Refuse a profile that does not exist.

    Raises:
        ValueError: naming the profiles there are.
    """
    if profile not in PROFILES:
        raise ValueError(
            f"profile: no profile named {profile!r}; known ones are {', '.join(PROFILES)}"
        )


def rank(profile: str) -> int:
    """How many profiles are smaller."""
    return [*PROFILES].index(profile)  # pyright: ignore[reportArgumentType]


def settings_for(profile: str, *, fixed: bool = False, share: float = 1.0) -> settings:
    """Hypothesis settings of a profile: 2, 6 or 150 examples; nightly alone shrinks.

    Args:
        fixed: runs the random problems and no others: nothing is shrunk or remembered.
        share: of these examples, at least one.
    Raises:
        ValueError: no such profile.
    """
    check_profile(profile)
    shrinks = profile == "nightly" and not fixed
    return settings(
        max_examples=max(1, round(share * _EXAMPLES[profile])),
        derandomize=False,
        database=(
            DirectoryBasedExampleDatabase(Path(".hypothesis") / "examples") if shrinks else None
        ),
        verbosity=Verbosity.normal,
        phases=_SHRINKING if shrinks else _DRAWING,
        stateful_step_count=50,
        report_multiple_bugs=False,
        suppress_health_check=_SUPPRESSED,
        deadline=None,
        print_blob=True,
        backend=BACKEND,
    )
