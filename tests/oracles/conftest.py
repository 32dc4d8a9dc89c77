"""Small inputs for the oracles, made without the harness that the oracles judge for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

import flint
import pytest
import torch
from torch import Tensor

from oracles.gradients import Cotangents, Gradients, Terms, scales
from oracles.inputs import Inputs

CONSTANTS = {
    "zero": 0.0,
    "slow": -1e-3,
    "bound": -5.0,
    "deep": -100.0,
    "underflow": -1e4,
    "all reset": -inf,
}
MIXTURE = (0.0, -1e-3, -5.0, -20.0, -100.0, -1e4, -inf)
GATES = (
    *CONSTANTS,
    "log-sigmoid",
    "mixture per channel",
    "mixture per token",
    "one-token resets",
    "first and last reset",
)
KEYS = ("random", "identical", "coherent", "zero", "one-hot")
BETAS = ("random", "zero", "one", "two")
STATES = ("absent", "random", "large")
# Which outputs have a cotangent, and its size.
COTANGENTS = {
    "of o": ("o", 1.0),
    "of S_T": ("final_state", 1.0),
    "of both": ("both", 1.0),
    "scaled by 2^-25": ("both", 2.0**-25),
    "scaled by 2^20": ("both", 2.0**20),
}


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    """One torch thread; flint's global precision as it was."""
    threads, precision = torch.get_num_threads(), flint.ctx.prec
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    flint.ctx.prec = precision


class Draw:
    """One generator for all the tensors of a call."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def choice(self, values: Sequence[float], *shape: int) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), shape, generator=self.generator)]

    def gates(self, name: str, *shape: int) -> Tensor:
        if name in CONSTANTS:
            return torch.full(shape, CONSTANTS[name])
        if name == "mixture per channel":
            return self.choice(MIXTURE, *shape[2:]).expand(shape).clone()
        if name == "mixture per token":
            return self.choice(MIXTURE, *shape)
        g = torch.nn.functional.logsigmoid(self.normal(*shape))
        if name == "one-token resets":
            g[:, :: max(shape[1] // 3, 1)] = -inf
        if name == "first and last reset":
            g[:, [0, -1]] = -inf
        return g

    def keys(self, name: str, *shape: int) -> Tensor:
        if name == "zero":
            return torch.zeros(shape)
        if name == "one-hot":
            return torch.eye(shape[-1])[
                torch.randint(shape[-1], shape[:-1], generator=self.generator)
            ]
        common = self.normal(*shape[2:]).expand(shape)
        share = {"random": 0.0, "coherent": 0.95, "identical": 1.0}[name]
        return torch.nn.functional.normalize(
            share * common + (1 - share) * self.normal(*shape), dim=-1
        )

    def betas(self, name: str, *shape: int) -> Tensor:
        if name == "random":
            return torch.rand(shape, generator=self.generator)
        return torch.full(shape, {"zero": 0.0, "one": 1.0, "two": 2.0}[name])


def build(
    *,
    B: int = 1,
    T: int = 20,
    H: int = 1,
    HV: int = 1,
    K: int = 6,
    V: int = 5,
    gate: str = "log-sigmoid",
    key: str = "random",
    beta: str = "random",
    state: str = "random",
    offsets: list[int] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **given: Any,
) -> Inputs:
    """A call of KDA; tensors passed by name replace the random ones."""
    draw = Draw(seed)
    N = B if offsets is None else len(offsets) - 1
    start = (
        None
        if state == "absent"
        else draw.normal(N, HV, K, V) * (1e20 if state == "large" else 1.0)
    )
    drawn: dict[str, Any] = {
        "q": draw.keys("random", B, T, H, K),
        "k": draw.keys(key, B, T, H, K),
        "v": draw.normal(B, T, HV, V),
        "g": draw.gates(gate, B, T, HV, K),
        "beta": draw.betas(beta, B, T, HV),
        "initial_state": start,
        "cu_seqlens": None if offsets is None else torch.tensor(offsets),
    }
    return Inputs(**{**drawn, **given}).to(dtype)


@pytest.fixture
def call() -> Callable[..., Inputs]:
    """`build`, for test modules of any import mode."""
    return build


def weigh(inputs: Inputs, kind: str = "of both", *, seed: int = 1) -> Cotangents:
    """Cotangents of the outputs of a call, one of COTANGENTS."""
    which, size = COTANGENTS[kind]
    rng = torch.Generator().manual_seed(seed)
    do, dS = (
        torch.randn(shape, generator=rng, dtype=torch.float64) * size
        for shape in (inputs.v.shape, inputs.state.shape)
    )
    return Cotangents(None if which == "final_state" else do, None if which == "o" else dS)


@pytest.fixture
def cotangents() -> Callable[..., Cotangents]:
    """`weigh`, for test modules of any import mode."""
    return weigh


def differ(found: Gradients[Tensor], wanted: Gradients[Tensor], terms: Terms) -> dict[str, float]:
    """Largest difference of each gradient relative to `scales`; 0 where both are 0."""
    sizes = scales(wanted, terms)
    gaps = {
        name: float((x - wanted.named()[name]).abs().max()) if x.numel() else 0.0
        for name, x in found.named().items()
    }
    return {name: gap / sizes[name] if gap else 0.0 for name, gap in gaps.items()}


@pytest.fixture
def differences() -> Callable[..., dict[str, float]]:
    """`differ`, for test modules of any import mode."""
    return differ
