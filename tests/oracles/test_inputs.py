"""Bad inputs are refused at the door, each with a message that names the tensor,
what was wanted and what came.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracles.inputs import InputError, Inputs


def good() -> dict[str, Any]:
    B, T, H, HV, K, V = 1, 6, 1, 2, 3, 5
    return {
        "q": torch.ones(B, T, H, K),
        "k": torch.ones(B, T, H, K),
        "v": torch.ones(B, T, HV, V),
        "g": -torch.ones(B, T, HV, K),
        "beta": torch.ones(B, T, HV) / 2,
        "initial_state": torch.zeros(B, HV, K, V),
    }


def test_good_inputs_are_taken_and_measured() -> None:
    inputs = Inputs(**good())
    assert (inputs.B, inputs.T, inputs.H, inputs.HV, inputs.K, inputs.V, inputs.N) == (
        1,
        6,
        1,
        2,
        3,
        5,
        1,
    )
    assert inputs.factor == 3**-0.5


NAN, INF = float("nan"), float("inf")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"k": torch.ones(1, 6, 1, 4)}, r"k: wanted shape \[1, 6, 1, 3\].*got \[1, 6, 1, 4\]"),
    ({"q": torch.ones(6, 1, 3)}, r"q, v: wanted \[B, T, H, K\]"),
    (
        {"v": torch.ones(1, 6, 2, 5, dtype=torch.int64)},
        "v: wanted a floating-point torch tensor, got torch.int64",
    ),
    ({"q": [[1.0]]}, "q: wanted a floating-point torch tensor, got list"),
    ({"beta": torch.ones(1, 5, 2)}, r"beta: wanted shape \[1, 6, 2\]"),
    (
        {"q": torch.ones(1, 6, 4, 3), "k": torch.ones(1, 6, 4, 3)},
        "2 value heads must be a multiple of the 4 key heads",
    ),
    ({"initial_state": torch.zeros(1, 2, 5, 3)}, r"initial_state: wanted shape \[1, 2, 3, 5\]"),
    (
        {"g": torch.full((1, 6, 2, 3), 0.5)},
        r"g: wanted log decays <= 0.*0.5 at index \[0, 0, 0, 0\]",
    ),
    ({"g": torch.full((1, 6, 2, 3), NAN)}, "g: wanted log decays"),
    ({"q": torch.full((1, 6, 1, 3), NAN)}, "q: wanted finite values, got nan"),
    ({"v": torch.full((1, 6, 2, 5), INF)}, "v: wanted finite values, got inf"),
    ({"beta": torch.full((1, 6, 2), 2.5)}, r"beta: wanted values in \[0, 2\], got 2.5"),
    (
        {"cu_seqlens": torch.tensor([0, 4, 3, 6])},
        "cu_seqlens: wanted offsets that start at 0 and never fall",
    ),
    ({"cu_seqlens": torch.tensor([1, 6])}, "start at 0"),
    ({"cu_seqlens": torch.tensor([0])}, "wanted a 1-d integer tensor of N"),
    ({"cu_seqlens": torch.tensor([0.0, 6.0])}, "wanted a 1-d integer tensor of N"),
    ({"cu_seqlens": torch.tensor([0, 7])}, "the last offset 7 lies past the 6 tokens"),
    ({"cu_seqlens": torch.tensor([0, 3, 6])}, r"initial_state: wanted shape \[2, 2, 3, 5\]"),
]


@pytest.mark.parametrize(
    ("change", "message"), BAD, ids=lambda value: value[:40] if isinstance(value, str) else None
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Inputs(**(good() | change))


def test_a_hard_reset_is_a_conforming_gate() -> None:
    given = good()
    given["g"] = torch.full((1, 6, 2, 3), -INF)
    Inputs(**given)
