"""The arithmetic a kernel declares: what is rounded where; its ensemble conforms to it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kdaverify.budgets.contract_checks import (
    DIFFERENCE,
    RETURNED,
    Anchor,
    Beta,
    Decay,
    Exponential,
    Flush,
    Form,
    Inverting,
    Order,
    Rounding,
    Scale,
    Transition,
    check_arithmetic,
    check_form,
    check_tensors,
)
from kdaverify.budgets.contract_name import APART, default_accumulator, fields_from_name, spelled
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.tensors import PIPELINES, Pipeline
from oracles.arithmetic import SUB_BLOCK
from oracles.gate_activation import activation_of
from oracles.row_norm import GIVEN, norm_of
from oracles.tensors import OUTPUTS, SIGNATURE

OF_BOTH = (
    "operands", "carry", "accumulator", "softplus", "flush", "operand_rounding",
    "storage_rounding", "order", "exponential", "scale", "gate", "beta", "qk",
)  # fmt: skip
"""What is declared of chunks and of the recurrence alike."""
FACTORS = ("factor", "k_back", "o_part")
"""Tensors that only kernels of factored decays store, in the format of the factors."""
SUMS = (
    *(
        "G", "decayed", "dS_o", "dq_state", "dk_state", "h_dh", "dG_state", "dbeta_wy", "dk_wy",
        "dG_wy", "beta_k_wy", "beta_k", "kb_gate", "dG", "dg", "dq_head", "dk_head",
    ),
)  # fmt: skip
"""Tensors that are sums still being made, or never leave the unit that makes them: kept in the
accumulator's format."""


