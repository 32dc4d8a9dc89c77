"""Conventions: there and back is exact, every choice is converted rightly,
and a wrong declaration cannot pass.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from kdaverify.adapters import Adapter, ConventionError, Conventions
from kdaverify.adapters.convention_checks import ALLOWED
from kdaverify.adapters.conventions import segment_ids
from kdaverify.problems import Problem
from oracles.inputs import InputError
from oracles.tensors import TOKENS
from tests.adapters.standins import PACK, MakeProblem, distance, standin

PLAIN = Conventions(packing="cu_seqlens")
CHOICES = [
    (option, value) for option in ("layout", "state", "gate", "beta") for value in ALLOWED[option]
]
ROUNDING = 1e-6
FAR = 0.05


@pytest.mark.parametrize(
    ("layout", "state"), list(itertools.product(ALLOWED["layout"], ALLOWED["state"]))
)
def test_axes_there_and_back_are_the_identity(
    make_problem: MakeProblem, layout: str, state: str
) -> None:
    conventions, x = replace(PLAIN, layout=layout, state=state), make_problem().inputs()
    for name in (*TOKENS, "initial_state"):
        tensor = getattr(x, name)
        assert torch.equal(conventions.take(name, conventions.hand(name, tensor, x), x), tensor)


@pytest.mark.parametrize("gate", ["log2", "decay"])
def test_received_gates_mean_what_the_kernel_was_handed(
    make_problem: MakeProblem, gate: str
) -> None:
    conventions, x = replace(PLAIN, gate=gate), make_problem(gate="mixed").inputs()
    handed = conventions.hand("g", x.g, x)
    assert handed.dtype == x.g.dtype
    meant = handed.double().exp2() if gate == "log2" else handed.double()
    torch.testing.assert_close(conventions.received(x).g.exp(), meant, rtol=1e-12, atol=0.0)
    # at -1e4 half an ulp is 5e-4 nats
    torch.testing.assert_close(meant, x.g.double().exp(), rtol=2e-3, atol=1e-44)


def test_received_betas_mean_what_the_kernel_was_handed(make_problem: MakeProblem) -> None:
    conventions, x = replace(PLAIN, beta="logit"), make_problem(beta="mixed").inputs()
    handed = conventions.hand("beta", x.beta, x)
    torch.testing.assert_close(
        conventions.received(x).beta, handed.double().sigmoid(), rtol=0.0, atol=0.0
    )
    torch.testing.assert_close(handed.sigmoid(), x.beta, rtol=2e-6, atol=0.0)


def test_received_gates_are_the_rounded_ones_not_the_drawn_ones(make_problem: MakeProblem) -> None:
    x = make_problem(gate="mild").inputs()
    for gate in ("log2", "decay"):
        received = replace(PLAIN, gate=gate).received(x)
        assert received.g.dtype == torch.float64
        assert not torch.equal(received.g, x.g.double())
    assert PLAIN.received(x) is x


def test_hard_resets_and_whole_betas_stay_exact(make_problem: MakeProblem) -> None:
    x = make_problem(gate="hard-reset", beta="mixed").inputs()
    x = replace(x, beta=torch.where(x.beta > 0.5, 1.0, 0.0))
    for gate in ("log2", "decay"):
        received = replace(PLAIN, gate=gate, beta="logit").received(x)
        assert x.g.isneginf().any() and received.g[x.g.isneginf()].isneginf().all()
        assert torch.equal(received.beta, x.beta.double())


@pytest.mark.parametrize(("option", "value"), CHOICES)
@pytest.mark.parametrize("lengths", [None, PACK])
def test_every_choice_declared_rightly_agrees_with_the_recurrence(
    make_problem: MakeProblem, option: str, value: str, lengths: tuple[int, ...] | None
) -> None:
    conventions = replace(PLAIN, **{option: value})
    problem = make_problem() if lengths is None else make_problem(B=1, lengths=lengths)
    assert standin(conventions, conventions).supports(problem) is None
    assert max(distance(standin(conventions, conventions), problem).values()) < ROUNDING


@pytest.mark.parametrize("dtype", ["fp64", "bf16", "fp16"])
def test_all_choices_together_agree_in_every_dtype(make_problem: MakeProblem, dtype: str) -> None:
    conventions = Conventions(
        layout="bhtd", state="vk", gate="log2", beta="logit", packing="cu_seqlens"
    )
    found = distance(standin(conventions, conventions, dtype), make_problem(dtype=dtype))
    assert found["o"] < {"fp64": 1e-15, "bf16": 3e-3, "fp16": 4e-4}[dtype]
    assert found["final_state"] < (1e-15 if dtype == "fp64" else 1e-7)


@pytest.mark.parametrize(
    ("option", "value"),
    [choice for choice in CHOICES if choice[1] not in ("bthd", "thd", "kv", "log", "value")],
)
def test_a_wrong_declaration_is_far_off(make_problem: MakeProblem, option: str, value: str) -> None:
    square = make_problem(T=3, H=3, K=8, V=8)  # every shape fits either way
    other = replace(PLAIN, **{option: value})
    assert _error(standin(other, PLAIN), square) > FAR
    assert _error(standin(PLAIN, other), square) > FAR


def _error(adapter: Adapter, problem: Problem) -> float:
    try:
        return max(distance(adapter, problem).values())
    except InputError:  # a decay read as its logarithm is positive, a logit read as beta negative
        return math.inf


def test_segment_ids_number_the_sequences_and_mark_the_padding(make_problem: MakeProblem) -> None:
    x = make_problem(B=1, lengths=(0, 2, 0, 3), T=7, state="absent").inputs()
    ids = segment_ids(x)
    assert ids is not None
    assert ids.tolist() == [[1, 1, 3, 3, 3, -1, -1]]
    assert segment_ids(make_problem().inputs()) is None


def test_segment_ids_agree_with_the_recurrence_and_hide_the_states(
    make_problem: MakeProblem,
) -> None:
    conventions = Conventions(packing="segment_ids")
    adapter = standin(conventions, conventions)
    problem = make_problem(B=1, lengths=PACK, T=21, state="absent")
    assert adapter.exposes(problem) == ("o",)
    assert adapter.exposes(make_problem()) == ("o", "final_state")
    assert "no initial states of packed sequences" in str(
        adapter.supports(problem.replace(state="random"))
    )
    assert distance(adapter, problem)["o"] < ROUNDING


def test_a_kernel_in_thd_always_gets_offsets(make_problem: MakeProblem) -> None:
    x = make_problem(B=2, T=21).inputs()
    arguments = replace(PLAIN, layout="thd").arguments(x)
    assert arguments["cu_seqlens"].tolist() == [0, 21, 42]
    assert arguments["q"].shape == (42, 3, 8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"layout": "tbhd"}, "layout: wanted one of bthd, bhtd, thd, got 'tbhd'"),
        ({"state": "KV"}, "state: wanted one of kv, vk"),
        ({"gate": "ln"}, "gate: wanted one of log, log2, decay, softplus, bounded"),
        ({"beta": "sigmoid"}, "beta: wanted one of value, logit"),
        ({"packing": "varlen"}, "packing: wanted one of cu_seqlens, segment_ids, none"),
        ({"layout": "thd"}, "packing: layout thd has no batch axis"),
    ],
)
def test_a_convention_that_does_not_exist_names_the_option_and_the_choices(
    wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(ConventionError) as caught:
        replace(Conventions(), **wrong)  # pyright: ignore[reportArgumentType]
    assert said in str(caught.value)


def test_what_a_convention_cannot_express_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(ConventionError, match="a logit expresses values in"):
        Conventions(beta="logit").arguments(make_problem(beta="two").inputs())
