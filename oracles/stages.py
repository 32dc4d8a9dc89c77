"""The stages of the chunk form one at a time, on tensors laid out as kernels store them.

Layout: token rows first, [B, T, HV, width]; chunk matrices are C wide, row i of a chunk holding its
row of the matrix; h is [B, M, HV, K, V] with M chunks of a batch entry, the chunks of a pack
numbered through sequence by sequence (empty ones have none). Rows past the end of a sequence are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.chunk import STAGES, Chunk, Stages
from oracles.inputs import Inputs
from oracles.scan import scan
from oracles.tensors import FLOATING
from oracles.tokens import Tensors, Tokens

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Signature:
    """What a stage reads and writes, by the names of math.md 3."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


SIGNATURES: Final[Mapping[str, Signature]] = {
    "cumsum": Signature(("g",), ("G",)),
    "scores": Signature(("q", "k", "beta", "G"), ("Aqk", "Akk")),
    "solve": Signature(("Akk",), ("R",)),
    "wy": Signature(("q", "k", "v", "beta", "G", "R"), ("w", "u", "qg", "kg")),
    "state": Signature(("G", "w", "u", "kg", "initial_state"), ("h", "v_new", "final_state")),
    "output": Signature(("Aqk", "qg", "h", "v_new"), ("o",)),
}
"""The stages, in order. The output stage may be given q and G instead of qg."""

"""What comes with the call; everything else a stage reads was written by an earlier one."""

# First diagonal that is not defined: 1 leaves the diagonal to be scored, 0 does not (the unit
# diagonal of R hides everything).
_DIAGONALS: Final = {"Aqk": 1, "Akk": 0, "R": 0, "dAqk": 1, "dAkk": 0}
# Not token rows: defined everywhere.
_STATES: Final = ("h", "final_state", "dh", "d_initial_state")
GATES: Final = ("dG_state", "dG_part", "dG_wy", "dG", "dg")
"""As wide as the gates are: one for every key channel, or one a head."""
# One number a row.
_SCALARS: Final = ("dbeta_wy", "dbeta")


