"""The FlashKDA adapter against a stand-in with the library's signature: raw gates, logits, norms
and states are undone and redone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import Adapter, AdapterError, find
from kdaverify.adapters import flash_kda as module
from kdaverify.adapters.flash_kda import FlashKda
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from tests.adapters.standins import MakeProblem, distance

SIZES = {"B": 1, "H": 2, "HV": 2, "K": 128, "V": 128, "T": 40, "dtype": "bf16", "gate": "mild"}


class Library:
    """Computes in float64 what the C++ library documents, and writes to the given tensors."""

    def __init__(self, *, normalises: bool = True, rounds_state: bool = True) -> None:
        self.normalises, self.rounds_state = normalises, rounds_state

    def get_workspace_size(self, tokens: int, heads: int, sequences: int) -> int:
        return tokens + heads + sequences

    def fwd(self, *arguments: Any) -> None:
        q, k, v, x, logits, scale, o, _workspace, A_log, dt_bias, bound, initial, final, offsets = (
            arguments[:14]
        )
        q64, k64 = (self._unit(t.double()) for t in (q, k))
        g = bound * torch.sigmoid(A_log.double().exp()[:, None] * (x.double() + dt_bias.double()))
        state = initial.to(torch.bfloat16) if self.rounds_state else initial
        call = Inputs(
            q64, k64, v.double(), g, logits.double().sigmoid(), scale, state.double().mT, offsets
        )
        exact, last = recurrence(call)
        o.copy_(exact)
        final.copy_(last.mT)

    def _unit(self, rows: Tensor) -> Tensor:
        return (
            rows / (rows.square().sum(-1, keepdim=True) + 1e-6).sqrt() if self.normalises else rows
        )


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[Library], Adapter]:
    def get(library: Library) -> Adapter:
        def loaded(_path: Path) -> Library:
            return library

        monkeypatch.setattr(module, "_loaded", loaded)
        adapter = FlashKda(Path("library.so"))
        adapter.device = "cpu"
        return adapter

    return get


@pytest.mark.parametrize(
    "changes", [{}, {"state": "absent"}, {"lengths": (3, 0, 30), "T": 40}, {"key": "tiny"}], ids=str
)
def test_what_the_library_documents_is_right(
    load: Callable[[Library], Adapter], make_problem: MakeProblem, changes: dict[str, Any]
) -> None:
    problem = make_problem(**SIZES | changes)
    adapter = load(Library())
    assert adapter.supports(problem) is None
    assert max(distance(adapter, problem).values()) < 6e-3


def test_a_library_that_does_not_normalise_is_seen(
    load: Callable[[Library], Adapter], make_problem: MakeProblem
) -> None:
    assert distance(load(Library(normalises=False)), make_problem(**SIZES))["o"] > 1


def test_the_state_is_received_as_it_is_read(
    load: Callable[[Library], Adapter], make_problem: MakeProblem
) -> None:
    x = make_problem(**SIZES).inputs()
    state = load(Library()).received(x).initial_state
    assert state is not None and x.initial_state is not None
    assert torch.equal(state, x.initial_state.to(torch.bfloat16).to(x.initial_state.dtype))


def test_the_library_is_an_option(tmp_path: Path) -> None:
    assert "no library given: --impl flash_kda:library=" in str(find("flash_kda").missing())
    with pytest.raises(AdapterError, match="wanted the option library alone, got colour"):
        find("flash_kda:colour=red")
    with pytest.raises(AdapterError, match=r"no file .*absent\.so"):
        find(f"flash_kda:library={tmp_path / 'absent.so'}")


def test_limits_are_reasons(make_problem: MakeProblem) -> None:
    adapter = find("flash_kda")
    assert "no K = 64: it takes widths of 128 alone" in str(
        adapter.supports(make_problem(K=64, V=128))
    )
    assert "value heads a key head" in str(adapter.supports(make_problem(**SIZES | {"HV": 4})))
    assert "beta in [0, 1] alone" in str(adapter.supports(make_problem(**SIZES, beta="two")))
    assert "gates g in [-4.99878, -4.76837e-06] alone" in str(
        adapter.supports(make_problem(**SIZES | {"gate": "bound-20"}))
    )


def test_limits_are_found_without_a_state(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pack of 65,536 sequences at K = V = 128 has a state of 4 GiB, which no limit depends on."""
    problem = make_problem(**SIZES)
    x = problem.inputs()
    assert torch.equal(problem.decays(), x.g) and torch.equal(problem.betas(), x.beta)
    monkeypatch.setattr(type(problem), "inputs", pytest.fail)
    assert find("flash_kda").supports(problem) is None


def test_channels_in_another_order_are_held_to_what_their_raw_gates_stand_for(
    load: Callable[[Library], Adapter], make_problem: MakeProblem
) -> None:
    """The bias of a gate differs by channel, and so does the rounding of what is added to it: a
    state of 600 is off by 1 % from it.
    """
    problem = make_problem(
        **SIZES | {"H": 1, "HV": 1, "lengths": (10, 0), "T": 10, "gate": "log-sigmoid"},
        key="one-hot", beta="near-one", state="large", value="powers-of-two", seed=49916,
    )  # fmt: skip
    *_, final = check("laws", load(Library()), problem, {"law": "permuted-channels"})
    assert (final.output, final.status) == ("final_state", Status.PASS)
