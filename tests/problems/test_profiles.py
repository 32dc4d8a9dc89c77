"""Our Hypothesis settings hold wherever they are used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase

from kdaverify.problems import PROFILES, settings_for

SHOW = (
    "from kdaverify.problems import PROFILES, settings_for; print([repr(settings_for(profile)) for"
    " profile in PROFILES])"
)
CI_VARIABLES = {"CI", "GITHUB_ACTIONS", "TF_BUILD"}


def test_a_ci_variable_changes_nothing() -> None:
    env = {key: value for key, value in os.environ.items() if key not in CI_VARIABLES}
    env |= {"PYTHONPATH": str(Path(__file__).parents[2])} | (
        {} if CI_VARIABLES & set(os.environ) else {"CI": "true"}
    )
    shown = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert shown.strip() == repr([repr(settings_for(profile)) for profile in PROFILES])


def test_larger_profiles_draw_more() -> None:
    examples = [settings_for(profile).max_examples for profile in PROFILES]
    assert examples == [2, 6, 150]
    assert [settings_for(profile, share=1 / 3).max_examples for profile in PROFILES] == [1, 2, 50]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_seeded_by_us_and_never_times_out(profile: str) -> None:
    ours = settings_for(profile)
    assert not ours.derandomize
    assert ours.deadline is None
    assert ours.print_blob
    assert set(ours.suppress_health_check) == {
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    }


def test_only_nightly_remembers_failures_and_shrinks_them() -> None:
    assert [settings_for(profile).database is not None for profile in PROFILES] == [
        False,
        False,
        True,
    ]
    assert [Phase.shrink in settings_for(profile).phases for profile in PROFILES] == [
        False,
        False,
        True,
    ]


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match="profile: no profile named 'weekly'; known ones are smoke, acceptance, nightly",
    ):
        settings_for("weekly")
