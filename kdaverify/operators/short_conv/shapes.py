"""Fixed problems of the short convolution about the sizes of its axes alone: equal ones, short
sequences in large batches, and more than four taps.
"""

from __future__ import annotations

from typing import Any, Final

STATEFUL: Final[dict[str, Any]] = {"state": "random", "bias": True}
SINGLES: Final = (1,) * 7
MANY: Final = (1, 2, 3, 0) * 11
"""Sequences that are all shorter than W."""
EQUAL: Final[dict[str, dict[str, Any]]] = {
    "equal-all": {"B": 4, "T": 4, "D": 4, "W": 4, **STATEFUL},
    "equal-batch-tokens": {"B": 7, "T": 7, "D": 4, **STATEFUL},
    "equal-batch-channels": {"B": 7, "T": 4, "D": 7, **STATEFUL},
    "equal-batch-taps": {"B": 4, "T": 7, "D": 7, **STATEFUL},
    "equal-batch-columns": {"B": 3, "T": 5, "D": 15, **STATEFUL},
    "equal-channels-columns": {"lengths": (4, 0, 2, 1, 5, 1), "T": 13, "D": 3, **STATEFUL},
    "equal-in-a-pack": {"lengths": (1,) * 4, "T": 4, "D": 4, **STATEFUL},
    "equal-sequences-tokens": {"lengths": SINGLES, "T": 7, "D": 4, **STATEFUL},
    "equal-with-empty-ones": {"lengths": (2, 0, 3, 1, 0, 0), "T": 6, "D": 5},
    "equal-sequences-channels": {
        "lengths": (1, 0, 2, 0, 1, 0, 0),
        "T": 4,
        "D": 7,
        "activation": "none",
        **STATEFUL,
    },
    "equal-sequences-taps": {"lengths": (2, 0, 3, 2), "T": 7, "D": 7, **STATEFUL},
    "equal-offsets-tokens": {"lengths": (1, 1, 2, 0, 2, 1), "T": 7, "D": 4, **STATEFUL},
    "equal-offsets-channels": {"lengths": (1, 0, 1, 0, 1, 0), "T": 3, "D": 7, "state": "random"},
    "equal-offsets-columns": {"lengths": (5, 2), "T": 9, "D": 6, "bias": True},
    "equal-offsets-taps": {"lengths": (5, 1, 2), "T": 8, "D": 3, **STATEFUL},
}
"""All axes that can have one size have it, then each pair of them beside other sizes: code that
recognises an axis by its size errs there, and where all are equal one error may undo another. A
port that left the activation out where a pack had as many sequences as tokens was accepted. N is
the number of sequences; a pack has N + 1 offsets; a state has W - 1 columns that are read."""
SHORT: Final[dict[str, dict[str, Any]]] = {
    "many-of-one-token": {"B": 130, "T": 1, "D": 3, **STATEFUL},
    "many-below-history": {"B": 33, "T": 2, "D": 5, **STATEFUL},
    "many-of-history": {"B": 9, "T": 3, "D": 6, "bias": True},
    "many-in-a-pack": {"lengths": MANY, "T": sum(MANY), "D": 2, **STATEFUL},
}
"""Gradients of weight and bias sum over many sequences shorter than W, for which a backward has a
path of its own. A port that summed four batch entries there was accepted: no problem had more
entries than two."""
USUAL_TAPS: Final = 4
"""The most that kernels are made for, as causal-conv1d is for 2 to 4."""
TAPS: Final[dict[str, dict[str, Any]]] = {
    "five-taps": {"B": 2, "T": 70, "D": 6, "W": 5, **STATEFUL},
    "six-taps": {"lengths": (1, 0, 9, 3, 5), "T": 18, "D": 5, "W": 6, **STATEFUL},
    "seven-taps": {"B": 2, "T": 4, "D": 9, "W": 7, "activation": "none", **STATEFUL},
    "eight-taps": {"T": 64, "D": 16, "W": 8},
}
"""Kernels are made for up to four taps, and take more of them in a loop: a port that left the taps
beyond a multiple of four out was accepted."""
LONG_TAPS: Final[dict[str, dict[str, Any]]] = {
    "thirteen-taps": {"B": 2, "T": 20, "D": 5, "W": 13, **STATEFUL},
}
"""Taps by groups of eight: a port was accepted that read the last eight columns of a state where W
is larger."""
MOST_TAPS: Final = max(problem["W"] for problem in TAPS.values())
