"""Fixed problems of the gated RMSNorm about axes' sizes: equal ones, multiples of widths."""

from __future__ import annotations

from typing import Any, Final

SIGMOID: Final[dict[str, Any]] = {"activation": "sigmoid"}
EQUAL: Final[dict[str, dict[str, Any]]] = {
    "equal-all": {"B": 4, "T": 4, "H": 4, "V": 4},
    "equal-batch-tokens": {"B": 3, "T": 3, "H": 5, "V": 5, **SIGMOID},
    "equal-batch-heads": {"B": 3, "T": 5, "H": 3, "V": 5},
    "equal-batch-columns": {"B": 5, "T": 3, "H": 3, "V": 5, **SIGMOID},
    "equal-three-axes": {"B": 2, "T": 3, "H": 6, "V": 6, "rank": 3},
    "equal-rows-heads": {"B": 2, "T": 3, "H": 6, "V": 4, "rank": 3},
    "equal-rows-columns": {"B": 2, "T": 3, "H": 4, "V": 6, "rank": 3, **SIGMOID},
    "equal-heads-columns": {"B": 2, "T": 3, "H": 4, "V": 4, "rank": 3},
    "square": {"T": 16, "V": 16, "rank": 2},
    "square-of-three-axes": {"T": 6, "H": 2, "V": 12, "rank": 3, **SIGMOID},
    "square-of-four-axes": {"B": 2, "T": 4, "H": 3, "V": 24},
    "square-tile": {"B": 2, "T": 16, "H": 4, "V": 128, "rank": 2},
}
"""All axes of a function that can have one size have it, then each pair of them beside other sizes:
code that recognises an axis by its size errs there, and where all are equal one error may undo
another. A mean without its axis is broadcast along columns of a square."""
MULTIPLES: Final[dict[str, dict[str, Any]]] = {
    "four-squares": {"T": 128, "V": 32, "rank": 2},
    "squares-of-three-axes": {"B": 2, "T": 32, "H": 3, "V": 12, "rank": 3, **SIGMOID},
    "sixteen-squares": {"B": 2, "T": 32, "H": 4, "V": 16},
    "a-square-and-a-row": {"T": 129, "V": 43, "rank": 2},
}
"""Rows that are a multiple of the width, more than a tile of them: a row of means then fits a tile
of V rows along either axis. A port that broadcast it along columns was accepted."""
ROWS: Final = 4100
"""More than a grid has programs: kernels take several short rows in a block."""
NARROW: Final[dict[str, dict[str, Any]]] = {
    "many-rows-of-7": {"T": ROWS, "V": 7, "rank": 2},
    "many-rows-of-12": {"T": ROWS, "V": 12, "rank": 2, **SIGMOID},
    "many-rows-of-16": {"B": 2, "T": ROWS // 4, "H": 2, "V": 16},
    "many-rows-of-32": {"T": ROWS // 4, "H": 4, "V": 32, "rank": 3},
}
"""Thousands of rows of few columns: a block of several rows has as many rows as columns at one of
these widths. A port that broadcast means along the columns of blocks of 16 by 16, from 1,024 rows
on, was accepted."""
