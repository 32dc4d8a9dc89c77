"""The arithmetic that an attention kernel declares, by a name that says it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch

from kdaverify.budgets.contract_checks import ContractError, bracketed_pairs
from kdaverify.budgets.formats import FORMATS, MAILBOX_FORMATS, Format
from kdaverify.budgets.sampled import Described, StorageContract
from oracles.attention.design import OnlineDesign

Form = Literal["online", "math", "seesaw"]
INPUTS: Final = "inputs"
"""Stands for the format of q, k and v in a contract that is for any of them."""
NARROW: Final = ("P", "P_backward", "dS", "o", "dq", "dk", "dv", "dcache")
"""What a kernel of 16-bit operands stores in their format."""
SUMMED: Final = ("dk", "dv")
RETURNED: Final = ("o", "dq", "dk", "dv", "dcache")
FEW_SPLITS: Final = 8
"""Where the part that is merged first has all the weight, each of the others is too light to change
the sum, and all of them are lost: from either end, by the order. Of 32 parts, conforming fp32
kernels that merge from the last were at 2.4 times their tolerance; of 8, within 0.83 of it."""
FORMS: Final[Mapping[str, str]] = {
    "online": "online softmax by blocks of keys",
    "math": "the whole softmax, then its product with V",
    "seesaw": "pairs of blocks, whose column halves are rounded differently",
}
"""By its name."""
BLOCK: Final = "keys of the block that is emulated first; all blocks conform"
NUMBERS: Final[Mapping[str, str]] = {
    "lazy": "powers of two that the maximum may rise by before sums are rescaled; 0: none",
    "splits": "parts that the keys are cut into, at most; `math` has one",
}
"""By what each counts."""
WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "scale": {"free": "scores or exponents are multiplied by the scale",
              "q": "q is, and stored as `q_scaled`, which the backward reads for S and dk"},
    "row_sum": {"unrounded": "the sum of a row is of P as computed", "rounded": "of P as stored",
                "free": "of either"},
    "weights": {"maximum": "exponentials are relative to the maximum, then divided by their sum",
                "lse": "P = exp(S - LSE), without a division"},
    "d_scores": {"unrounded": "dS is made of P as computed",
                 "rounded": "of P as stored in `P_backward`"},
}  # fmt: skip
"""By its values."""
TENSORS: Final[Mapping[str, str]] = {
    "K_scale": "scales of an FP8 cache, before they multiply its codes",
    "product": "q K^T as the product returns it, before the scale",
    "S": "the scores, with the scale where it multiplies them",
    "q_scaled": "q times the scale, with `scale:q`",
    "P": "the exponentials as the product with V takes them; of `math` the softmax",
    "PV": "P V of a block, before it is added to o; `math` has one block of all keys",
    "partial_o": "o of a split",
    "partial_lse": "LSE of a split",
    "o": "the returned o",
    "lse": "the returned LSE",
    "P_backward": "P as the product for dv takes it",
    "dP": "dO V^T",
    "delta_product": "the products dO o, before their sum",
    "delta": "the sum of dO o of a row",
    "dS": "the gradient of the scores as the products for dq and dk take it",
    "dq_product": "dS K of a block, before it is added to dq",
    "dq_sum": "dq after each block",
    "dq": "the returned dq",
    "dk": "the returned dk",
    "dv": "the returned dv",
    "dcache": "the returned gradient of the cache, of attention over lists",
    "dsink": "the returned gradient of the sink",
}
"""What may be stored in another format than the accumulator's."""
_NAME: Final = re.compile(rf"({'|'.join(FORMS)})(\d*)-(fp64|fp32|tf32|bf16|fp16)(?:\[(.*)\])?")
_USUAL: Final = ("online64-bf16", "online-fp32", "math-fp32", "seesaw-bf16", "online64-fp16")


