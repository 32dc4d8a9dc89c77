"""What a session says of the combinations that it judged: all of them, or those left after a skip,
a failed collection or a selection.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import Eager
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.operators.kda.coverage import INTERPRETED, covered, rows
from kdaverify.problems.combinations import CombinationRow
from kdaverify.verdicts.judge import Judge
from kdaverify.verdicts.verdict import Verdict
from oracles.inputs import Inputs
from tests.rows import row


def judged(
    adapter: Adapter,
    profile: str,
    status: Callable[[CombinationRow], Status] = lambda _: Status.PASS,
) -> list[Verdict]:
    """The verdicts of a session on every row."""
    return [
        row(
            status(one),
            property="combined",
            problem=one.problem.to_json(),
            detail={"direction": one.direction},
        )
        for one in rows(adapter, profile)
    ]


@pytest.mark.parametrize(
    ("profile", "names"), [("smoke", ["pairs"]), ("acceptance", ["pairs", "triples"])]
)
def test_smoke_judges_every_pair_of_eager_and_acceptance_every_triple(
    profile: str, names: list[str]
) -> None:
    found = covered(find("eager"), profile, judged(find("eager"), profile))
    assert [one.name for one in found] == names
    assert all(one.share == 1.0 and one.possible > 1000 for one in found)
    assert str(found[0]).endswith("pairs of properties judged together (100 %)")


def test_what_is_skipped_covers_nothing() -> None:
    adapter = conforming(packing="cu_seqlens")
    (found,) = covered(
        adapter,
        "smoke",
        judged(adapter, "smoke", lambda one: Status.SKIP if one.problem.K == 128 else Status.PASS),
    )
    assert 0.7 < found.share < 0.95


def test_failures_are_judged_all_the_same() -> None:
    adapter = conforming(packing="cu_seqlens")
    (found,) = covered(adapter, "smoke", judged(adapter, "smoke", lambda _: Status.FAIL))
    assert found.share == 1.0


class Detached(Eager):
    """The embedded kernel outside of any graph: nothing declares that it has no backward."""

    def __init__(self) -> None:
        super().__init__("detached", {"fp32": "eager-fp32"})

    def forward(self, inputs: Inputs) -> Output:
        with torch.no_grad():
            return super().forward(inputs)


def test_a_kernel_that_turns_out_to_have_no_backward_is_judged_forward_on_every_pair() -> None:
    adapter, found = Detached(), list[Verdict]()
    for one in rows(adapter, "smoke"):
        Judge(adapter, found.append, "combined")(one.problem, direction=one.direction)
    forward = [one for one in found if not one.detail["direction"].startswith("gradients")]
    assert {one.status for one in forward} == {Status.PASS}
    assert {one.status for one in found if one not in forward} == {Status.SKIP}
    (pairs,) = covered(adapter, "smoke", found)
    assert pairs.share == 1.0 and pairs.possible > 1000
    (fewer,) = covered(adapter, "smoke", [one for one in found if one.K != 128])
    assert 0.7 < fewer.share < 0.95


def test_of_an_interpreted_kernel_a_part_of_the_rows_is_judged_and_the_share_says_so() -> None:
    adapter = find("fla")
    if adapter.environment()["mode"] != "interpreted":
        pytest.skip("a GPU runs fla natively here")
    (found,) = covered(adapter, "smoke", judged(adapter, "smoke"))
    assert len(rows(adapter, "smoke")) < 120 / INTERPRETED and 0.3 < found.share < 1.0
