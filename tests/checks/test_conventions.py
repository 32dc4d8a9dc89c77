"""A wrongly declared convention is reported as such, with the one that fits;
a kernel that is wrong otherwise is not.
"""

from __future__ import annotations

import pytest

from kdaverify.adapters import Conventions
from kdaverify.adapters.registry import find
from kdaverify.checks.conventions import conventions
from kdaverify.checks.status import Status
from tests.adapters.standins import standin

DECLARED = Conventions(packing="cu_seqlens")


def test_the_declared_conventions_of_eager_fit() -> None:
    assert conventions(find("eager")).status is Status.PASS


@pytest.mark.parametrize(
    ("choice", "value"),
    [("state", "vk"), ("gate", "log2"), ("gate", "decay"), ("beta", "logit"), ("layout", "bhtd")],
)
def test_a_wrong_declaration_is_named_with_the_choice_that_fits(choice: str, value: str) -> None:
    behaves = Conventions(**{"packing": "cu_seqlens", choice: value})
    outcome = conventions(standin(behaves, DECLARED))
    assert outcome.status is Status.CONVENTION
    assert f"behaves as {choice}={value!r}" in outcome.message


@pytest.mark.parametrize(
    ("choice", "value"),
    [("state", "vk"), ("gate", "log2"), ("gate", "decay"), ("beta", "logit"), ("layout", "bhtd")],
)
def test_the_right_declaration_passes(choice: str, value: str) -> None:
    behaves = Conventions(**{"packing": "cu_seqlens", choice: value})
    assert conventions(standin(behaves, behaves)).status is Status.PASS


def test_a_kernel_that_is_wrong_under_every_convention_is_left_to_the_suites() -> None:
    two_wrong = Conventions(packing="cu_seqlens", gate="log2", beta="logit")
    assert conventions(standin(two_wrong, DECLARED)).status is Status.SKIP