def chunks(inputs: Inputs, chunk_size: int) -> list[int]:
    """Chunks of every sequence."""
    return [-(-length // chunk_size) for length in inputs.lengths]


def run_stages(
    inputs: Inputs,
    given: Named,
    *,
    covers: tuple[str, ...] = tuple(SIGNATURES),
    chunk_size: int = 64,
    dtype: torch.dtype = torch.float64,
    arithmetic: Arithmetic = NATIVE,
    stages: Stages = STAGES,
    signatures: Mapping[str, Signature] = SIGNATURES,
) -> dict[str, Tensor]:
    """Runs stages in order on given tensors: with none given, the whole forward, all kept.

    Math: section 3. Where gates are hard resets G sums the finite ones only, and the gates of
    `inputs` say where the resets are.

    Args:
        inputs: the call.
        given: what earlier stages wrote, in the layout above; values outside the defined regions
            are not read, R has a unit diagonal.
        covers: names of the stages to run, consecutive.
        chunk_size: C.
        dtype, arithmetic, stages: as for `oracles.chunk.chunk`.
        signatures: of these stages, by their names.
    Returns:
        What the covered stages write, and S_T as final_state [N, HV, K, V] if the state is among
        them.
    Raises:
        ValueError: a tensor that the stages need is missing.
    """
    check_given(given, covers, signatures)
    rows, masked = _rows(given, inputs, chunk_size)
    names = [name for stage in covers for name in signatures[stage].writes]
    tokenwise = [name for name in names if name not in ("h", "final_state")]
    walk = Walk(inputs, given, chunk_size, dtype)

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        S, index = carry
        c = Chunk(tokens, inputs.factor, arithmetic)
        c.S = S
        walk.restore(c, dict(zip(rows, tokens.others, strict=True)), index)
        for stage in covers:
            if "qg" in signatures[stage].reads and "qg" not in (*given, *tokenwise):
                c.qg = c.store("qg", tokens.q * c.decay(slice(None)))
            getattr(stages, stage)(c)
        if "state" in covers:
            walk.keep(c.h, index)
        return (c.S, index + 1), tuple(getattr(c, name) for name in tokenwise)

    final = inputs.state.to(dtype)
    if any(inputs.lengths):
        (final, _), produced = scan(
            inputs, chunk_size, (final, walk.first), body, dtype=dtype, others=masked
        )
    else:
        produced = tuple(empty(name, inputs, chunk_size, dtype) for name in tokenwise)
    written = dict(zip(tokenwise, produced, strict=True)) | {"h": walk.kept, "final_state": final}
    return {name: written[name] for name in names}


def _rows(given: Named, inputs: Inputs, chunk_size: int) -> tuple[list[str], Tensors]:
    """What is given of token rows: names, and the tensors where they are defined."""
    rows = [name for name in given if name not in ("h", *FLOATING)]
    return rows, tuple(defined(name, given[name], inputs, chunk_size) for name in rows)


def over_chunks(
    inputs: Inputs, given: Named, function: Callable[[Chunk], Tensor], *, chunk_size: int
) -> Tensor:
    """Applies a function to every chunk of given tensors, in float64.

    Args:
        given: tensors of the stages, in the layout above; the chunk handed to `function` holds
            these, its tokens and no others.
        function: gives token rows [n, HV, C, ...].
    Returns:
        [B, T, HV, ...], 0 on rows past the end of a sequence.
    """
    rows, masked = _rows(given, inputs, chunk_size)
    walk = Walk(inputs, given, chunk_size, torch.float64)

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        c = Chunk(tokens, inputs.factor, NATIVE)
        walk.restore(c, dict(zip(rows, tokens.others, strict=True)), carry[0])
        return (carry[0] + 1,), (function(c),)

    return scan(inputs, chunk_size, (walk.first,), body, dtype=torch.float64, others=masked)[1][0]


class Walk:
    """What a walk over the chunks brings along beside the token rows: a state for every chunk.

    Args:
        given: may hold h.
    """

    def __init__(self, inputs: Inputs, given: Named, chunk_size: int, dtype: torch.dtype) -> None:
        counts = chunks(inputs, chunk_size)
        self.first = torch.tensor([0, *accumulate(counts)][:-1], device=inputs.q.device)
        self.last = self.first + torch.tensor(counts, device=inputs.q.device) - 1
        self._kept = inputs.v.new_zeros(sum(counts), inputs.HV, inputs.K, inputs.V, dtype=dtype)
        self._h = given["h"].flatten(0, 1).to(dtype) if "h" in given else None
        self._B = inputs.B

    @property
    def kept(self) -> Tensor:
        """[B, M, HV, K, V]."""
        return self._kept.unflatten(0, (self._B, -1)) if len(self._kept) else self._kept[None]

    def restore(self, c: Chunk, rows: Named, index: Tensor) -> None:
        """Puts the given tensors of this chunk where the stages read them."""
        for name, tensor in rows.items():
            setattr(
                c,
                name,
                (
                    _to_the_end(tensor, c.tokens.valid)
                    if name == "G"
                    else tensor + _unit(tensor)
                    if name == "R"
                    else tensor
                ),
            )
        hard = c.tokens.g.isneginf()
        c.resets = hard.long().cumsum(-2) if bool(hard.any()) else None
        if self._h is not None:
            c.h = self._h[index]

    def keep(self, state: Tensor, index: Tensor) -> None:
        """Writes a state [n, HV, K, V] into the places of these chunks."""
        self._kept[index] = state


def _unit(R: Tensor) -> Tensor:
    return torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)


def _to_the_end(G: Tensor, valid: Tensor) -> Tensor:
    """Rows past the end of a sequence hold the last valid row, as a sum over gates of 0 would."""
    last = (valid.sum(-1) - 1).to(G.device)
    position = torch.arange(G.shape[-2], device=G.device).minimum(last[:, None])
    return G.gather(-2, position[:, None, :, None].expand_as(G))


def defined(name: str, tensor: Tensor, inputs: Inputs, chunk_size: int) -> Tensor:
    """A stage tensor, 0 outside its defined region: triangles, columns, rows past the end.

    Of R only what is strictly below the diagonal is left.
    """
    return tensor.masked_fill(~region(name, inputs, chunk_size).to(tensor.device), 0.0)


def region(name: str, inputs: Inputs, chunk_size: int) -> Tensor:
    """Where a stage tensor is defined: [B, T, 1, C] for matrices, [B, T, 1, 1] for rows."""
    if name in _STATES:
        return torch.ones((), dtype=torch.bool)
    position = torch.full((inputs.B * inputs.T,), -1)
    for first, length in zip(inputs.starts, inputs.lengths, strict=True):
        position[first : first + length] = torch.arange(length) % chunk_size
    position = position.view(inputs.B, inputs.T, 1, 1)
    if name not in _DIAGONALS:
        return position[..., 0] >= 0 if name in _SCALARS else position >= 0
    return torch.arange(chunk_size) < position + _DIAGONALS[name]


def empty(name: str, inputs: Inputs, chunk_size: int, dtype: torch.dtype) -> Tensor:
    """A token-wise stage tensor of nothing but rows past the end."""
    of_values = ("u", "v_new", "o", "dv_local", "dv_new", "dv")
    wide = inputs.V if name in of_values else inputs.g.shape[-1] if name in GATES else inputs.K
    width = () if name in _SCALARS else (chunk_size,) if name in _DIAGONALS else (wide,)
    return inputs.v.new_zeros(inputs.B, inputs.T, inputs.HV, *width, dtype=dtype)


def check_given(given: Named, covers: tuple[str, ...], signatures: Mapping[str, Signature]) -> None:
    """Refuses to run stages that lack a tensor.

    Raises:
        ValueError: naming the stage, and what is missing.
    """
    # The output stage may be given q and G instead.
    available = {*given, *FLOATING, *(["qg"] if "output" in covers and "G" in given else [])}
    for stage in covers:
        signature = signatures[stage]
        lacking = [name for name in signature.reads if name not in available]
        if lacking:
            raise ValueError(
                f"stage {stage}: reads {', '.join(signature.reads)}, and {', '.join(lacking)} is"
                " not given; give it"
            )
        available |= set(signature.writes)
