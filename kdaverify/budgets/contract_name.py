"""The names of contracts: one says all that a contract declares, and is read back."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final

from kdaverify.budgets.contract_checks import ContractError, bracketed_pairs
from kdaverify.budgets.formats import FORMATS, Format
from oracles.arithmetic import SUB_BLOCK
from oracles.row_norm import GIVEN

if TYPE_CHECKING:
    from kdaverify.budgets.contract import Contract


_NAME: Final = re.compile(
    r"(?P<form>recurrent|chunk(?P<size>\d+))-(?P<operands>fp64|fp32|tf32|bf16|fp16)"
    r"(?:-(?P<factors>fp32|bf16|fp16)factors)?(?:-(?P<anchored>anchored))?"
    r"(?:-(?P<solve>fp32|tf32)solve)?(?:-(?P<carry>fp64|fp32|bf16|fp16)carry)?"
    r"(?:-(?P<softplus>softplus))?(?:\[(?P<rest>[^\[\]]+)\])?"
)
_GRAMMAR: Final = (
    "recurrent-OPERANDS or chunkSIZE-OPERANDS, with OPERANDS fp64, fp32, tf32, bf16 or fp16, for"
    " chunks an optional -FORMATfactors, for 16-bit ones -fp32solve or -tf32solve, for chunks an"
    " optional -anchored before the solve, an optional -FORMATcarry, an optional -softplus, and in"
    " brackets what else is declared, as [order:in-order;w:fp32]"
)
_WORDS: Final = {
    "anchor": "free",
    "flush": "free",
    "operand_rounding": "free",
    "storage_rounding": "nearest",
    "order": "free",
    "exponential": "free",
    "scale": "free",
    "decay": "channel",
    "transition": "applied",
    "inverse": "substituted",
    "gate": "log",
    "beta": "value",
    "qk": GIVEN,
}
"""Fields of one word that stand in brackets, and the words that are not written."""
APART: Final = "/"
"""Between the forward's name and that of a backward of its own."""


def spelled(contract: Contract) -> str:
    """The name that says all that a contract declares; `contract_from_name` reads it back."""
    form = "recurrent" if contract.form == "recurrent" else f"chunk{contract.chunk_size}"
    factors = "" if contract.factors is None else f"-{contract.factors.name}factors"
    anchored = "-anchored" if contract.anchored else ""
    solve = "" if contract.solve is None else f"-{contract.solve.name}solve"
    carry = "" if contract.carry == contract.accumulate else f"-{contract.carry.name}carry"
    softplus = "-softplus" if contract.softplus else ""
    rest = ";".join(f"{key}:{value}" for key, value in _rest(contract).items())
    others = f"[{rest}]" if rest else ""
    after = "" if contract.forward is None else f" after {spelled(contract.forward)}"
    back = "" if contract.backward is None else f"{APART}{spelled(contract.backward)}"
    own = f"{form}-{contract.operands.name}{factors}{anchored}{solve}{carry}{softplus}{others}"
    return f"{own}{back}{after}"


def _rest(contract: Contract) -> dict[str, str]:
    wide = {} if contract.accumulator is None else {"accumulator": contract.accumulator.name}
    blocks = {} if contract.sub_block == SUB_BLOCK else {"sub_block": str(contract.sub_block)}
    steps = {} if contract.steps == 1 else {"steps": str(contract.steps)}
    words = {
        name: getattr(contract, name)
        for name, usual in _WORDS.items()
        if getattr(contract, name) != usual
    }
    own = {"own": "+".join(contract.own)} if contract.own else {}
    return wide | blocks | steps | words | own | {name: fmt.name for name, fmt in contract.tensors}


_USUAL: Final = tuple(
    f"{form}-{io}"
    for form in ("recurrent", "chunk16", "chunk32", "chunk64", "chunk128")
    for io in FORMATS
)
"""What a misspelt name is compared with."""
_TORCH: Final = {"bfloat16": "bf16", "float": "fp"}
"""How torch spells formats: of 'chunk32-float32' the nearest name was one of tf32."""


def _with_formats(name: str) -> str:
    """A name with our words for torch's formats."""
    for said, ours in _TORCH.items():
        name = name.replace(said, ours)
    return name


def fields_from_name(name: str) -> dict[str, Any]:
    """The fields of the contract that a name without a backward of its own declares.

    Raises:
        ContractError: the name does not parse.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        close = difflib.get_close_matches(_with_formats(name), _USUAL, n=1)
        if close:
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = f"wanted {_GRAMMAR}, such as 'chunk64-bf16' or 'recurrent-fp32'"
        raise ContractError(f"contract {name!r} is not known; {hint}")
    operands = FORMATS[match["operands"]]
    rest = _bracketed(match["rest"] or "", name)
    accumulate = rest.get("accumulator") or default_accumulator(operands)
    carry = accumulate if match["carry"] is None else FORMATS[match["carry"]]
    factors, solve = (
        None if match[part] is None else FORMATS[match[part]] for part in ("factors", "solve")
    )
    form, size = ("recurrent", 1) if match["size"] is None else ("chunk", int(match["size"]))
    anchored, softplus = (match[part] is not None for part in ("anchored", "softplus"))
    return {
        "form": form, "chunk_size": size, "operands": operands, "carry": carry, "solve": solve,
        "factors": factors, "anchored": anchored, "softplus": softplus, **rest,
    }  # fmt: skip


def _bracketed(text: str, name: str) -> dict[str, Any]:
    """The fields that brackets declare."""
    pairs = bracketed_pairs(text, name)
    fields: dict[str, Any] = {key: pairs.pop(key) for key in _WORDS if key in pairs}
    if "own" in pairs:
        fields["own"] = tuple(pairs.pop("own").split("+"))
    if "accumulator" in pairs:
        fields["accumulator"] = known_format(pairs.pop("accumulator"), "accumulator")
    for key in {"sub_block", "steps"} & pairs.keys():
        fields[key] = _number(pairs.pop(key), f"{name!r}: {key}")
    return fields | {
        "tensors": tuple((tensor, known_format(value, tensor)) for tensor, value in pairs.items())
    }


def default_accumulator(operands: Format) -> Format:
    """Where nothing else is said, products of fp64 are summed in fp64, all others in fp32."""
    return FORMATS["fp64" if operands.name == "fp64" else "fp32"]


def known_format(value: str, where: str) -> Format:
    """The format of that name.

    Raises:
        ContractError: there is none; the message lists those there are.
    """
    if value not in FORMATS:
        raise ContractError(
            f"contract: {where}: format {value!r} is not known; wanted one of {', '.join(FORMATS)}"
        )
    return FORMATS[value]


def _number(value: str, where: str) -> int:
    if not value.isdecimal():
        raise ContractError(f"contract {where}: wanted a number, got {value!r}")
    return int(value)
