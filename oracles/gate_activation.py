"""The gates that a kernel activates itself: x in place of g, and A_log and dt_bias beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor

from oracles.codecs import GATES, Codec
from oracles.head_order import head_numbers

Form = Literal["softplus", "bounded"]
FORMS: Final[tuple[Form, ...]] = ("softplus", "bounded")
LOWER_BOUND: Final = -5.0
"""Of the bounded form where nothing else is said, as KDA's models have it."""
PARAMETERS: Final = ("A_log", "dt_bias")
A_LOGS: Final = (-0.25, -3.0, 4.25, 1.0, 0.0)
"""Models begin with exp(A_log) between 1 and 16, and train it: 70 is past a clamp at 16, 32 or 64,
of which the first was accepted. Where it is 1/20, gates of ordinary size are those
of x + dt_bias between 8 and 20: a softplus that was linear from 8 on was accepted."""
NEAREST: Final = 2.0**-24
"""Share of its range by which a bounded gate is kept from its ends before it is inverted: the logit
of an end is infinite."""
_NAME: Final = re.compile(
    r"(?P<form>softplus|bounded)\((?P<bound>[^,]+),(?P<parameters>[^),]*)(?P<narrow>,inputs)?\)"
)


def A_log_of(heads: int, device: torch.device | None = None) -> Tensor:
    """A_log [HV], fp32: other numbers in neighbouring heads, so that a wrong index shows.

    They are multiples of 1/64, as those of `dt_bias_of`: exact in every format that may hold them.
    """
    known = torch.tensor(A_LOGS, dtype=torch.float32, device=device)
    return known[head_numbers(heads, device) % len(A_LOGS)]


def dt_bias_of(heads: int, channels: int, device: torch.device | None = None) -> Tensor:
    """dt_bias [HV, K], fp32, likewise; the parameters of a head and channel are the same in every
    call, however many heads and channels it has. From -6.75 to -2.25: models begin with a softplus
    of it between 0.001 and 0.1.
    """
    head = head_numbers(heads, device)[:, None]
    step = (head * 3 + torch.arange(channels, device=device)) % 17
    return -(step * 9 + 72).float() / 32


@dataclass(frozen=True)
class GateActivation:
    """One activation of KDA or Gated DeltaNet, a map of gates [..., HV, K]; K may be 1.

    Math: 6; with z = x + dt_bias and a = exp(A_log), softplus: g = -a softplus(z); bounded: g =
    lower_bound sigmoid(a z).

    Args:
        form: softplus or bounded.
        lower_bound: of the bounded form.
        parameters: those that the kernel gets; what it does not get is 0.
        narrow: whether x has the format of q, and its gradient too; fp32 otherwise.
    Raises:
        ValueError: a lower bound that is no negative number.
    """

    form: Form
    lower_bound: float = LOWER_BOUND
    parameters: tuple[str, ...] = PARAMETERS
    narrow: bool = False

    def __post_init__(self) -> None:
        if not -torch.inf < self.lower_bound < 0:
            raise ValueError(f"lower_bound: wanted a negative number, got {self.lower_bound}")

    @property
    def name(self) -> str:
        """The word for it in the name of a contract; `activation_of` reads it back."""
        narrow = ",inputs" if self.narrow else ""
        return f"{self.form}({self.lower_bound!r},{'+'.join(self.parameters)}{narrow})"

    @property
    def reach(self) -> tuple[float, float]:
        """The lowest and highest g of problems for it, reached at infinite x alone."""
        if self.form == "bounded":
            return self.lower_bound * (1 - 2.0**-12), self.lower_bound * 2.0**-20
        # x of fp16 ends at 65,504, and g at that times the smallest exp(A_log).
        return (-3e3 if self.narrow else -1e6), -(2.0**-30)

    def A_log(self, g: Tensor) -> Tensor:
        """[HV, 1] float64, of gates [..., HV, K]."""
        found = A_log_of(g.shape[-2], g.device).double()[:, None]
        return found if "A_log" in self.parameters else torch.zeros_like(found)

    def dt_bias(self, g: Tensor) -> Tensor:
        """[HV, K] float64, likewise."""
        found = dt_bias_of(g.shape[-2], g.shape[-1], g.device).double()
        return found if "dt_bias" in self.parameters else torch.zeros_like(found)

    def there(self, g: Tensor) -> Tensor:
        """x whose activation is g; finite where none is, for the bounded form."""
        a = self.A_log(g).exp()
        if self.form == "bounded":
            return torch.logit(g / self.lower_bound, eps=NEAREST) / a - self.dt_bias(g)
        z = -g / a
        # The inverse of softplus, log(exp(z) - 1), without its overflow.
        return z + torch.log(-torch.expm1(-z)) - self.dt_bias(g)

    def back(self, x: Tensor) -> Tensor:
        """g that x stands for."""
        a, z = self.A_log(x).exp(), x + self.dt_bias(x)
        if self.form == "bounded":
            return self.lower_bound * torch.sigmoid(a * z)
        return -a * (z.clamp(min=0.0) + torch.log1p(torch.exp(-z.abs())))

    def slope(self, x: Tensor) -> Tensor:
        """dg / dx."""
        a, z = self.A_log(x).exp(), x + self.dt_bias(x)
        if self.form == "bounded":
            return self.lower_bound * a * torch.sigmoid(a * z) * torch.sigmoid(-a * z)
        return -a * torch.sigmoid(z)

    def parameter_slope(self, name: str, x: Tensor) -> Tensor:
        """(dg / dA_log) / (dg / dx), or that of dt_bias: what dx is multiplied by, and summed."""
        z = x + self.dt_bias(x)
        if name == "dt_bias":
            return torch.ones_like(z)
        if self.form == "bounded":
            return z
        return (z.clamp(min=0.0) + torch.log1p(torch.exp(-z.abs()))) / torch.sigmoid(z)

    @cached_property
    def codec(self) -> Codec:
        """The same as a convention of g."""
        return Codec(self.there, self.back, self.slope)


@lru_cache(maxsize=64)
def activation_of(name: str) -> GateActivation | None:
    """The activation of that name; None for other conventions of gates.

    Raises:
        ValueError: neither.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        if name in GATES:
            return None
        raise ValueError(f"gate: wanted one of {', '.join((*GATES, *FORMS))}, got {name!r}")
    parameters = tuple(filter(None, match["parameters"].split("+")))
    narrow = match["narrow"] is not None
    return GateActivation(cast(Any, match["form"]), float(match["bound"]), parameters, narrow)


def gate_codec(name: str) -> Codec:
    """The convention of g by its name."""
    activation = activation_of(name)
    return GATES[name] if activation is None else activation.codec