@dataclass(frozen=True)
class AttentionContract(StorageContract):
    """What a conforming kernel may do.

    Args:
        form: online softmax by blocks; the whole softmax, then its product with V (math); or pairs
            of blocks whose column halves are rounded differently (seesaw).
        block: keys of a block; other blocks are conforming too, this is the first that is emulated.
        lazy: powers of two that the maximum may rise before sums are rescaled; 0: every rise.
        splits: the largest number of parts that the keys are cut into.
        scale: whether q may be scaled and stored first; free: scores or exponents are scaled.
        row_sum: of P as computed, as stored (lse is then good to the roundoff of P's format
            instead of fp32's), or either (free).
        weights: what exponentials are relative to: the maximum, and then they are divided by their
            sum, or LSE, without a division: P = exp(S - LSE), and in merges exp(LSE_s - LSE). The
            rounding of LSE is then an error of all weights of a row: 1.5e-5 at |LSE| = 250 in fp32.
        d_scores: whether dS is of P as computed, or as stored for the product with dO. The backward
            of memory-efficient attention keeps P in 16 bits alone: in fp16 a P of 9e-8 is then
            1.2e-7, and dk had 3.4 times the tolerance of kernels that keep it in fp32.
    """

    form: Form = "online"
    block: int = 64
    lazy: float = 0.0
    splits: int = 8
    scale: str = "free"
    row_sum: str = "unrounded"
    weights: str = "maximum"
    d_scores: str = "unrounded"

    def described(self) -> tuple[Described, ...]:
        words = ((name, getattr(self, name), WORDS[name][getattr(self, name)]) for name in WORDS)
        numbers = ((name, f"{getattr(self, name):g}", about) for name, about in NUMBERS.items())
        tensors = ((name, self.storage(name).name, about) for name, about in TENSORS.items())
        form, block = ("form", self.form, FORMS[self.form]), ("block", str(self.block), BLOCK)
        return (form, block, *numbers, *words, *tensors)

    def kernels(self) -> tuple[str, ...]:
        return tuple(self.designs())

    def designs(self) -> dict[str, OnlineDesign]:
        """The reference kernels, the baseline first: one for each freedom that moves errors."""
        plain = OnlineDesign(
            block=self.block,
            scale="q" if self.scale == "q" else "exponent",
            row_sum="rounded" if self.row_sum == "rounded" else "unrounded",
            d_scores="rounded" if self.d_scores == "rounded" else "unrounded",
        )
        if self.weights == "lse":
            return self._relative_to_lse(replace(plain, normalise_first=True, block=2**30))
        if self.form == "math":
            one = replace(plain, normalise_first=True, block=2**30)
            return {
                "softmax, then the product": one,
                "natural": natural(one),
                "reciprocal": replace(one, division="reciprocal"),
            }
        plain = replace(plain, seesaw=self.form == "seesaw")
        found = {
            "blocks in order": plain,
            "from the last block": replace(plain, direction="backward", block=2 * self.block),
            "natural exponential": natural(plain),
            "one pass for the maximum": replace(plain, rescale="once", division="reciprocal"),
        }
        if not plain.seesaw:
            found["relative to the block"] = replace(plain, relative_to="block", block=32)
        if self.row_sum == "free":
            found["sums of rounded P"] = replace(plain, row_sum="rounded", block=16)
        if self.splits > 1:
            parts = min(4, self.splits)
            found["splits"] = replace(plain, splits=parts, cut="blocks", merge="at once")
            found["most splits"] = most = replace(plain, splits=self.splits, merge="in order")
            if self.splits > FEW_SPLITS:
                found["most splits, reversed"] = replace(most, merge="reversed")
            if self.storage("partial_o").unit > self.accumulate.unit:
                found |= self._few_parts(plain)
        if self.lazy:
            found["lazy"] = lazy = replace(plain, rescale="lazy", lazy=self.lazy)
            # where the first key wins, only this direction stores a largest P above 1
            found["lazy, from the last block"] = replace(lazy, direction="backward", block=32)
        return found

    def of_shared_keys(self) -> AttentionContract:
        """That of a backward in which queries add to the gradient of one row: it is stored once it
        is whole, dk and dv of a query before are not.
        """
        return replace(self, tensors={**self.tensors, **dict.fromkeys(SUMMED, self.accumulate)})

    def _few_parts(self, plain: OnlineDesign) -> dict[str, OnlineDesign]:
        """Few partials that are rounded in storage err by more than many, whose errors average out.
        By how much, and by which bias, depends on which keys share a split: conforming kernels were
        at 1.6 times the limit.
        """
        two = replace(plain, splits=2)
        return {
            "two splits": two,
            "two splits of blocks": replace(two, cut="blocks"),
            "a short first split": replace(two, cut="uneven", block=16),
            "three splits": replace(plain, splits=3, merge="in order"),
        }

    def _relative_to_lse(self, plain: OnlineDesign) -> dict[str, OnlineDesign]:
        one = replace(plain, division="lse")
        found = {"relative to LSE": one, "natural": natural(one)}
        if self.form == "online" and self.splits > 1:
            found["most splits"] = replace(one, splits=self.splits, merge="at once")
        return found


