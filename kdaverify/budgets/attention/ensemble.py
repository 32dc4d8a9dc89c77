"""The reference ensemble of attention: every admitted design and arithmetic, on a segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.attention.arithmetic import sample_generator, sampled_arithmetic
from kdaverify.budgets.attention.contract import AttentionContract, natural
from kdaverify.budgets.constants import SAMPLES
from kdaverify.budgets.sampled import reference_kernels
from kdaverify.budgets.sums import from_last, one_by_one
from oracles.arithmetic import Arithmetic
from oracles.attention.backward import AttentionBackward
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import STAGES, AttentionPipeline, AttentionStages
from oracles.attention.seesaw import seesaw
from oracles.attention.segment import Segment

Forward = tuple[Tensor, Tensor]
"""o [H, s_q, d_v] and lse [H, s_q]."""
Gradients = tuple[Tensor, ...]
"""dq, dk, dv of a segment, and that of its sink where there is one."""
SAMPLES_APART: Final = 4
"""Show how much a bias scatters: conforming kernels were at 1.2 times the limit of the reference
kernels alone."""
SHORT_BLOCK: Final = 16
"""Of the shortest."""
LARGEST_BLOCK: Final = 2**20
"""All keys: a port whose P V is one product has no other. Blocks of kernels have up to 256 (mla.md
2.4), and where sums ended there such a port was at 1.3 times its tolerance for 2,050 keys."""
GRADIENT_FORMATS: Final = {
    "dP": ("dP", "P"),
    "dPV": ("PV",),
    "dS": ("dS", "product"),
    "dS_unscaled": ("S",),
    "dq_product": ("dq_product", "product"),
    "dq_sum": ("dq_sum", "product"),
    "dq_scaled": ("q_scaled",),
}
"""Automatic differentiation stores the gradient of a tensor in the tensor's format: of its own and
these, a gradient has the narrowest. One of q is summed over blocks in the format of q."""
ROW_SUM: Final = 1.3
"""The gradient of a block's P V is dO divided by a row sum, which is no power of two: as given, dO
is a number of its format, and rounding it would change nothing."""


@dataclass(frozen=True)
class ReferenceKernel:
    """One conforming kernel: a design, its arithmetic and the type it computes in.

    Args:
        rng: where the samples of its roundings come from, None where it has none.
    """

    design: OnlineDesign
    arithmetic: Arithmetic
    work: torch.dtype
    stages: AttentionStages = STAGES
    rng: torch.Generator | None = None

    def forward(self, segment: Segment) -> Forward:
        return AttentionPipeline(self.design, self.arithmetic, self.stages)(segment, self.work)

    def backward(
        self, segment: Segment, found: Forward, do: Tensor, dlse: Tensor | None
    ) -> Gradients:
        """The gradients, from what its own forward stored."""
        design = replace(self.design, block=min(self.design.block, LARGEST_BLOCK))
        return AttentionBackward(design, self.arithmetic)(segment, found, (do, dlse), self.work)


def kernel(design: OnlineDesign, arithmetic: Arithmetic, work: torch.dtype) -> ReferenceKernel:
    """The kernel of a design; that of pairs of blocks has a stage of its own."""
    stages = replace(STAGES, split=seesaw) if design.seesaw else STAGES
    return ReferenceKernel(design, arithmetic, work, stages)


def rounded_kernels(contract: AttentionContract) -> dict[str, ReferenceKernel]:
    """Round-to-nearest kernels: designs with a library's sums, the baseline with others."""
    orders, designs = reference_kernels(contract), contract.designs()
    (_, plain), (_, library) = next(iter(designs.items())), next(iter(orders.items()))
    work = contract.accumulate.dtype
    found = {name: kernel(d, library, work) for name, d in designs.items()}
    others = {name: kernel(plain, a, work) for name, a in [*orders.items()][2:]}
    others |= _longest_sums(contract, plain, library)
    return found | {f"sums {name}": one for name, one in others.items()}


def _longest_sums(
    contract: AttentionContract, plain: OnlineDesign, library: Arithmetic
) -> dict[str, ReferenceKernel]:
    """Term by term over all keys, from either end: products with V, and sums of weights.

    Where the key at that end wins, every later term is rounded to the spacing of the whole sum.
    Blocks of 64 hide it if the winner has a block of its own: conforming fp32 kernels with one
    block of 65 keys were at 1.8 times their tolerance. Where thousands of small weights follow a
    large one their sum stands nearly still: MLX's softmax on a CPU was at 5.6 times it.
    """
    wide = plain if plain.seesaw else replace(plain, block=LARGEST_BLOCK)
    operands, work = contract.operands, contract.accumulate.dtype

    def summed(dot: Callable[[Tensor, Tensor], Tensor]) -> Arithmetic:
        def rounded(a: Tensor, b: Tensor) -> Tensor:
            return dot(operands.round(a).to(work), operands.round(b).to(work))

        def row(P: Tensor) -> Tensor:
            return dot(P[..., None, :], P.new_ones(P.shape[-1], 1))[..., 0, 0]

        return replace(library, dot=rounded, row_sum=row)

    backward = replace(wide, direction="backward")
    return {
        "from the first term": kernel(wide, summed(one_by_one), work),
        "from the last term": kernel(backward, summed(from_last), work),
    }


