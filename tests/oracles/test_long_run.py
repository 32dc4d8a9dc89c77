"""Long runs: pauses and cuts change nothing that they should not,
and the truth of a long run lies within its radius.
"""

from __future__ import annotations

import pytest
import torch

from oracles.chunk import chunk
from oracles.inputs import Inputs
from oracles.long_run import long_run
from oracles.recurrence import recurrence
from oracles.running_error import enclosed
from oracles.waypoints import WINDOW, walk


def call(T: int, *, gate: float = -8e-5, seed: int = 0) -> Inputs:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(2, T, 1, 8), dim=-1).float() for _ in range(2))
    g = (gate * (0.5 + torch.rand((2, T, 2, 8), generator=rng))).float()
    return Inputs(
        q,
        k,
        normal(2, T, 2, 4).float(),
        g,
        torch.rand((2, T, 2), generator=rng),
        initial_state=normal(2, 2, 8, 4).float(),
    )


def test_a_pause_changes_no_bit_and_the_window_is_the_last_of_the_outputs() -> None:
    inputs = call(320)
    o, final = chunk(inputs)
    waypoints = list(walk(chunk, inputs, (64, 192, 320), cuts=(128, 256)))
    for there in waypoints:
        assert there.o.shape[1] == WINDOW
        torch.testing.assert_close(
            there.o, o[:, there.tokens - WINDOW : there.tokens], rtol=0, atol=0
        )
    torch.testing.assert_close(waypoints[-1].final_state, final, rtol=0, atol=0)


def test_windows_gather_outputs_of_single_tokens() -> None:
    inputs = call(100)
    o, _ = recurrence(inputs)
    for there in walk(recurrence, inputs, (10, 70, 100), cuts=tuple(range(60, 100))):
        assert torch.equal(there.o, o[:, max(0, there.tokens - WINDOW) : there.tokens])


@pytest.mark.parametrize("gate", [-8e-5, -0.05, -5.0])
def test_the_truth_lies_within_its_radius_of_the_proven_recurrence(gate: float) -> None:
    inputs = call(256, gate=gate)
    truth = long_run(inputs, (64, 256))
    proven = enclosed(inputs).final_state
    missed = (truth.reached[-1].final_state - proven.high).norm(dim=(-2, -1)).amax(-1)
    size = proven.high.norm(dim=(-2, -1)).amax(-1)
    assert bool((missed <= truth.radius[-1] * size + proven.radius.amax((-3, -2, -1)) * 6).all())
    assert float(truth.radius.max()) < 1e-12


def test_a_run_with_a_larger_error_than_it_reports_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import oracles.long_run as module

    inputs, honest = call(128), long_run(call(128), (64, 128)).radius

    def single(part: Inputs, **_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return chunk(part, dtype=torch.float32)

    monkeypatch.setattr(module, "chunk", single)
    assert bool((long_run(inputs, (64, 128)).radius > 1e6 * honest).all())
