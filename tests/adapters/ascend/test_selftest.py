"""The self-test's question: every reading gives another answer to it,
however its tensors are rounded.
"""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from kdaverify.adapters.ascend import selftest
from kdaverify.adapters.ascend.gates import (
    CUMULATED_LOG2,
    CUMULATED_NATURAL,
    FORMS,
    LOG2,
    NATURAL,
    GateForm,
    through,
)
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.tensors import TOKENS
from tests.adapters.standins import MakeProblem

FAR = selftest.ALIKE  # a conforming 16-bit kernel is off by a tenth of it
READINGS = {
    "natural": selftest.gates(NATURAL, (LOG2, CUMULATED_LOG2, CUMULATED_NATURAL)),
    "summed": selftest.gates(CUMULATED_LOG2, (NATURAL, LOG2, CUMULATED_NATURAL)),
}


@pytest.mark.parametrize("handed", READINGS)
@pytest.mark.parametrize("width", [16, 64, 128])
def test_every_reading_answers_differently(handed: str, width: int) -> None:
    tested = selftest.question(H=2, HV=4, width=width, dtype=torch.bfloat16, state=True)
    others = [
        *selftest.scales(),
        *selftest.values(),
        *selftest.heads(),
        *selftest.states(),
        selftest.both_states(),
        selftest.logits(),
    ]
    layouts = [
        selftest.laid_out_otherwise(name, declared_head_major=name != "v") for name in TOKENS
    ]
    written = [selftest.Reading("o head-major", o=selftest.head_major)]
    answers = {
        reading.said: _answer(reading, tested)
        for reading in [selftest.Reading(""), *READINGS[handed], *others, *layouts, *written]
    }
    for (one, a), (other, b) in combinations(answers.items(), 2):
        assert float(max((x - y).norm() / y.norm() for x, y in zip(a, b, strict=True))) > FAR, (
            one,
            other,
        )


def _answer(reading: selftest.Reading, tested: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    o, state = recurrence(reading.call(tested))
    return reading.o(o).flatten(), reading.state(state).flatten()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.said)
def test_a_gate_form_reads_what_it_handed(make_problem: MakeProblem, form: GateForm) -> None:
    for problem in (make_problem(T=150), make_problem(B=1, lengths=(0, 5, 130, 0, 4), T=139)):
        x = problem.inputs()
        got = through(form, x, 64)
        torch.testing.assert_close(got.g, x.g.double(), rtol=2e-4, atol=2e-5)
        # what was received is handed over unchanged
        assert torch.equal(form.hand(got, 64).float(), form.hand(x, 64))


def test_sums_start_again_in_every_chunk_and_sequence(make_problem: MakeProblem) -> None:
    x = make_problem(B=1, lengths=(3, 70), T=73, gate="slow").inputs()
    handed = CUMULATED_NATURAL.hand(x, 64)[0, :, 0, 0].double()
    one = x.g[0, :, 0, 0].double()
    for first, end in ((0, 3), (3, 67), (67, 73)):
        torch.testing.assert_close(handed[first:end], one[first:end].cumsum(0), rtol=1e-6, atol=0.0)
