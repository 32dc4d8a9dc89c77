"""The options of `kdaverify export` that declare a delta-rule kernel, as @kdaverify.kernel."""

from __future__ import annotations

from inspect import Parameter
from typing import Annotated, Any, Final

import typer

SCALE: Final = (
    "argument: passed to the kernel; fixed: the kernel uses K^-1/2; folded: q is multiplied before"
    " the call"
)
PADDING: Final = "what rows past the last offset of a pack hold: zero or undefined"
FEW: Final = "where it takes but a few; repeatable"


def _option(
    name: str, taken: Any, default: Any, about: str, *, flag: str = "", least: int | None = None
) -> Parameter:
    flags = (f"--{flag}",) if flag else ()
    # A narrow column of types: beside a wide one, 80 columns clip --no-grouped-heads.
    metavar = None if least is None else "N"
    described = typer.Option(*flags, help=about, min=least, metavar=metavar)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[taken, described]
    )


def _word(name: str, default: str, about: str) -> Parameter:
    return _option(name, str, default, about)


def _answer(name: str, about: str, *, default: bool = True) -> Parameter:
    return _option(name, bool, default, about)


def _range(name: str, about: str) -> Parameter:
    return _option(name, str | None, None, f"lowest and highest {about}")


def _sizes(name: str, flag: str, about: str) -> Parameter:
    return _option(name, list[int] | None, None, f"value of {about}, {FEW}", flag=flag, least=1)


def _size(name: str, about: str) -> Parameter:
    return _option(name, int | None, None, about, least=1)


OPTIONS: Final = (
    _word("layout", "bthd", "axes of q, k, v, g, beta and o: bthd, bhtd or thd"),
    _word("state", "kv", "axes of states: kv or vk"),
    _word("gate", "log", "what g is: log, log2, decay, softplus or bounded"),
    _word("gate_format", "fp32", "format of an activated gate: fp32, or inputs for that of q"),
    _word(
        "gate_parameters",
        "none",
        "parameters of an activated gate, passed by name: A_log+dt_bias, ...",
    ),
    _word("qk", "given", "rows of q and k: given, l2norm or l2norm-stored"),
    _option("norm_eps", float, 1e-6, "epsilon of a normalisation"),
    _option("lower_bound", float, -5.0, "lowest log decay of a bounded gate"),
    _word("gates", "channel", "gates of a token: channel, head (g [B, T, HV]) or none (no g)"),
    _word("heads", "interleaved", "grouping of value heads: interleaved or tiled"),
    _word("beta", "value", "what beta is: value or logit"),
    _word("packing", "none", "how packs are passed: cu_seqlens, segment_ids or none"),
    _word("scale", "argument", SCALE),
    _word("padding", "zero", PADDING),
    _answer("initial_state", "whether the kernel takes an initial state"),
    _answer("final_state", "whether the kernel returns the final state"),
    _sizes("widths", "width", "K and V"),
    _answer("square", "whether the kernel takes K = V alone", default=False),
    _answer("grouped_heads", "whether the kernel takes more value heads than key heads"),
    _sizes("head_ratios", "head-ratio", "HV / H"),
    _range("gate_range", "log decay that the kernel takes, such as -5..0"),
    _range("beta_range", "write strength that the kernel takes, such as 0..1"),
    _size("length_multiple", "number that divides every sequence length"),
    _size("longest", "most tokens of a sequence"),
)
"""Named as the fields of a declaration."""
