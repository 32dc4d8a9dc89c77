"""Of a failing case the first stage outside its tolerance is reported;
where none can be named, it says why.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.stages import StageArguments, StageCall
from kdaverify.checks.localise import localise
from kdaverify.checks.location import Location, NoStage
from kdaverify.checks.properties import check
from tests.adapters.fla import torch_port
from tests.checks import staged
from tests.checks.staged import Staged, changed, tables
from tests.checks.test_stages import FAULTS, problem

# It spoils what no later stage reads.
UNSEEN = "input overwritten"
PORT = "fla_port:module=tests.adapters.fla.torch_port"
NEUMANN = tables(solve=staged.truncated_neumann)


@pytest.mark.parametrize("name", [name for name in FAULTS if name != UNSEEN])
def test_of_a_planted_fault_that_fails_end_to_end_the_stage_is_named(name: str) -> None:
    wanted, fault, changes = FAULTS[name]
    tested = problem(dtype="fp32", **changes)
    assert any(
        outcome.status.rejects for outcome in check("forward", Staged(name, fault), tested, {})
    )
    found = localise(Staged(name, fault), tested, "forward", {})
    assert found.stage == wanted and found.reported.startswith("on exact inputs; ")


def test_what_is_off_and_how_far_is_reported_in_one_line() -> None:
    reported = localise(Staged("neumann", NEUMANN), problem(gate="slow"), "forward", {}).reported
    assert re.fullmatch(
        r"on exact inputs; R: relative tail error \S+, tolerance \S+ \(\S+x tolerance\)",
        reported,
    )


def test_where_no_stage_is_exposed_or_all_are_right_no_stage_is_named() -> None:
    assert localise(find("eager-recurrent"), problem(), "forward", {}) == Location(
        NoStage.NONE_EXPOSED
    )
    right = localise(find("eager"), problem(), "forward", {})
    assert right == Location(NoStage.ALL_WITHIN, "cumsum, scores, solve, wy, state, output")


def test_what_is_not_judged_is_not_called_right() -> None:
    assert localise(find("eager"), problem(dtype="fp64"), "forward", {}).stage == NoStage.NOT_JUDGED


def test_stages_that_cannot_be_handed_hard_resets_are_tested_with_deep_gates_in_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested = problem(gate="hard-reset", key="identical")
    right = localise(find(PORT), tested, "forward", {})
    reported = (
        "a hard reset has no finite cumulative gate to hand over; within tolerance: cumsum, intra,"
        " wy, state, output"
    )
    assert right == Location(
        NoStage.NOT_JUDGED, f"{reported}; tested with gates of -10000 for hard resets"
    )
    intra = torch_port.chunk_kda_fwd_intra

    @functools.wraps(intra)
    def wrong_inverse(*args: Any, **settings: Any) -> tuple[Tensor, ...]:
        *others, R = intra(*args, **settings)
        return *others, 1.5 * R

    monkeypatch.setattr(torch_port, "chunk_kda_fwd_intra", wrong_inverse)
    wrong = localise(find(PORT), tested, "forward", {})
    assert wrong.stage == "intra (R)" and wrong.reported.endswith(
        "; tested with gates of -10000 for hard resets"
    )


def test_a_stage_that_is_wrong_on_its_own_inputs_only_is_reported_so() -> None:
    def reads_all(x: StageArguments, written: dict[str, Tensor]) -> Mapping[str, Tensor]:
        return {"o": written["o"] + 0 * x.tensors["Aqk"].sum(-1, keepdim=True)}

    class Unmasked(Staged):
        def stages(self, dtype: str) -> Mapping[str, StageCall]:
            calls = dict(super().stages(dtype))
            calls["scores"] = changed(calls["scores"], staged.upper_left_undefined)
            return calls | {"output": changed(calls["output"], reads_all)}

    found = localise(Unmasked("unmasked"), problem(), "forward", {})
    assert found.stage == "output" and found.reported.startswith("on its own inputs; o: ")


def raising(error: Exception) -> Staged:
    def change(x: StageArguments, written: dict[str, Tensor]) -> Mapping[str, Tensor]:
        raise error

    return Staged("raising", ("wy", change))


def test_a_stage_that_raises_is_named() -> None:
    found = localise(raising(RuntimeError("no such tile")), problem(), "forward", {})
    assert found.stage == "wy" and found.reported.startswith(
        "on exact inputs; the kernel raised RuntimeError: no such tile"
    )


def test_what_keeps_stages_from_being_tested_is_reported_and_not_raised() -> None:
    lacking = localise(
        raising(AdapterError("recompute_w_u_fwd: has no parameter A")), problem(), "forward", {}
    )
    assert lacking.stage == NoStage.NOT_JUDGED
    assert lacking.reported.startswith("AdapterError: recompute_w_u_fwd: has no parameter A")
    assert lacking.reported.endswith("within tolerance: cumsum, scores, solve")

    class Lost(Staged):
        def stages(self, dtype: str) -> Mapping[str, StageCall]:
            raise ImportError("no module named port")

    assert localise(Lost("lost"), problem(), "forward", {}).reported.startswith(
        "ImportError: no module named port"
    )


def test_nothing_is_tested_after_the_first_wrong_stage() -> None:
    called: list[str] = []

    def noting(name: str) -> Callable[[StageArguments, dict[str, Tensor]], Mapping[str, Tensor]]:
        def change(x: StageArguments, written: dict[str, Tensor]) -> Mapping[str, Tensor]:
            called.append(name)
            return written

        return change

    class Noting(Staged):
        def stages(self, dtype: str) -> Mapping[str, StageCall]:
            return {
                name: changed(call, noting(name)) for name, call in super().stages(dtype).items()
            }

    assert localise(Noting("noting", NEUMANN), problem(gate="slow"), "forward", {}).stage == "solve"
    assert called == ["cumsum", "scores", "solve"]


class Varied(Staged):
    """Right as it is called plainly, and wrong under an option."""

    def variants(self) -> Mapping[str, Adapter]:
        return {"neumann": Staged("varied:neumann", NEUMANN)}


def test_a_variant_is_tested_for_its_own_stages() -> None:
    tested = problem(gate="slow")
    assert localise(Varied("varied"), tested, "options", {"variant": "neumann"}).stage == "solve"
    assert localise(Varied("varied"), tested, "forward", {}).stage == NoStage.ALL_WITHIN


DENSE: dict[str, Any] = {"lengths": None, "T": 70, "gate": "slow"}


@pytest.mark.parametrize(
    ("name", "detail", "changes", "reported"),
    [
        ("resume", {"cut": 17, "way": "chunk-chunk"}, DENSE, "; tested on one uncut run"),
        (
            "packing",
            {"arrangement": "reversed"},
            {},
            "; tested on the pack in one call, in its own order",
        ),
        ("causality", {"cut": 17}, DENSE, "; tested on the problem with its own later tokens"),
    ],
)
def test_a_property_that_calls_the_kernel_otherwise_says_what_its_stages_were_tested(
    name: str, detail: dict[str, Any], changes: dict[str, Any], reported: str
) -> None:
    assert localise(find("eager"), problem(**changes), name, detail).reported.endswith(
        f"output{reported}"
    )
    assert localise(
        Staged("neumann", NEUMANN), problem(**{**changes, "gate": "slow"}), name, detail
    ).reported.endswith(reported)