@dataclass(frozen=True)
class Contract:
    """A numeric contract.

    Args:
        form: "recurrent" (one token at a time) or "chunk".
        chunk_size: tokens per chunk; 1 for the recurrent form.
        operands: format of the operands of dot products and of every stored intermediate.
        carry: format the state is carried and returned in.
        solve: format of the operands of the scores, and of the products that invert the triangular
            system, which is itself kept in the accumulator's format until then; None: both as
            `operands`.
        factors: format of the factors exp(G_i) and exp(-G_j), for kernels that form decays as
            products of them instead of as
            exponentials of differences: more roundings, and an overflow where gates sum to more
            than 88 nats in a chunk.
        anchored: whether the diagonal blocks of the scores are products of such factors too,
            relative to a row of the block: in the format of the scores' operands, whichever that
            is.
        softplus: whether the kernel makes the gates itself, as log(1 + exp x) in the accumulator's
            format: 1 + exp x rounds by as much as the decay itself would, which a gate near 0 feels
            as a large relative error.
        tensors: storage formats of named tensors, where they are not what the rest implies.
        own: names that the kernel's own pipeline stores besides, which `tensors` may name.
        accumulator: format of sums, exps and cumulative gates; None: fp64 for fp64, else fp32.
        sub_block: rows of a block of the scores, within which every pair takes its own exponent,
            and of a block of the solve.
        steps: of a delta product, Householder steps a token: its chunks of `chunk_size` steps hold
            from chunk_size / steps tokens to `chunk_size`.
        anchor: the row that anchored scores are relative to: the first of a block (moved half-way),
            its middle one, or free.
        flush: whether results below the normal range become 0: always, never, or free.
        operand_rounding: how operands are rounded; free: to nearest, tf32 also cut off.
        storage_rounding: how stored tensors are brought to theirs.
        order: in-order where products and cumulative sums are made from their first term to their
            last, one at a time; free otherwise.
        exponential: natural (of the argument as it is), base-2 (of the argument times 1 / ln 2,
            rounded), approximate (base-2, and off in its last bits as a fast unit is), or free.
        scale: in-q where q times the scale is stored in the format of q before anything else:
            scores that cancel are then off by a rounding of their terms; rounded where the scale
            itself is brought to the format of the operands, and multiplies q exp(G) after that is
            stored: a constant relative error of every output, up to one unit; free elsewhere.
        decay: channel where every key channel has a gate of its own; scalar where all share one,
            and the kernel's chunks make use of it: see `budgets.scalar_decay`.
        transition: formed where each chunk's map of the state, S -> M S + C with M [K, K], is made
            before the state is there, as where ranks or chunks run at once: K terms are summed
            where the decay of an element is one product, and maps are joined in any order: see
            `budgets.maps`. applied elsewhere.
        inverse: series where blocks of `sub_block` rows are inverted as (I - A)(I + A^2)(I + A^4)
            and so on: powers of A grow before they cancel, which betas near 2 and coherent keys
            show. substituted where they are solved by rows or by smaller blocks.
        gate, beta: what the kernel receives in place of a log decay and of a write strength. What
            it computes from that rounds too, and its gradients are with respect to that. An
            adapter's conventions set both; a declared contract need not. Of gates log, log2, decay
            or the name of a `GateActivation`.
        qk: likewise of q and k: given, or the name of a `RowNorm`.
        backward: what the backward computes with, where that is another pipeline than the forward:
            chunks there and a recurrence back, say. None: the same.
        forward: of such a backward, as `of_gradients` gives it, what the forward beside it
            declares: it may start from states that this left. None: none is beside it.
        label: what its author calls it; no part of what it means.
    """

    form: Form
    chunk_size: int
    operands: Format
    carry: Format
    solve: Format | None = None
    factors: Format | None = None
    anchored: bool = False
    softplus: bool = False
    tensors: tuple[tuple[str, Format], ...] = ()
    own: tuple[str, ...] = ()
    accumulator: Format | None = None
    sub_block: int = SUB_BLOCK
    steps: int = 1
    anchor: Anchor = "free"
    flush: Flush = "free"
    operand_rounding: Rounding = "free"
    storage_rounding: Literal["nearest", "truncate"] = "nearest"
    order: Order = "free"
    exponential: Exponential = "free"
    scale: Scale = "free"
    decay: Decay = "channel"
    transition: Transition = "applied"
    inverse: Inverting = "substituted"
    gate: str = "log"
    beta: Beta = "value"
    qk: str = GIVEN
    backward: Contract | None = None
    forward: Contract | None = None
    label: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.accumulator == self.wide:
            # one way to say it, so that equal contracts are equal
            object.__setattr__(self, "accumulator", None)
        object.__setattr__(self, "tensors", tuple(sorted(dict(self.tensors).items())))
        if self.backward is not None and self.backward == replace(self, backward=None):
            object.__setattr__(self, "backward", None)
        check_form(self)
        check_arithmetic(self)
        check_tensors(self)

    @property
    def of_gradients(self) -> Contract:
        """What gradients are judged by: the declared backward beside this forward, or itself."""
        if self.backward is None:
            return self
        handed: dict[str, Any] = {"gate": self.gate, "beta": self.beta, "qk": self.qk}
        return replace(self.backward, **handed, forward=replace(self, backward=None))

    @property
    def makes_softplus(self) -> bool:
        """Whether the kernel makes the gates itself as log(1 + exp x)."""
        activation = activation_of(self.gate)
        return self.softplus or (activation is not None and activation.form == "softplus")

    @property
    def stores_rows(self) -> bool:
        """Whether rows that the kernel normalises are rounded, to the operands' format or own."""
        norm = norm_of(self.qk)
        narrow = self.operands.precision < self.accumulate.precision
        return norm is not None and (norm.stored or narrow)

    @property
    def named_tensors(self) -> tuple[str, ...]:
        """Every tensor that the contract's pipeline stores by name, forward and backward."""
        return (*self.pipeline.names, *self.own)

    @property
    def pipeline(self) -> Pipeline:
        """What its kernels store, stage by stage."""
        return PIPELINES["scalar decay" if self.decay == "scalar" else self.form]

    @property
    def difference_first(self) -> bool:
        """Whether v - k exp(G) S is stored before beta, in a format of its own, multiplies it."""
        return any(name in DIFFERENCE for name, _ in self.tensors)

    def of_steps(self, steps: int) -> Contract:
        """The same of a delta product, whose chunks are of steps; a recurrence has none."""
        back = None if self.backward is None else self.backward.of_steps(steps)
        return replace(self, backward=back, steps=1 if self.form == "recurrent" else steps)

    def unfactored(self) -> Contract:
        """The same with exponentials of differences: what is possible where factors overflow."""
        tensors = tuple((name, fmt) for name, fmt in self.tensors if name not in DIFFERENCE)
        return replace(self, factors=None, tensors=tensors)

    def by_tokens(self) -> Contract:
        """The recurrence in the same formats: what is declared of chunks alone is not its."""
        of_both = {f.name: getattr(self, f.name) for f in fields(self) if f.name in OF_BOTH}
        return Contract(form="recurrent", chunk_size=1, **of_both)

    def storing(self, **formats: Format) -> Contract:
        """The same contract with the named tensors in other formats.

        Raises:
            ContractError: a tensor not stored by the pipeline, or with a format declared elsewhere.
        """
        return replace(self, tensors=tuple((dict(self.tensors) | formats).items()))

    @property
    def name(self) -> str:
        """What records call it: no two contracts that differ have one name."""
        return f"{self.label} ({spelled(self)})" if self.label else spelled(self)

    @property
    def accumulate(self) -> Format:
        """Format of sums, exponentials and the cumulative gate."""
        return self.accumulator or self.wide

    @property
    def wide(self) -> Format:
        """Format of gates, and of what is returned beside tensors in the inputs' format."""
        return default_accumulator(self.operands)

    @property
    def work(self) -> torch.dtype:
        """The torch type of the emulation; sums in fewer bits are rounded in it as they grow."""
        return torch.float64 if self.accumulate.name == "fp64" else torch.float32

    @property
    def narrow_sums(self) -> bool:
        """Whether sums are kept in fewer bits than the emulation computes in."""
        return self.accumulate.dtype != self.work

    @property
    def vanishing(self) -> float:
        """The most that underflow takes from a term: all if flushed, half a subnormal elsewhere."""
        return self.accumulate.min_normal * (self.accumulate.unit if self.flush == "never" else 1.0)

    def storage(self, tensor: str, io: Format) -> Format:
        """The storage format of a named tensor of math.md 2, 3, 5, for a problem in `io`."""
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
            # What is returned, and rounded, beside a logit is the gradient of the logit, and beside
            # rows that are normalised in registers that of the rows.
            inside = (tensor == "dbeta" and self.beta != "value") or (
                tensor in ("dq", "dk") and self.qk != GIVEN and not self.stores_rows
            )
            return self.accumulate if inside else io
        return FORMATS["fp32"] if self.operands.name == "tf32" else self.operands

    def output_formats(self, io: Format) -> dict[str, Format]:
        """The format of every output of a call: that of the tokens, or of the carried state."""
        return {name: self.carry if SIGNATURE.is_state(name) else io for name in OUTPUTS}

    def returned(self, gradient: str, io: Format) -> Format:
        """The format in which a gradient is returned."""
        activation = activation_of(self.gate)
        narrow = gradient == "dg" and activation is not None and activation.narrow
        return io if narrow or gradient in RETURNED else self.wide

    def stored(self, name: str, tensor: Tensor, io: Format) -> Tensor:
        """`tensor` as it comes back from where the contract stores it."""
        fmt = self.storage(name, io)
        return fmt.truncate(tensor) if self.storage_rounding == "truncate" else fmt.round(tensor)


def contract_from_name(name: str) -> Contract:
    """The contract a name declares, FORM-OPERANDS[-FACTORS][-anchored][-SOLVE][-CARRY][-softplus],
    in brackets what else; two of them with a stroke between where the backward has its own.

    Args:
        name: such as "recurrent-fp32", "chunk64-bf16", "chunk64-fp32-anchored",
            "chunk64-bf16-tf32solve", "chunk16-bf16-bf16carry", "chunk64-bf16[h:fp32]",
            "chunk64-bf16/recurrent-fp32". The state is carried in the accumulator's format (fp32;
            fp64 with fp64 operands) unless the name says otherwise.
    Raises:
        ContractError: the name does not parse.
    """
    name, apart, backward = name.partition(APART)
    if apart:
        return replace(contract_from_name(name), backward=contract_from_name(backward))
    return Contract(**fields_from_name(name))
