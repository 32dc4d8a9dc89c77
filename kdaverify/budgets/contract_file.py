"""Contracts as TOML: read with messages that teach, written so that they read back equal."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.contract_checks import CHOICES, ContractError
from kdaverify.budgets.contract_name import default_accumulator, known_format, spelled
from kdaverify.budgets.formats import Format
from kdaverify.budgets.tensors import PIPELINES
from oracles.arithmetic import SUB_BLOCK
from oracles.row_norm import GIVEN

INPUTS: Final = "inputs"
"""Stands for the format of q, k, v and o wherever a format is named."""


class ContractFile(BaseModel):
    """A contract in a file: the fields of `Contract`, formats by name, or "inputs" for theirs.

    Args:
        about, source: what implements it, and where facts come from; shown alone.
        name: what its author calls it.
        carry: by default the accumulator's format.
        chunk_size: needed for the chunk form, and there alone.
        backward: name of the contract that the backward computes with, where it has its own, such
            as recurrent-fp32, or chunk64-inputs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = ""
    about: str = ""
    source: list[str] = []
    form: str
    chunk_size: int | None = None
    sub_block: int = SUB_BLOCK
    steps: int = 1
    operands: str
    accumulator: str | None = None
    carry: str | None = None
    solve: str | None = None
    factors: str | None = None
    anchored: bool = False
    anchor: str = "free"
    softplus: bool = False
    flush: str = "free"
    operand_rounding: str = "free"
    storage_rounding: str = "nearest"
    order: str = "free"
    exponential: str = "free"
    scale: str = "free"
    decay: str = "channel"
    transition: str = "applied"
    inverse: str = "substituted"
    gate: str = "log"
    beta: str = "value"
    qk: str = GIVEN
    own: list[str] = []
    backward: str | None = None
    tensors: dict[str, str] = {}

    @property
    def needs_dtype(self) -> bool:
        """Whether it depends on the format of the inputs."""
        return INPUTS in (self.backward or "") or INPUTS in (
            self.operands,
            self.accumulator,
            self.carry,
            self.solve,
            self.factors,
            *self.tensors.values(),
        )

    def contract(self, dtype: str | None) -> Contract:
        """What it declares for inputs of a format.

        Args:
            dtype: fp64, fp32, bf16 or fp16; None will do where no format is "inputs".
        Raises:
            ContractError: no such format or tensor, or fields that contradict each other.
        """
        if self.needs_dtype and dtype is None:
            raise ContractError(
                f'contract: "{INPUTS}" stands for the format of q, k, v and o; say which it is'
            )
        if (self.form == "chunk") != (self.chunk_size is not None):
            raise ContractError(
                "contract: chunk_size: wanted tokens per chunk where form is chunk, and nowhere"
                " else"
            )

        def format_of(name: str, where: str) -> Format:
            return known_format(str(dtype) if name == INPUTS else name, where)

        named = {
            where: getattr(self, where)
            for where in ("operands", "accumulator", "carry", "solve", "factors")
        }
        formats = {
            where: format_of(name, where) for where, name in named.items() if name is not None
        }
        given: dict[str, Any] = {
            word: getattr(self, word)
            for word in (*CHOICES, "gate", "qk", "anchored", "softplus", "sub_block", "steps")
        }
        given |= formats | {
            "chunk_size": self.chunk_size or 1,
            "own": tuple(self.own),
            "label": self.name,
            "backward": self.backward
            and contract_from_name(self.backward.replace(INPUTS, str(dtype))),
        }
        given["carry"] = (
            formats.get("carry")
            or formats.get("accumulator")
            or default_accumulator(formats["operands"])
        )
        return Contract(
            **given,
            tensors=tuple((name, format_of(fmt, name)) for name, fmt in self.tensors.items()),
        )


def read_contract(path: Path) -> ContractFile:
    """The contract file at `path`.

    Raises:
        ContractError: no file, no TOML, or no contract; with what was wanted and what came.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ContractError(f"contract {path}: cannot be read: {error.strerror}") from None
    return parse_contract(text, str(path))


def parse_contract(text: str, where: str) -> ContractFile:
    """The contract that TOML text says; `where` names it in messages."""
    try:
        found = ContractFile.model_validate(tomllib.loads(text))
        found.contract("bf16" if found.needs_dtype else None)
    except tomllib.TOMLDecodeError as error:
        raise ContractError(f"contract {where}: no TOML: {error}") from None
    except ValidationError as error:
        raise ContractError(
            f"contract {where}: {'; '.join(_taught(problem) for problem in error.errors())}"
        ) from None
    except ContractError as error:
        raise ContractError(f"contract {where}: {str(error).removeprefix('contract: ')}") from None
    return found


def _taught(problem: Any) -> str:
    """One complaint of pydantic, in our words."""
    place, *inside = (str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        keys = list(ContractFile.model_fields)
        near = difflib.get_close_matches(place, keys, n=1, cutoff=0.65)
        hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(keys)}"
        if any(place in pipeline.names for pipeline in PIPELINES.values()):
            hint = "it is a tensor: put it under [tensors]"
        return f"key {place!r} is not known; {hint}"
    if problem["type"] == "missing":
        return f"key {place!r} is missing; form and operands are always needed"
    return (
        f"{'.'.join((place, *inside))}: {problem['msg'][0].lower()}{problem['msg'][1:]}, got"
        f" {problem['input']!r}"
    )


def to_toml(contract: Contract, *, about: str = "", source: Sequence[str] = ()) -> str:
    """The contract as TOML that reads back equal; what is usual is left out.

    Args:
        about, source: kept beside it.
    """
    lines = [
        f"{key} = {_toml(value)}"
        for key, value in {"name": contract.label, "about": about}.items()
        if value
    ]
    lines += ["source = [", *(f"  {_toml(fact)}," for fact in source), "]"] if source else []
    lines += [f"{name} = {_toml(value)}" for name, value in _declared(contract)]
    if contract.tensors:
        lines += ["", "[tensors]", *(f"{name} = {_toml(fmt)}" for name, fmt in contract.tensors)]
    return "\n".join(lines) + "\n"


def _declared(contract: Contract) -> Iterator[tuple[str, Any]]:
    """The fields that are not as usual, but for the tensors'."""
    elsewhere = {"label", "tensors", "forward"}
    elsewhere |= {"chunk_size"} if contract.form == "recurrent" else set()
    for field in fields(contract):
        value = getattr(contract, field.name)
        usual = value == contract.accumulate if field.name == "carry" else value == field.default
        if field.name not in elsewhere and not usual:
            yield field.name, value


def _toml(value: object) -> str:
    if isinstance(value, Contract):
        return json.dumps(spelled(value))
    return json.dumps(value.name if isinstance(value, Format) else value, ensure_ascii=False)
