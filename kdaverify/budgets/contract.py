"""The arithmetic a kernel declares: what is rounded where. A kernel is judged against the legal kernels of its contract."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

import torch

from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.tensors import PIPELINES

_NAME = re.compile(
    r"(?P<form>recurrent|chunk(?P<size>\d+))-(?P<operands>fp64|fp32|tf32|bf16|fp16)"
    r"(?:-(?P<factors>fp32|bf16|fp16)factors)?(?:-(?P<anchored>anchored))?(?:-(?P<solve>fp32|tf32)solve)?"
    r"(?:-(?P<carry>fp64|fp32|bf16|fp16)carry)?(?:-(?P<softplus>softplus))?"
)
_GRAMMAR = (
    "recurrent-OPERANDS or chunkSIZE-OPERANDS, with OPERANDS fp64, fp32, tf32, bf16 or fp16, for 16-bit chunks an optional "
    "-FORMATfactors, or -fp32solve or -tf32solve, that one with -anchored before it or not, an optional -FORMATcarry and "
    "an optional -softplus"
)

FACTORS = ("factor", "k_back", "o_part")
"""Tensors that only kernels of factored decays store, in the format of the factors."""


SUMS = (
    *("G", "decayed", "dq_state", "dk_state", "h_dh", "dG_state", "dbeta_wy", "dk_wy", "dG_wy", "beta_k", "dG", "dg", "dq_head", "dk_head"),
)
"""Tensors that are sums still being made, or never leave the unit that makes them: kept in the accumulator's format."""

RETURNED = ("o", "dq", "dk", "dv", "dbeta")
"""Tensors that are returned in the format of the inputs."""


class ContractError(ValueError):
    """A contract that means nothing; the message shows the grammar."""