def natural(design: OnlineDesign) -> OnlineDesign:
    """The same with exponentials to base e of scores that are scaled before."""
    early = "q" if design.scale == "q" else "scores"
    return replace(design, base="e", scale=early, fused=False)


def attention_contract(name: str, io: Format | None = None) -> AttentionContract:
    """The contract a name declares: FORM[BLOCK]-OPERANDS[key:value;...].

    Args:
        name: such as "online64-bf16" (block 64, P in bf16), "online-fp32", "math-fp32",
            "seesaw-bf16", "online64-bf16[partial_o:bf16;lazy:8]". Keys are tensors, lazy, splits,
            scale, row_sum, weights and d_scores.
        io: the format of q, k, v and o; that of the operands where it is not given.
    Raises:
        ContractError: the name does not parse; the message has what was wanted.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        close = difflib.get_close_matches(name, _USUAL, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"wanted one like {', '.join(_USUAL)}"
        raise ContractError(f"contract {name!r} is not known; {hint}")
    form, block, operands, rest = match.groups()
    pairs = bracketed_pairs(rest or "", name)
    return _contract(name, form, int(block or 64), operands, pairs, io=io)


def _contract(
    name: str, form: str, block: int, operands: str, pairs: dict[str, str], *, io: Format | None
) -> AttentionContract:
    narrow = _format(operands, "operands", name)
    stored = narrow if io is None else io
    wide = FORMATS["fp64" if narrow.name == "fp64" else "fp32"]
    numbers: dict[str, Any] = {
        key: _number(pairs.pop(key), key, name) for key in NUMBERS if key in pairs
    }
    words = {key: _word(pairs.pop(key), key, name) for key in WORDS if key in pairs}
    if unknown := [key for key in pairs if key not in TENSORS]:
        keys = ", ".join((*NUMBERS, *WORDS, *TENSORS))
        raise ContractError(f"contract {name!r}: {unknown[0]!r} is no key; the keys are {keys}")
    tensors = _usual(narrow, stored, wide) | {
        key: stored if value == INPUTS else _format(value, key, name)
        for key, value in pairs.items()
    }
    if form == "seesaw" and words.get("weights") == "lse":
        raise ContractError(f"contract {name!r}: weights:lse is for online and math")
    largest = torch.finfo(tensors["P"].dtype).max
    if 2.0 ** numbers.get("lazy", 0.0) > largest:
        raise ContractError(
            f"contract {name!r}: lazy: P of {tensors['P'].name} reaches 2^{numbers['lazy']:g} then,"
            f" and {largest:.6g} is the largest; wanted at most {math.floor(math.log2(largest))}"
        )
    if "splits" in numbers:
        numbers["splits"] = max(1, int(numbers["splits"]))
    return AttentionContract(
        name,
        narrow,
        wide,
        tensors,
        form=form,  # pyright: ignore[reportArgumentType]
        block=block,
        **numbers,  # pyright: ignore[reportArgumentType]
        **words,  # pyright: ignore[reportArgumentType]
    )


def _usual(narrow: Format, io: Format, wide: Format) -> dict[str, Format]:
    """Where nothing else is declared: P and dS as the products take them, outputs as the inputs."""
    operands = wide if narrow.name == "tf32" else narrow
    return {name: io if name in RETURNED else operands for name in NARROW}


def _format(text: str, where: str, name: str) -> Format:
    known = {**MAILBOX_FORMATS, **FORMATS}
    if text not in known:
        raise ContractError(
            f"contract {name!r}: {where}: wanted one of {', '.join(known)}, got {text!r}"
        )
    return known[text]


def _number(text: str, key: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ContractError(f"contract {name!r}: {key}: wanted a number, got {text!r}") from None


def _word(text: str, key: str, name: str) -> str:
    if text not in WORDS[key]:
        raise ContractError(
            f"contract {name!r}: {key}: wanted one of {', '.join(WORDS[key])}, got {text!r}"
        )
    return text
