"""The declaration of a kernel that this process cannot call: the words of `kdaverify.kernel`, as text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.conventions import TOKENS
from kdaverify.adapters.kernel import KernelAdapter, kernel
from kdaverify.budgets.contract import spelled
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.declared import declared_contracts
from kdaverify.problems import Problem

ANSWERS: Final = {"yes": True, "no": False}


class Declaration(BaseModel):
    """What `kdaverify.kernel` is told, and what it would read off the function's signature.

    Args:
        name, contract, layout, state, gate, beta, packing, dtypes, scale, padding, final_state: as for `kdaverify.kernel`.
        initial_state: whether the function takes one.
        widths: all that it takes of K and V; () for any.
        grouped_heads: whether it takes more value heads than key heads.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    contract: str | dict[str, str] | None = None
    layout: str = "bthd"
    state: str = "kv"
    gate: str = "log"
    beta: str = "value"
    packing: str = "none"
    dtypes: tuple[str, ...] = ("fp32",)
    scale: Literal["argument", "fixed", "folded"] = "argument"
    padding: Literal["zero", "undefined"] = "zero"
    initial_state: bool = True
    final_state: bool = True
    widths: tuple[int, ...] = ()
    grouped_heads: bool = True

    @property
    def keywords(self) -> tuple[str, ...]:
        """The arguments that the function gets by name, beside q, k, v, g and beta."""
        taken = {"scale": self.scale == "argument", "initial_state": self.initial_state, self.packing: self.packing != "none"}
        return tuple(name for name, wanted in taken.items() if wanted)

    def adapter(self, call: Callable[[dict[str, Any]], Any]) -> KernelAdapter:
        """An adapter for `call`, which gets all arguments as one mapping.

        Raises:
            AdapterError: an option has no such value, or contradicts another.
        """
        declare = kernel(
            name=self.name,
            contract=self.contract,
            layout=self.layout,
            state=self.state,
            gate=self.gate,
            beta=self.beta,
            packing=self.packing,
            dtypes=self.dtypes,
            scale=self.scale,
            padding=self.padding,
            final_state=self.final_state,
            supports=self._refused,
        )
        return declare(_Function(call, self.keywords))

    def _refused(self, problem: Problem) -> str | None:
        """Why the declared limits exclude `problem`."""
        if self.widths and not {problem.K, problem.V} <= set(self.widths):
            return f"widths of {', '.join(map(str, self.widths))} alone, wanted K = {problem.K}, V = {problem.V}"
        if not self.grouped_heads and problem.HV != problem.H:
            return f"one key head per value head, wanted H = {problem.H}, HV = {problem.HV}"
        return None


WORDS: Final = tuple(Declaration.model_fields)
"""Options that make a declaration, as in NAME:option=value."""


class _Function:
    """A callable whose signature is what the declaration says."""

    def __init__(self, call: Callable[[dict[str, Any]], Any], keywords: tuple[str, ...]) -> None:
        tokens = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in TOKENS]
        others = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords]
        self.__signature__ = inspect.Signature([*tokens, *others])
        self._call = call

    def __call__(self, **arguments: Any) -> Any:
        return self._call(arguments)


def declared(words: Mapping[str, str]) -> Declaration:
    """The declaration that options make: dtypes=bf16+fp32, contract=NAME or contract=fp32=NAME+bf16=NAME, widths=64+128, final_state=yes.

    Args:
        words: of WORDS, each with its text; the name is needed.
    Raises:
        AdapterError: an option has no such value.
    """
    given: dict[str, Any] = dict(words)
    if "dtypes" in words:
        given["dtypes"] = tuple(words["dtypes"].split("+"))
    if "=" in words.get("contract", ""):
        given["contract"] = dict(_pair(part) for part in words["contract"].split("+"))
    if ".toml" in words.get("contract", ""):
        given["contract"] = _spelled(given["contract"], given.get("dtypes", Declaration.model_fields["dtypes"].default))
    if "widths" in words:
        given["widths"] = tuple(_width(part) for part in words["widths"].split("+"))
    for option in ("initial_state", "final_state", "grouped_heads"):
        given[option] = ANSWERS[_one_of(option, words.get(option, "yes"), tuple(ANSWERS))]
    for option, allowed in (("scale", ("argument", "fixed", "folded")), ("padding", ("zero", "undefined"))):
        _one_of(option, words.get(option, allowed[0]), allowed)
    return Declaration(**given)


def _spelled(declared: Any, dtypes: tuple[str, ...]) -> dict[str, str]:
    """Contracts by the names that say it all: a file may not be there where they are read."""
    try:
        return {dtype: spelled(contract) for dtype, contract in declared_contracts(declared, dtypes).items()}
    except ContractError as error:
        raise AdapterError(f"contract: {error}") from None


def _pair(text: str) -> tuple[str, str]:
    dtype, _, preset = text.partition("=")
    if not (dtype and preset):
        raise AdapterError(f"contract: wanted a preset, or DTYPE=PRESET with + between, got {text!r}")
    return dtype, preset


def _width(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise AdapterError(f"widths: wanted whole numbers with + between, got {text!r}")
    return int(text)


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise AdapterError(f"{option}: wanted one of {', '.join(allowed)}, got {value!r}")
    return value
