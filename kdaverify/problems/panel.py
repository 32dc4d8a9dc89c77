"""The fixed panel: named problems of every run, each for the faults it is known to show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from kdaverify.problems.axes import DTYPES
from kdaverify.problems.coincidences import COINCIDENT
from kdaverify.problems.packs import ALL_EMPTY, CONSECUTIVE_EMPTY, EMPTY_ENDS, MANY
from kdaverify.problems.problem import Problem
from kdaverify.problems.profiles import check_profile, rank


@dataclass(frozen=True)
class NamedProblem:
    """A problem with a name and a reason.

    Args:
        name: unique in the panel.
        why: what it shows, with ids of the fault catalogue.
        problem: in one of `dtypes`.
        profile: the smallest profile that tests it; the larger ones test it too.
        dtypes: types it is tested in.
        one_format: the profiles that test it in one format, as it is about sizes alone: smoke, and
            acceptance of a kernel that is compiled for sizes, where most others are too. A shape
            that no other problem has took FLA's kernels 20 s a format on an H200, a shared one 1 s.
        about: sizes without which it shows nothing: left out where a kernel takes others alone.
    """

    name: str
    why: str
    problem: Problem
    profile: str = "smoke"
    dtypes: tuple[str, ...] = DTYPES
    one_format: tuple[str, ...] = ()
    about: tuple[str, ...] = ()


_ONCE: Final = ("smoke", "acceptance")
_OF_SIZES: Final = ("acceptance",)
_NARROW: Final = ("bf16", "fp16")
_WIDE_RANGE: Final = tuple(dtype for dtype in DTYPES if dtype != "fp16")
_PLAIN: dict[str, Any] = {
    "B": 1, "T": 65, "H": 2, "HV": 2, "K": 32, "V": 32, "dtype": "bf16", "seed": 0,
    "gate": "log-sigmoid", "key": "random", "beta": "uniform", "state": "random", "value": "normal",
}  # fmt: skip


def _named(
    name: str,
    why: str,
    *,
    profile: str = "smoke",
    dtypes: tuple[str, ...] = DTYPES,
    padding: int = 0,
    one_format: tuple[str, ...] = (),
    about: tuple[str, ...] = (),
    **fields: Any,
) -> NamedProblem:
    if "lengths" in fields:
        fields["T"] = sum(fields["lengths"]) + padding
    problem = Problem(**{**_PLAIN, **fields})
    return NamedProblem(name, why, problem, profile, dtypes, one_format, about)


_SMOKE = (
    _named("asymmetric-state", "a state stored, read or masked transposed (O1, S8, H16, SO5, O4)",
           T=40, K=32, V=48, gate="mild", state="asymmetric"),
    _named("square-state", "the same where K = V lets a wrong shape pass (O1, S8)",
           T=20, gate="mild", state="asymmetric", key="one-hot"),
    _named("short-tail",
           "a last chunk of 7 tokens: gate of its last row, rows rounded to 16 (H6, H8, H10, A5)",
           T=71, K=24, V=16, gate="mild"),
    _named("one-token", "a sequence of one token, as decode gives (S5, P6, H10)",
           T=1, K=48, V=32, one_format=_OF_SIZES),
    _named("chunk-plus-one", "one token past a full chunk: one row of carry (H10, O2, B17)",
           B=2, T=65, H=1, HV=1, gate="slow", state="absent"),
    _named("three-chunks",
           "three full chunks and a tail, no initial state: the carry shows in o (H1, H2, O1)",
           T=209, H=1, HV=2, K=32, V=32, gate="slow", state="absent"),
    _named("pack-with-empties",
           "empty sequences first, inside and last, tails of every kind (V1, V3, V4, V10, H4, WU2)",
           lengths=EMPTY_ENDS, H=1, HV=2, K=16, V=24),
    _named("grouped-heads",
           "three value heads for each key head, data different in each (B30, A4, H23, C1)",
           T=50, H=2, HV=6, K=24, V=16, one_format=_OF_SIZES),
    _named("many-heads",
           "more batch entries, key heads and value heads a group than random cases have: indices "
           "cut to two bits (A4, B30)",
           B=3, T=6, H=5, HV=20, K=8, V=8, one_format=_OF_SIZES),
    _named("identical-keys", "the worst triangular system with beta 1 and slow gates (SO1, SO6)",
           key="identical", beta="one", gate="slow"),
    _named("coherent-keys", "coherent keys over a tail (SO1, SO4)",
           T=80, H=1, HV=1, key="coherent-0.9", beta="near-one", gate="slow"),
    _named("mixed-gates",
           "channels at 0, slow, -5, -100, -1e4 and -inf in one tensor (GA15, GA17, GA18, GA22, "
           "H2)",
           T=70, V=16, gate="mixed"),
    _named("strong-pack", "strong gates across a boundary inside a tile (GA20, GA18, V10)",
           lengths=(40, 50), H=1, HV=2, K=32, V=16, gate="bound-20"),
    _named("overwrite",
           "one-hot keys, beta 1, no decay, powers of two: exact, every write replaces a row (O5, "
           "O2, H16)",
           T=40, K=16, V=24, key="one-hot", beta="one", gate="zero", value="powers-of-two"),
    _named("pure-decay", "beta 0 with a large state: only decay acts (H2, S10, P8)",
           T=67, V=16, beta="zero", state="large", gate="half-zero"),
    _named("long-memory",
           "one write, then 208 tokens of slow decay: bias of decay or state rounding (H11, H12, "
           "S12, C2)",
           T=209, H=1, HV=1, K=32, V=16, beta="sparse", gate="slow", state="absent"),
    _named("padded-pack", "tokens past the last offset (V13, O10, B12, P8)",
           lengths=(20, 0, 45), padding=17, H=1, HV=2, K=16, V=16),
    _named("beyond-fp16", "values and outputs of a million, which bf16 and fp32 hold (O6)",
           dtypes=_WIDE_RANGE, T=70, H=1, K=16, V=16, gate="mild", value="beyond-fp16"),
    _named("state-beyond-fp16",
           "states of 65,536 and more beside inputs of fp16, whose outputs fit (O6, S12)",
           dtypes=("fp16",), T=70, H=1, HV=1, K=16, V=8, gate="slow", key="tiny",
           state="beyond-fp16"),
    _named("two-key-tiles",
           "the widest keys that kernels take, and values past 128: a second tile of both (A4, "
           "A10)",
           T=20, H=1, HV=1, K=256, V=136, one_format=_OF_SIZES),
    _named("two-value-tiles", "a pack with the widest values, and keys past 128 (A4, WU9)",
           lengths=(9, 0, 8), H=1, HV=1, K=136, V=256, gate="mild", one_format=_OF_SIZES),
    _named("past-2048-tokens",
           "a sequence of more than 2,048 tokens of a narrow head, its gradients too: states kept "
           "for the backward in a ring of 64 chunks of 32 tokens, or 32 of 64 (H22)",
           dtypes=_NARROW, lengths=(61, 0, 2055), H=1, HV=1, K=8, V=4, gate="slow"),
    _named("vanishing-gates",
           "decays that their product alone shows: gates next to 0 left out (GA15)",
           T=65, H=1, HV=1, K=16, V=8, gate="vanishing", beta="sparse"),
    _named("small-writes", "a system near the identity, whose inverse is cut short (SO1)",
           T=65, H=1, HV=1, K=16, V=8, gate="vanishing", key="identical", beta="small"),
    _named("tiny-writes", "dbeta where beta is tiny: divided by it, or a threshold (B2)",
           T=20, H=1, HV=2, K=16, V=8, gate="mild", beta="tiny"),
    *(_named(name, why, one_format=_ONCE, about=about, **fields)
      for name, (why, fields, about) in COINCIDENT.items()),
    _named("past-512-values",
           "values past 512 columns, as heads of 256 expanded twice have, and a state: a second "
           "grid of them, a fourth tile in the backward (A4, WU9)",
           one_format=_ONCE, about=("V",), T=3, H=1, HV=1, K=8, V=520),
    _named("wide-group", "33 value heads of one key head, more than a program keeps (B30, A4)",
           one_format=_ONCE, about=("H", "HV"), T=3, H=1, HV=33, K=8, V=8),
    _named("long-keys", "keys of norm 16, whose products are no cosines (GA10, SO1)",
           T=20, H=1, HV=1, K=16, V=8, key="long", beta="small", gate="slow"),
)  # fmt: skip


def _model(heads: int, why: str, dtypes: tuple[str, ...] = DTYPES, T: int = 80) -> NamedProblem:
    one_format = _OF_SIZES if heads > 32 else ()
    return _named(f"model-{heads}-heads", why, profile="acceptance", dtypes=dtypes,
                  one_format=one_format, T=T, H=heads, HV=heads, K=128, V=128)  # fmt: skip


_ACCEPTANCE = (
    _named("model-head",
           "a real model's widths, inexpensive enough for gradients in every format (L8, B22)",
           profile="acceptance", T=40, H=1, HV=1, K=128, V=128),
    _model(16, "a real model's heads at K = V = 128, one chunk and a tail (H22, H23, L8, B22)"),
    *(
        _model(heads, "as many heads as larger models have, in less than a chunk (H22, H23, L8)",
               _NARROW, T=24)
        for heads in (32, 64, 96)
    ),
    _named("model-pack", "a pack at K = V = 128 with every tail (V1, A4, SO4, H27)",
           profile="acceptance", lengths=EMPTY_ENDS, H=1, HV=1, K=128, V=128, gate="mixed"),
    _named("model-coherent", "coherent keys over full chunks at K = V = 128 (SO1, H21)",
           profile="acceptance", T=209, H=2, HV=2, K=128, V=128, key="coherent-0.9", beta="one",
           gate="slow"),
    _named("4096-tokens", "64 chunks: drift of the carry (H11, H12, GA10, C2)",
           profile="acceptance", T=4096, H=1, HV=1, gate="slow"),
    _named("4096-tokens-one-write", "one write remembered for 64 chunks (H11, H12, S12)",
           profile="acceptance", T=4096, H=1, HV=1, K=32, V=16, beta="sparse", gate="slow",
           state="absent"),
    _named("past-4096-tokens", "the same past 64 chunks of 64 tokens, unpacked (H22)",
           profile="acceptance", dtypes=_NARROW, T=4190, H=1, HV=1, K=8, V=4, gate="slow"),
    _named("many-sequences",
           "129 sequences of 16, 32 and 64 tokens: more than cores, padded chunks past T (WU2, "
           "L4, H25)",
           profile="acceptance", lengths=MANY, H=1, HV=1, K=16, V=16),
    _named("consecutive-empties", "runs of empty sequences (V3, V4, V7)",
           profile="acceptance", lengths=CONSECUTIVE_EMPTY, H=1, HV=2, K=16, V=16),
    _named("all-empty", "no token at all: final states are the initial ones (V6, V4)",
           profile="acceptance", lengths=ALL_EMPTY, H=1, HV=2, K=16, V=24, state="asymmetric"),
    _named("odd-widths", "widths that are no power of two, V above one tile (A10, L8, SO5)",
           profile="acceptance", one_format=_OF_SIZES, T=79, H=1, HV=2, K=100, V=160,
           gate="spread"),
    _named("wide-key",
           "K and V above 128, where a second tile begins, and no power of two (A4, A10)",
           profile="acceptance", T=24, H=1, HV=1, K=192, V=160, one_format=_OF_SIZES),
    _named("one-wide-group", "eight value heads on one key head (B30, A4)",
           profile="acceptance", T=65, H=1, HV=8, one_format=_OF_SIZES),
    _named("reset-in-tail", "a hard reset inside a short tail (GA22, H8)",
           profile="acceptance", T=73, gate="one-token-hard-reset"),
    _named("strong-then-weak",
           "anchors taken where decay is strong, used where it is weak (GA18, CS5, B8)",
           profile="acceptance", T=130, H=1, HV=2, gate="strong-then-weak"),
    _named("tiny-keys", "keys of norm 1e-4 beside a state of ordinary size (P1, P2, B34)",
           profile="acceptance", T=66, key="tiny"),
)  # fmt: skip

_NIGHTLY = (
    _named("16384-tokens", "256 chunks: drift of the carry (H12, GA10)",
           profile="nightly", dtypes=_NARROW, T=16384, H=1, HV=2, K=64, V=64, gate="slow"),
    _named("wide-state", "widths above one tile in both directions (WU9, A4)",
           profile="nightly", T=130, H=1, HV=1, K=256, V=256),
)  # fmt: skip

PANEL = (*_SMOKE, *_ACCEPTANCE, *_NIGHTLY)

_REAL: dict[str, Any] = {
    "profile": "acceptance", "dtypes": _NARROW, "K": 128, "V": 128, "one_format": _OF_SIZES,
}  # fmt: skip
_REAL_SLOW: dict[str, Any] = {**_REAL, "dtypes": ("bf16",)}
"""Where rounding adds up, float64 is not accurate enough for fp16's tolerances: balls took more
than six minutes for 16,384 tokens, and would have for gradients of coherent keys three hours."""

REAL_SIZES = (
    _named("real-heads-below-a-route",
           "32 heads over 127 chunks: the last size that an Ascend operator runs fused (H22, L8)",
           **_REAL, T=8128, H=32, HV=32),
    _named("real-heads-on-a-route",
           "32 heads over 128 chunks: the first size that it runs as three kernels (H22, L8)",
           **_REAL, T=8192, H=32, HV=32),
    _named("real-16384-tokens",
           "256 chunks of slow decay: drift of the carry at full width (H12, GA10)",
           **_REAL_SLOW, T=16384, H=8, HV=8, gate="slow"),
    _named("real-pack", "a pack of uneven sequences, some empty, some of one token (V1, V3, A4)",
           **_REAL, lengths=(4096, 1, 0, 2500, 63, 1, 1472, 0), H=16, HV=16),
    _named("real-groups", "four value heads on every key head (B30, A4)",
           **_REAL, T=2048, H=8, HV=32),
    _named("real-coherent", "coherent keys over 32 full chunks (SO1, H21)",
           **_REAL_SLOW, T=2048, H=8, HV=8, key="coherent-0.9", beta="near-one", gate="slow"),
)  # fmt: skip
"""Sizes of real models, for kernels on an accelerator: the interpreted ones would take hours."""


def panel(dtype: str, profile: str, *, real_sizes: bool = False) -> tuple[NamedProblem, ...]:
    """The named problems that a profile tests in one dtype.

    Args:
        real_sizes: with those of real models, from the acceptance profile on.
    Raises:
        ValueError: no such dtype or profile.
    """
    check_profile(profile)
    if dtype not in DTYPES:
        raise ValueError(f"dtype: no dtype named {dtype!r}; known ones are {', '.join(DTYPES)}")
    known = (*PANEL, *REAL_SIZES) if real_sizes else PANEL
    tested = [
        entry for entry in known if rank(entry.profile) <= rank(profile) and dtype in entry.dtypes
    ]
    return tuple(replace(entry, problem=entry.problem.replace(dtype=dtype)) for entry in tested)
