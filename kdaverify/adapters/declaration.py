"""The declaration of a kernel: one class for the decorator, for `export` and for `elsewhere`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.convention_checks import ALLOWED, ConventionError
from kdaverify.adapters.conventions import Conventions
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.contract_name import spelled
from kdaverify.budgets.declared import declared_contracts
from kdaverify.problems import Domain, DomainError
from kdaverify.problems.axes import Gates
from kdaverify.problems.domain import EVERY_BETA, EVERY_GATE
from oracles.gate_activation import LOWER_BOUND, PARAMETERS
from oracles.row_norm import EPSILON, GIVEN
from oracles.tensors import TOKENS

ANSWERS: Final = {"yes": True, "no": False}
CONVENTIONS: Final = tuple(ALLOWED)
CONTRACTS: Final = ("contract", "backward")


class Declaration(BaseModel):
    """What a kernel declares of itself, in words that fit on a command line and into a manifest.

    Args:
        name: shown in every record.
        contract: name, .toml file or Contract, for all dtypes or per dtype; undeclared it is
            recurrent-fp64 for fp64 and recurrent-fp32, the strictest contract, for all others.
        backward: likewise, of the backward where it computes otherwise than the forward.
        layout, state, gate, gates, heads, beta, packing, scale, padding, gate_format,
            gate_parameters,
            lower_bound, qk, norm_eps: as `Conventions` has them; scale is "argument" unless said
            otherwise.
        dtypes: of q, k, v, beta and o, of fp64, fp32, bf16, fp16.
        initial_state, final_state: whether the function takes, and returns, one.
        widths: all that it takes of K and V; () any.
        square: whether it takes K = V alone.
        grouped_heads: whether it takes more value heads than key heads.
        head_ratios: all that it takes of HV / H; () any.
        gate_range, beta_range: lowest and highest log decay, and write strength, that it takes.
        length_multiple: of which the length of every sequence is a multiple.
        longest: tokens of a sequence at most; None: any.
        device: type of the torch device that it runs on; tensors are moved there and back.
        isolate: whether it runs in a worker process; None: where `device` is not the CPU.
        deterministic: False if the same call may give other bits, as sums by atomic additions do.
        gradients: False if there is no backward to test.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    contract: Any = None
    backward: Any = None
    layout: str = "bthd"
    state: str = "kv"
    gate: str = "log"
    gates: Gates = "channel"
    heads: str = "interleaved"
    beta: str = "value"
    packing: str = "none"
    dtypes: tuple[str, ...] = ("fp32",)
    scale: str = "argument"
    padding: str = "zero"
    gate_format: str = "fp32"
    gate_parameters: str = "none"
    lower_bound: float = LOWER_BOUND
    qk: str = GIVEN
    norm_eps: float = EPSILON
    initial_state: bool = True
    final_state: bool = True
    widths: tuple[int, ...] = ()
    square: bool = False
    grouped_heads: bool = True
    head_ratios: tuple[int, ...] = ()
    gate_range: tuple[float, float] = EVERY_GATE
    beta_range: tuple[float, float] = EVERY_BETA
    length_multiple: int = 1
    longest: int | None = None
    device: str = "cpu"
    isolate: bool | None = None
    deterministic: bool = True
    gradients: bool = True

    @property
    def conventions(self) -> Conventions:
        """How it wants its tensors.

        Raises:
            AdapterError: a convention that does not exist, or contradicts another.
        """
        try:
            named = {name: getattr(self, name) for name in CONVENTIONS}
            return Conventions(**named, lower_bound=self.lower_bound, norm_eps=self.norm_eps)
        except ConventionError as error:
            raise AdapterError(f"kernel {self.name!r}: {error}") from None

    @property
    def domain(self) -> Domain:
        """The problems that it takes; what its conventions cannot express is left out.

        Raises:
            AdapterError: a range or a size that no problem has.
        """
        strongest = min(self.beta_range[1], 1.0) if self.beta == "logit" else self.beta_range[1]
        try:
            return Domain(
                gates=self.gates,
                widths=tuple(sorted(self.widths)),
                square=self.square,
                head_ratios=self.head_ratios if self.grouped_heads else (1,),
                gate_range=self._reached(),
                beta_range=(self.beta_range[0], strongest),
                length_multiple=self.length_multiple,
                longest=self.longest,
                packed=self.packing != "none",
                states=self.initial_state,
                packed_states=self.packing != "segment_ids",
                scales=self.scale != "fixed",
            )
        except DomainError as error:
            raise AdapterError(f"kernel {self.name!r}: {error}") from None

    def _reached(self) -> tuple[float, float]:
        """The gates that it takes, of those that its activation reaches."""
        activation, (low, high) = self.conventions.activation, self.gate_range
        if activation is None:
            return low, high
        deepest, weakest = activation.reach
        if low > weakest or high < deepest:
            raise AdapterError(
                f"kernel {self.name!r}: gate_range: gate={self.gate!r} reaches [{deepest:g},"
                f" {weakest:g}] alone, got {self.gate_range}"
            )
        return max(low, deepest), min(high, weakest)

    @property
    def keywords(self) -> tuple[str, ...]:
        """The arguments that the function gets by name, beside its tokens."""
        parameters = self.gate_parameters.split("+")
        taken = {name: name in parameters for name in PARAMETERS} | {
            "scale": self.scale == "argument",
            "initial_state": self.initial_state,
            self.packing: self.packing != "none",
        }
        return tuple(name for name, wanted in taken.items() if wanted)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tensors that the function gets one after the other."""
        return tokens_of(self.gates)


def tokens_of(gates: str) -> tuple[str, ...]:
    """The tensors of each token that a kernel takes: without a gate, four."""
    return tuple(name for name in TOKENS if name != "g" or gates != "none")


WORDS: Final = tuple(Declaration.model_fields)
"""Options that make a declaration, as in NAME:option=value."""


def declared(words: Mapping[str, str]) -> Declaration:
    """The declaration that options make.

    They are written as dtypes=bf16+fp32, contract=NAME or contract=fp32=NAME+bf16=NAME,
    widths=64+128, gate_range=-5..0, final_state=yes.

    Args:
        words: of WORDS, each with its text; the name is needed.
    Raises:
        AdapterError: an option has no such value.
    """
    given: dict[str, Any] = dict(words)
    if "dtypes" in words:
        given["dtypes"] = tuple(words["dtypes"].split("+"))
    for option in CONTRACTS:
        if "=" in words.get(option, ""):
            given[option] = dict(_pair(option, part) for part in words[option].split("+"))
        if ".toml" in words.get(option, ""):
            given[option] = _spelled(
                option,
                given[option],
                given.get("dtypes", Declaration.model_fields["dtypes"].default),
            )
    given |= {
        option: _READ[option](option, text) for option, text in words.items() if option in _READ
    }
    return Declaration(**given)


def _spelled(option: str, declared: Any, dtypes: tuple[str, ...]) -> dict[str, str]:
    """Contracts by the names that say it all: a file may not be there where they are read."""
    try:
        return {
            dtype: spelled(contract)
            for dtype, contract in declared_contracts(declared, dtypes).items()
        }
    except ContractError as error:
        raise AdapterError(f"{option}: {error}") from None


def _pair(option: str, text: str) -> tuple[str, str]:
    dtype, _, preset = text.partition("=")
    if not (dtype and preset):
        raise AdapterError(
            f"{option}: wanted a preset, or DTYPE=PRESET with + between, got {text!r}"
        )
    return dtype, preset


def _whole(option: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise AdapterError(f"{option}: wanted whole numbers with + between, got {text!r}")
    return int(text)


def _range(option: str, text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        found = float(low), float(high)
    except ValueError:
        found = math.nan, math.nan
    if not dots or any(map(math.isnan, found)):
        raise AdapterError(f"{option}: wanted LOWEST..HIGHEST such as -5..0, got {text!r}")
    return found


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise AdapterError(f"{option}: wanted one of {', '.join(allowed)}, got {value!r}")
    return value


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise AdapterError(f"{option}: wanted a number, got {text!r}") from None


def _answer(option: str, text: str) -> bool:
    return ANSWERS[_one_of(option, text, tuple(ANSWERS))]


def _several(option: str, text: str) -> tuple[int, ...]:
    return tuple(_whole(option, part) for part in text.split("+"))


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    **{
        option: lambda option, text: _one_of(option, text, ALLOWED[option])
        for option in CONVENTIONS
    },
    **dict.fromkeys(
        (
            "initial_state", "final_state", "square", "grouped_heads", "isolate", "deterministic",
            "gradients",
        ),
        _answer,
    ),
    **dict.fromkeys(("widths", "head_ratios"), _several),
    **dict.fromkeys(("length_multiple", "longest"), _whole),
    **dict.fromkeys(("gate_range", "beta_range"), _range),
    **dict.fromkeys(("lower_bound", "norm_eps"), _number),
}  # fmt: skip
"""How the text of an option is read, where it is not taken as it is."""