@dataclass(frozen=True)
class Contract:
    """A numeric contract.

    Args:
        form: "recurrent" (one token at a time) or "chunk".
        chunk_size: tokens per chunk; 1 for the recurrent form.
        operands: format of the operands of dot products and of every stored intermediate.
        carry: format the state is carried and returned in.
        solve: format of the operands of the scores, and of the products that invert the triangular system, which is itself kept in the
            accumulator's format until then; None: both as `operands`.
        factors: format of the factors exp(G_i) and exp(-G_j), for kernels that form decays as products of them instead of as
            exponentials of differences: more roundings, and an overflow where gates sum to more than 88 nats in a chunk.
        anchored: whether the diagonal blocks of the scores are products of such factors too, relative to a row of the block.
        softplus: whether the kernel makes the gates itself, as log(1 + exp x) in the accumulator's format: 1 + exp x rounds by as much as
            the decay itself would, which a gate near 0 feels as a large relative error.
        tensors: storage formats of single named tensors, by name, where they are not what the rest implies.
        own: names that the kernel's own pipeline stores beside those of its form, so that `tensors` may name them.
    """

    form: Literal["recurrent", "chunk"]
    chunk_size: int
    operands: Format
    carry: Format
    solve: Format | None = None
    factors: Format | None = None
    anchored: bool = False
    softplus: bool = False
    tensors: tuple[tuple[str, Format], ...] = ()
    own: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        special = "solve in a wider format" if self.solve is not None else "factor their decays" if self.factors is not None else ""
        if special and (self.form == "recurrent" or self.operands.name not in ("bf16", "fp16")):
            raise ContractError(f"contract: only chunks of 16-bit operands {special}, got {self.form} {self.operands.name}")
        if self.anchored and self.solve is None:
            raise ContractError("contract: anchored scores go with a solve of their own; name its format too, as in -anchored-tf32solve")
        if self.chunk_size < 1:
            raise ContractError(f"contract: chunk size {self.chunk_size} must be at least 1")
        if self.form == "recurrent" and self.chunk_size != 1:
            raise ContractError(f"contract: the recurrent form has no chunk size, got {self.chunk_size}")
        self._check_tensors()
        object.__setattr__(self, "tensors", tuple(sorted(dict(self.tensors).items())))  # one order, so that equal contracts are equal

    def _check_tensors(self) -> None:
        known = self.named_tensors
        for name, _ in self.tensors:
            if name == "S":
                raise ContractError("contract: the state S is stored as it is carried; set the carry instead of tensor S")
            if name in RETURNED:
                raise ContractError(f"contract: tensor {name} is returned in the format of the inputs; it takes none of its own")
            if name not in known:
                raise ContractError(f"contract: tensor {name!r} is none that the {self.form} form stores; it stores {', '.join(known)}")

    @property
    def named_tensors(self) -> tuple[str, ...]:
        """Every tensor that the contract's pipeline stores by name: those of its form, forward and backward, and its own."""
        return (*PIPELINES[self.form].names, *self.own)

    def storing(self, **formats: Format) -> Contract:
        """The same contract with the named tensors in other formats.

        Raises:
            ContractError: a tensor that the pipeline does not store, or whose format is declared elsewhere.
        """
        return replace(self, tensors=tuple((dict(self.tensors) | formats).items()))

    @property
    def name(self) -> str:
        form = "recurrent" if self.form == "recurrent" else f"chunk{self.chunk_size}"
        factors = "" if self.factors is None else f"-{self.factors.name}factors"
        anchored = "-anchored" if self.anchored else ""
        solve = "" if self.solve is None else f"{anchored}-{self.solve.name}solve"
        carry = "" if self.carry is self.accumulate else f"-{self.carry.name}carry"
        softplus = "-softplus" if self.softplus else ""
        tensors = f"[{','.join(f'{name}={fmt.name}' for name, fmt in self.tensors)}]" if self.tensors else ""
        return f"{form}-{self.operands.name}{factors}{solve}{carry}{softplus}{tensors}"

    @property
    def accumulate(self) -> Format:
        """Format of sums, exponentials and the cumulative gate: fp64 for fp64 operands, fp32 otherwise."""
        return FORMATS["fp64" if self.operands.name == "fp64" else "fp32"]

    @property
    def work(self) -> torch.dtype:
        """The torch type in which the emulation runs."""
        return self.accumulate.dtype

    def storage(self, tensor: str, io: Format) -> Format:
        """The format in which the named tensor of math.md 2, 3 or 5, or of the own pipeline, is stored, for a problem in `io`."""
        for name, fmt in self.tensors:
            if name == tensor:
                return fmt
        if tensor in SUMS or (tensor == "Akk" and self.solve is not None):
            return self.accumulate
        if tensor in FACTORS and self.factors is not None:
            return self.factors
        if tensor in ("S", "dS"):
            return self.carry
        if tensor in RETURNED:
            return io
        return FORMATS["fp32"] if self.operands.name == "tf32" else self.operands


def contract_from_name(name: str) -> Contract:
    """The contract a preset name declares, FORM-OPERANDS[-FACTORS][-SOLVE][-CARRY][-softplus].

    Args:
        name: such as "recurrent-fp32", "chunk64-bf16", "chunk64-bf16-tf32solve", "chunk16-bf16-bf16carry". The state is carried in
            the accumulator's format (fp32; fp64 with fp64 operands) unless the name says otherwise.
    Raises:
        ContractError: the name does not parse.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ContractError(f"contract {name!r} is not known; wanted {_GRAMMAR}, such as 'chunk64-bf16' or 'recurrent-fp32'")
    operands = FORMATS[match["operands"]]
    carry = FORMATS[match["carry"] or ("fp64" if operands.name == "fp64" else "fp32")]
    factors, solve = (None if match[part] is None else FORMATS[match[part]] for part in ("factors", "solve"))
    form, size = ("recurrent", 1) if match["size"] is None else ("chunk", int(match["size"]))
    return Contract(form, size, operands, carry, solve, factors, match["anchored"] is not None, match["softplus"] is not None)
