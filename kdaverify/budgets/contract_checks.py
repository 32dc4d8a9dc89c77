"""Contracts that contradict themselves are refused, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

from oracles.arithmetic import SUB_BLOCK
from oracles.gate_activation import activation_of
from oracles.row_norm import norm_of

if TYPE_CHECKING:
    from kdaverify.budgets.contract import Contract

Form = Literal["recurrent", "chunk"]
Anchor = Literal["free", "first", "middle"]
Flush = Literal["free", "always", "never"]
Rounding = Literal["free", "nearest", "truncate"]
Order = Literal["free", "in-order"]
Exponential = Literal["free", "natural", "base-2", "approximate"]
Scale = Literal["free", "in-q", "rounded"]
Decay = Literal["channel", "scalar"]
Transition = Literal["applied", "formed"]
Inverting = Literal["substituted", "series"]
Beta = Literal["value", "logit", "doubled"]

CHOICES: Final = {
    "form": get_args(Form),
    "anchor": get_args(Anchor),
    "flush": get_args(Flush),
    "operand_rounding": get_args(Rounding),
    "storage_rounding": ("nearest", "truncate"),
    "order": get_args(Order),
    "exponential": get_args(Exponential),
    "scale": get_args(Scale),
    "decay": get_args(Decay),
    "transition": get_args(Transition),
    "inverse": get_args(Inverting),
    "beta": get_args(Beta),
}
"""The fields that are one of a few words, and the words."""

OTHER_KEYS: Final = ("accumulator", "sub_block", "steps", "own")
"""The other fields that a name may hold beside tensors."""

DIFFERENCE = ("rounded_beta", "prediction")
"""Tensors that only kernels of factored decays store that subtract k exp(G) S from v before beta
multiplies the difference."""

RETURNED = ("o", "dq", "dk", "dv", "dbeta")
"""Tensors that are returned in the format of the inputs."""


class ContractError(ValueError):
    """A contract that means nothing; the message says why, and what would."""


def bracketed_pairs(text: str, name: str) -> dict[str, str]:
    """The words in brackets behind a contract's name, by key.

    Raises:
        ContractError: a word is no KEY:VALUE, or stands twice.
    """
    found = dict[str, str]()
    for part in text.split(";") if text else ():
        key, colon, value = part.partition(":")
        if not (key and colon and value) or key in found:
            raise ContractError(
                f"contract {name!r}: in brackets wanted KEY:VALUE, joined by ; and each key once,"
                f" got {part!r}"
            )
        found[key] = value
    return found


def check_form(contract: Contract) -> None:
    """Refuses what the form has no place for."""
    back = contract.backward
    if back is not None and (back.backward, back.forward, contract.forward) != (None,) * 3:
        raise ContractError(
            "contract: backward: a backward has none of its own; declare one for the whole kernel"
        )
    words = {name: getattr(contract, name) for name in CHOICES}
    for name, word in words.items():
        if word not in CHOICES[name]:
            raise ContractError(
                f"contract: {name}: wanted one of {', '.join(CHOICES[name])}, got {word!r}"
            )
    _check_received(contract)
    _check_formats_apart(contract)
    if contract.solve is not None and contract.factors is not None:
        raise ContractError(
            "contract: factored decays and a solve of its own exclude each other: no emulated"
            " kernel has both; drop one"
        )
    if contract.anchored and contract.factors is not None:
        raise ContractError(
            "contract: where whole chunks factor their decays, diagonal blocks have no anchor of"
            " their own; drop one"
        )
    if contract.anchor != "free" and not contract.anchored:
        raise ContractError(
            f"contract: anchor {contract.anchor!r} is the row of anchored scores; declare them"
            " anchored too"
        )
    if contract.form == "recurrent":
        _check_recurrent(contract)
    if contract.decay == "scalar":
        _check_scalar(contract)
    _check_sizes(contract)


def _check_formats_apart(contract: Contract) -> None:
    """Refuses formats of the solve and of factors that no kernel of these operands has."""
    got = f"got {contract.form} {contract.operands.name}"
    narrow = contract.form == "chunk" and contract.operands.name in ("bf16", "fp16")
    if contract.solve is not None and not narrow:
        raise ContractError(
            f"contract: only chunks of 16-bit operands solve in a wider format, {got}; leave that"
            " out"
        )
    # ExecuTorch's chunks in fp32 multiply exp(G_i) by exp(-G_j), to the bit: held to exponentials
    # of differences they were rejected at 1.1 to 1.24 times their tolerance.
    wide = contract.form == "chunk" and contract.operands.name in ("fp32", "tf32")
    if contract.factors is None or narrow or (wide and contract.factors.name == "fp32"):
        return
    raise ContractError(
        "contract: chunks factor their decays, of 16-bit operands in any format, of fp32 and tf32"
        f" in fp32; {got} with factors in {contract.factors.name}"
    )


def _check_received(contract: Contract) -> None:
    try:
        activation_of(contract.gate)
        norm_of(contract.qk)
    except ValueError as error:
        raise ContractError(f"contract: {error}") from None


def _check_recurrent(contract: Contract) -> None:
    """Refuses what chunks alone have."""
    if contract.anchored:
        raise ContractError(
            "contract: anchored scores are blocks of a chunk; the recurrent form has none"
        )
    if contract.transition == "formed":
        raise ContractError(
            "contract: transition 'formed' is a way of chunks, which make a map of the state; token"
            " by token the state is there"
        )
    if contract.inverse == "series":
        raise ContractError(
            "contract: inverse 'series' is a way of chunks, which invert a triangular matrix; token"
            " by token there is none"
        )


def _check_scalar(contract: Contract) -> None:
    if contract.form == "recurrent":
        raise ContractError(
            "contract: decay 'scalar' is a way of chunks; token by token one gate for all channels"
            " rounds as many do"
        )
    if contract.factors is not None or contract.anchored:
        said = "takes one exponential of a difference for each pair of tokens"
        raise ContractError(
            f"contract: a kernel of decay 'scalar' {said}: it has no factors and no anchors; drop"
            " them"
        )


def _check_sizes(contract: Contract) -> None:
    if contract.chunk_size < 1:
        raise ContractError(f"contract: chunk size {contract.chunk_size} must be at least 1")
    if contract.form == "recurrent" and contract.chunk_size != 1:
        raise ContractError(
            f"contract: the recurrent form has no chunk size, got {contract.chunk_size}"
        )
    if contract.form == "recurrent" and contract.sub_block != SUB_BLOCK:
        raise ContractError(
            "contract: the recurrent form has no scores, so no sub-blocks, got sub_block"
            f" {contract.sub_block}"
        )
    if contract.steps < 1 or (contract.form == "recurrent" and contract.steps != 1):
        raise ContractError(
            f"contract: steps are of a token in chunks of a delta product, got {contract.steps}"
        )
    if contract.sub_block < 1:
        raise ContractError(f"contract: sub_block {contract.sub_block} must be at least 1")


def check_arithmetic(contract: Contract) -> None:
    """Refuses formats and ways of rounding that contradict each other."""
    operands, accumulate = contract.operands.name, contract.accumulate
    if accumulate.name == "tf32" or accumulate.precision < contract.operands.precision:
        raise ContractError(
            f"contract: sums of {operands} products need an accumulator of at least as many bits,"
            f" got {accumulate.name}"
        )
    if contract.operand_rounding != "free" and operands in ("fp32", "fp64"):
        raise ContractError(
            f"contract: operands in {operands} are used as they are stored: operand_rounding has"
            " nothing to round"
        )
    if contract.exponential == "approximate" and accumulate.name == "fp64":
        raise ContractError(
            "contract: approximate exponential units work in fp32; with sums in fp64 the"
            " exponential is natural or base-2"
        )


def check_tensors(contract: Contract) -> None:
    """Refuses formats of tensors that there are none of, or that are declared elsewhere."""
    known = contract.named_tensors
    for name in contract.own:
        if not name.isidentifier() or known.count(name) > 1 or name in (*CHOICES, *OTHER_KEYS):
            raise ContractError(
                f"contract: own tensor {name!r}: wanted a name that neither the {contract.form}"
                " form nor a field has"
            )
    for name, fmt in (*contract.tensors, ("carry", contract.carry)):
        if fmt.name == "tf32":
            raise ContractError(
                f"contract: {name}: tf32 is a format of operands, nothing is stored in it; wanted"
                " fp32"
            )
    for name, _ in contract.tensors:
        if name == "S":
            raise ContractError(
                "contract: the state S is stored as it is carried; set the carry instead of"
                " tensor S"
            )
        if name in RETURNED:
            raise ContractError(
                f"contract: tensor {name} is returned in the format of the inputs; it takes none of"
                " its own"
            )
        if name in DIFFERENCE and contract.factors is None:
            raise ContractError(
                f"contract: tensor {name}: only kernels of factored decays are emulated with it;"
                " declare factors too"
            )
        if name not in known:
            raise ContractError(
                f"contract: tensor {name!r} is none that the {contract.form} form stores; it stores"
                f" {', '.join(known)}"
            )