def sink_kernels(contract: AttentionContract) -> dict[str, ReferenceKernel]:
    """Those whose running maximum and sum begin with the sink, beside those that multiply o by its
    factor at the end: a P in fp16 is subnormal where the sink is 2^14 above it, and 0 below.

    Where logits are alike, so are the roundings of all blocks, and add up: of 700 equal keys,
    conforming fp32 kernels with blocks of 16 had 2.7 times the error of those with blocks of 64.
    """
    _, library = next(iter(reference_kernels(contract).items()))
    plain = replace(next(iter(contract.designs().values())), sink="start")
    found = {"sink first": plain, "sink first, natural": natural(plain)}
    if not plain.normalise_first:
        found["sink first, short blocks"] = replace(natural(plain), block=SHORT_BLOCK)
        if contract.splits > 1:
            found["sink in the first split"] = replace(plain, splits=min(4, contract.splits))
        if contract.lazy:
            # P is relative to the sink, and rounded in every key, where no key is so much above it
            found["sink first, lazy"] = replace(plain, rescale="lazy", lazy=contract.lazy)
    work = contract.accumulate.dtype
    return {name: kernel(design, library, work) for name, design in found.items()}


def sampled_kernels(contract: AttentionContract) -> list[ReferenceKernel]:
    """The baseline with every rounding stochastic (Monte Carlo arithmetic, Parker 1997)."""
    plain = next(iter(contract.designs().values()))
    return [_sampled_kernel(plain, contract, number) for number in range(SAMPLES)]


def _sampled_kernel(
    design: OnlineDesign, contract: AttentionContract, number: int
) -> ReferenceKernel:
    rng = sample_generator(number)
    found = kernel(design, sampled_arithmetic(contract, number, rng), torch.float64)
    return replace(found, rng=rng)


def samples_apart(contract: AttentionContract, *, sunk: bool) -> list[ReferenceKernel]:
    """Samples of kernels whose errors hang on few roundings, which a reference kernel of the form
    shows once: where `sunk`, those that begin with the sink; and of two partials in 16 bits.
    """
    plain = next(iter(contract.designs().values()))
    found = [replace(plain, sink="start")] if sunk else []
    if contract.storage("partial_o").unit > contract.accumulate.unit and contract.splits > 1:
        found.append(replace(plain, splits=2))
    return [
        _sampled_kernel(design, contract, number)
        for design in found
        for number in range(SAMPLES_APART)
    ]


def grouped_kernels(contract: AttentionContract) -> list[ReferenceKernel]:
    """Those that store each query head's dk and dv before the heads of a KV head are summed, with a
    backward of their own and with automatic differentiation's: FlashAttention-2's dk_expanded, and
    every port that repeats the KV heads. Ports that also scale the scores, and so store a scaled
    dS, had up to 2.4 times their tolerance where dS is subnormal in fp16.

    Rounded to nearest: among the samples, their larger error would count as spread.
    """
    if contract.storage("dk").unit <= contract.accumulate.unit:
        return []
    _, library = next(iter(reference_kernels(contract).items()))
    plain = replace(next(iter(contract.designs().values())), heads="alone")
    work = contract.accumulate.dtype
    return [
        kernel(design, arithmetic, work)
        for design in (plain, natural(plain))
        for arithmetic in (library, _differentiated(contract, library))
    ]


def summed_maximum_kernels(contract: AttentionContract) -> list[ReferenceKernel]:
    """Those of automatic differentiation where nothing is stored in 16 bits, as far as the running
    maximum goes: its gradient is what a sum over all keys leaves, and one key gets it.

    Where the loss is of LSE alone, nothing else is as large there: a right port in jax.numpy had up
    to 3 times its tolerance in rows of dk of keys that are a maximum.
    """
    if contract.storage("dS").unit > contract.accumulate.unit:
        return []
    work = contract.accumulate.dtype
    plain = replace(next(iter(contract.designs().values())), maximum="summed")
    orders = [_summing_rows(one) for one in reference_kernels(contract).values()]
    return [kernel(design, one, work) for one in orders for design in (plain, natural(plain))]


def _summing_rows(arithmetic: Arithmetic) -> Arithmetic:
    """The same, rows summed in the order of its products."""

    def row_sum(x: Tensor) -> Tensor:
        return arithmetic.dot(x, x.new_ones(x.shape[-1], 1)).squeeze(-1)

    return replace(arithmetic, row_sum=row_sum)


def differentiated_kernels(contract: AttentionContract) -> list[ReferenceKernel]:
    """The samples as automatic differentiation of their forward has them: the gradient of a P that
    is stored in 16 bits is stored in them too, and delta is of o before it is stored.

    Without these, plain ports in torch, whose backward is autograd's, had up to 7 times their
    tolerance where the values of a row are nearly alike: dS is a difference of nearly equal numbers
    there, and all keys of a row share one rounding of dP.
    """
    stored = {name: contract.storage(name).unit for name in ("P", "PV", "product", "q_scaled")}
    if max(stored.values()) <= contract.accumulate.unit:
        return []
    # what reaches the key of the maximum shows where P V itself is rounded
    maximum = "constant" if stored["PV"] <= contract.accumulate.unit else "differentiated"
    return [
        replace(
            one,
            arithmetic=_differentiated(contract, one.arithmetic),
            design=replace(one.design, maximum=maximum),
        )
        for one in sampled_kernels(contract)
    ]


def _differentiated(contract: AttentionContract, arithmetic: Arithmetic) -> Arithmetic:
    def store(name: str, x: Tensor) -> Tensor:
        if name == "o":
            return x
        formats = GRADIENT_FORMATS.get(name, (name,))
        narrowest = max(formats, key=lambda one: contract.storage(one).unit)
        divisor = ROW_SUM if name == "dPV" else 1.0
        return arithmetic.store(narrowest, x / divisor) * divisor

    return replace(arithmetic, store=store)
