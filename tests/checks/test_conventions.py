"""A wrongly declared convention is reported as such, with the one that fits;
a kernel that is wrong otherwise is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kdaverify.adapters import Conventions
from kdaverify.adapters.kernel import kernel
from kdaverify.adapters.registry import find
from kdaverify.checks.conventions import conventions
from kdaverify.checks.status import Status
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from tests.adapters.standins import standin

DECLARED = Conventions(packing="cu_seqlens")


def test_the_declared_conventions_of_eager_fit() -> None:
    assert conventions(find("eager")).status is Status.PASS


@pytest.mark.parametrize(
    ("choice", "value"),
    [("state", "vk"), ("gate", "log2"), ("gate", "decay"), ("beta", "logit"), ("layout", "bhtd")],
)
def test_a_wrong_declaration_is_named_with_the_choice_that_fits(choice: str, value: str) -> None:
    behaves = replace(DECLARED, **{choice: value})
    outcome = conventions(standin(behaves, DECLARED))
    assert outcome.status is Status.CONVENTION
    assert f"behaves as {choice}={value!r}" in outcome.message


@pytest.mark.parametrize(
    ("choice", "value"),
    [("state", "vk"), ("gate", "log2"), ("gate", "decay"), ("beta", "logit"), ("layout", "bhtd")],
)
def test_the_right_declaration_passes(choice: str, value: str) -> None:
    behaves = replace(DECLARED, **{choice: value})
    assert conventions(standin(behaves, behaves)).status is Status.PASS


def test_a_kernel_that_is_wrong_under_every_convention_is_left_to_the_suites() -> None:
    two_wrong = Conventions(packing="cu_seqlens", gate="log2", beta="logit")
    assert conventions(standin(two_wrong, DECLARED)).status is Status.SKIP


def test_the_layout_whose_shapes_fit_is_named_where_the_numbers_are_wrong_too() -> None:
    def zeros(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float) -> Any:
        del g, beta, scale
        return 0 * v, q.new_zeros(len(q), v.shape[1], k.shape[-1], v.shape[-1])

    found = conventions(kernel(zeros, dtypes="fp32", layout="bthd"))
    assert (found.output, found.status) == ("final_state", Status.SHAPE)
    assert found.message.endswith("; with layout='bhtd' every output has its shape")


def test_offsets_that_are_named_and_refused_are_a_wrong_declaration() -> None:
    def refusing(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, initial_state: Any, cu_seqlens: Any = None
    ) -> Any:
        if cu_seqlens is not None:
            raise NotImplementedError("packs are for later")
        o, final = recurrence(Inputs(q, k, v, g, beta, None, initial_state))
        return o.to(q.dtype), final.to(g.dtype)

    found = conventions(kernel()(refusing))
    assert found.status is Status.CONVENTION
    assert "declare packing='none'" in found.message and "packs are for later" in found.message
    assert conventions(kernel(packing="none")(refusing)).status is Status.PASS
