"""Equal sizes, and packs of regular lengths: what kernels infer from sizes is wrong there.

Code that recognises an axis by its size, such as `if x.shape[1] == HV`, is right on all other
problems. So is a pack read as a strided batch because its lengths are equal. Every pair of sizes
that can be equal is so in one of these problems, beside others that are not: where all are equal,
one mistake can undo another.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Coincidence(NamedTuple):
    """A panel problem's reason and fields.

    Args:
        about: sizes without which it shows nothing; it is tested at other widths and heads.
    """

    why: str
    fields: dict[str, Any]
    about: tuple[str, ...]

    @property
    def decided_by(self) -> tuple[str, ...]:
        """Sizes by which a problem is known to be this one: a pack has no sizes but its lengths."""
        return tuple({*self.about, "lengths"})


_TOKENS_AT: Final = (0, 1, 127, 128, 129, 200, 255, 256, 257)
"""The sequences with a token, all others are empty: the first two and the last, and those on either
side of what a signed and an unsigned byte count: a port that counted sequences by a byte passed."""
_SPARSE: Final = tuple(int(n in _TOKENS_AT) for n in range(_TOKENS_AT[-1] + 1))
_HEADS: Final = {"H": 1, "HV": 2, "K": 8, "V": 4}
"""All different: nothing but the lengths follows a rule."""


def _equal(why: str, **sizes: int) -> Coincidence:
    return Coincidence(f"{why}: an axis recognised by its size, heads or states transposed by it"
                       " (O1, S8, B30)", {"gate": "mild", **sizes}, tuple(sizes))  # fmt: skip


def _pack(why: str, lengths: tuple[int, ...], **sizes: int) -> Coincidence:
    return Coincidence(
        f"{why} (V1, V10)", {"lengths": lengths, **(sizes or _HEADS)}, about=("lengths",)
    )


def _few(why: str, T: int, **sizes: int) -> Coincidence:
    return Coincidence(f"{why} (S8, S12)", {"T": T, "H": 2, "HV": 4, **sizes}, about=("T",))


COINCIDENT: Final[dict[str, Coincidence]] = {
    "equal-sizes": _equal("all sizes equal", B=4, T=4, H=4, HV=4, K=4, V=4),
    "equal-BT-H-KV": _equal("B = T, H = HV, K = V", B=3, T=3, H=2, HV=2, K=8, V=8),
    "equal-BH-TK-HVV": _equal("B = H, T = K, HV = V", B=2, H=2, T=5, K=5, HV=4, V=4),
    "equal-BHV-TV-HK": _equal("B = HV, T = V, H = K", B=4, HV=4, T=5, V=5, H=2, K=2),
    "equal-BK-THV-HV": _equal("B = K, T = HV, H = V", B=3, K=3, T=4, HV=4, H=2, V=2),
    "equal-BV-TH-HVK": _equal("B = V, T = H, HV = K", B=3, V=3, T=2, H=2, HV=4, K=4),
    "three-tokens": _few("a few tokens with a state, as speculative decoding has", 3, K=16, V=8),
    "eight-tokens": _few("the same of eight", 8, K=16, V=12),
    "equal-lengths-apart": _pack(
        "equal lengths at other distances, read as a progression of offsets; N = V", (3, 3, 7, 3)
    ),
    "equal-ends": _pack(
        "the first length and the last are the mean, those between are not: read as a batch",
        (3, 2, 4, 3),
    ),
    "equal-lengths": _pack(
        "a pack of equal lengths, read as a batch; N = H = K", (5, 5, 5), H=3, HV=6, K=3, V=4
    ),
    "equal-lengths-padded": _pack(
        "the same before as many tokens that are no sequence's, read as a batch of T // N",
        (4, 4, 4),
        padding=5,
    ),
    "one-token-each": _pack(
        "a pack of one token each, read as a batch of one; N = T = HV",
        (1, 1, 1, 1),
        H=2,
        HV=4,
        K=8,
        V=3,
    ),
    "empties-and-two": _pack(
        "as many sequences as tokens, not one each: read as requests of one token; N = T",
        (2, 0, 1),
    ),
    "rising-lengths": _pack("lengths in a progression, sorted", (2, 4, 6)),
    "falling-lengths": _pack("lengths sorted, the longest first", (7, 4, 2, 1, 0)),
    "equal-states": Coincidence(
        "sequences that continue from one state, as behind a common prefix: loaded once, the"
        " gradient of all given to the first (V1, S3)",
        {"B": 3, "T": 5, **_HEADS, "state": "equal"},
        about=("B", "state"),
    ),
    "new-beside-resumed": Coincidence(
        "a pack whose first and last sequence start from 0, those between do not: whether there is"
        " a state is read off one of them (V1, S3)",
        {"lengths": (5, 4, 7), **_HEADS, "state": "every-other"},
        about=("lengths", "state"),
    ),
    "past-256-sequences": _pack(
        "more sequences than a byte counts, few of them with a token", _SPARSE, H=1, HV=1, K=8, V=4
    ),
}
"""By name: the five ways to pair six sizes of a batch, all of them equal; few tokens, by which
kernels know a step of decoding; then packs. Beside them
N = V, N = H = K, and N = T = HV."""
