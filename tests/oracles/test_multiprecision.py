"""The plain recurrence in mpmath: checked by hand, against float64, and for the two things that go
wrong, resets and packs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

from oracles.inputs import Inputs
from oracles.multiprecision import recurrence
from oracles.recurrence import recurrence as rounded
from oracles.tensors import TOKENS

Call = Callable[..., Inputs]
mp: Any = mpmath.mp


def tensor(nested: Any) -> torch.Tensor:
    def rounded_to_float(part: Any) -> Any:
        return [rounded_to_float(x) for x in part] if isinstance(part, list) else float(part)

    return torch.tensor(rounded_to_float(nested), dtype=torch.float64)


def test_one_token_by_hand() -> None:
    q, k, v, g, S = (torch.full((1, 1, 1, 1), x) for x in (3.0, 0.5, 2.0, -1.0, 8.0))
    inputs = Inputs(q, k, v, g, torch.full((1, 1, 1), 0.25), scale=0.5, initial_state=S)
    o, final = recurrence(inputs, digits=60)
    with mp.workdps(60):
        decayed = 8 * mp.exp(-1)
        after = decayed + mp.mpf(0.5) * mp.mpf(0.25) * (2 - decayed / 2)
        assert abs(final[0][0][0][0] - after) < mp.mpf(10) ** -57
        assert abs(o[0][0][0][0] - after * 3 / 2) < mp.mpf(10) ** -57


@pytest.mark.parametrize("gate", ["zero", "log-sigmoid", "mixture per token", "one-token resets"])
def test_the_float64_recurrence_is_its_rounding(gate: str, call: Call) -> None:
    inputs = call(B=2, T=9, H=1, HV=3, gate=gate)
    found, wanted = recurrence(inputs), rounded(inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(tensor(a), b, rtol=1e-13, atol=1e-14)


def test_more_digits_change_only_the_digits_that_were_not_carried(call: Call) -> None:
    inputs = call(T=9, gate="slow")
    (short, _), (long, _) = recurrence(inputs, digits=50), recurrence(inputs, digits=100)
    with mp.workdps(100):
        gaps = [
            abs(a - b)
            for rows, others in zip(short[0], long[0], strict=True)
            for a, b in zip(rows[0], others[0], strict=True)
        ]
        assert max(gaps) < mp.mpf(10) ** -47
        assert max(gaps) > 0


def test_a_hard_reset_is_exact(call: Call) -> None:
    inputs = call(T=4, beta="zero", gate="first and last reset")
    o, final = recurrence(inputs)
    assert all(x == 0 for row in final[0][0] for x in row)
    assert all(x == 0 for x in o[0][3][0])


def test_a_pack_is_its_sequences_run_alone(call: Call) -> None:
    inputs = call(T=9, offsets=[0, 0, 4, 7], HV=2)
    o, final = recurrence(inputs)
    assert torch.equal(tensor(final[0]), inputs.state[0].double())
    assert all(x == 0 for row in o[0][7:] for head in row for x in head)
    for n, (start, end) in enumerate(((0, 4), (4, 7)), start=1):
        part = {name: getattr(inputs, name)[:, start:end] for name in TOKENS}
        alone_o, alone_final = recurrence(Inputs(**part, initial_state=inputs.state[n : n + 1]))
        assert alone_o[0] == o[0][start:end]
        assert alone_final[0] == final[n]


def test_precision_is_restored(call: Call) -> None:
    before = mp.dps
    recurrence(call(T=1), digits=77)
    assert mp.dps == before
