"""The keys of an attention contract, and what each means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
