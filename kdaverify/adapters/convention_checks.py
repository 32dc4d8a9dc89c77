"""Which conventions exist, what a signature says of them, and which contradict each other."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from torch import Tensor

from oracles.gate_activation import (
    FORMS,
    LOWER_BOUND,
    PARAMETERS,
)
from oracles.row_norm import EPSILON, GIVEN

if TYPE_CHECKING:
    from kdaverify.adapters.conventions import Conventions


ALLOWED: Final = {
    "layout": ("bthd", "bhtd", "thd"),
    "state": ("kv", "vk"),
    "gate": ("log", "log2", "decay", "softplus", "bounded"),
    "gates": ("channel", "head", "none"),
    "heads": ("interleaved", "tiled"),
    "beta": ("value", "logit"),
    "packing": ("cu_seqlens", "segment_ids", "none"),
    "scale": ("argument", "fixed", "folded"),
    "padding": ("zero", "undefined"),
    "qk": ("given", "l2norm", "l2norm-stored"),
    "gate_format": ("fp32", "inputs"),
    "gate_parameters": ("A_log+dt_bias", "A_log", "dt_bias", "none"),
}


def packing_of(keywords: Collection[str]) -> str:
    """How a function without declared packing takes packs: by offsets or ids in its signature.

    A port that names offsets and was never given any lost the states of empty sequences unseen.
    """
    return next((value for value in ALLOWED["packing"] if value in keywords), "none")


def parameters_of(keywords: Collection[str]) -> str:
    """Those parameters of a gate that a signature names, as `gate_parameters` has them."""
    return "+".join(name for name in PARAMETERS if name in keywords) or "none"


class ConventionError(ValueError):
    """A convention that does not exist, contradicts another, or cannot express a value."""


def check_conventions(given: Conventions) -> None:
    """Refuses conventions that do not exist, or that contradict each other.

    Raises:
        ConventionError: naming the convention, what was wanted and what came.
    """
    for name, allowed in ALLOWED.items():
        value = getattr(given, name)
        if value not in allowed:
            raise ConventionError(f"{name}: wanted one of {', '.join(allowed)}, got {value!r}")
    _check_gate(given)
    _check_norm(given)
    if given.layout == "thd" and given.packing != "cu_seqlens":
        raise ConventionError(
            "packing: layout thd has no batch axis, so it needs packing='cu_seqlens', got"
            f" {given.packing!r}"
        )


def _check_gate(given: Conventions) -> None:
    if given.gate in FORMS and given.gates == "none":
        raise ConventionError(f"gate: {given.gate!r} activates a gate, but gates='none'")
    if given.gate_format != "fp32" and given.gate not in FORMS:
        raise ConventionError(
            "gate_format: is of a gate that the kernel activates, gate='softplus' or 'bounded';"
            f" got gate={given.gate!r}"
        )
    try:
        _ = given.activation
    except ValueError as error:
        raise ConventionError(str(error)) from None
    if given.lower_bound != LOWER_BOUND and given.gate != "bounded":
        raise ConventionError(
            f"lower_bound: is of gate='bounded' alone, got {given.lower_bound} beside"
            f" gate={given.gate!r}"
        )


def _check_norm(given: Conventions) -> None:
    try:
        _ = given.norm
    except ValueError as error:
        raise ConventionError(str(error)) from None
    if given.qk != GIVEN and given.scale == "folded":
        raise ConventionError(
            f"scale: 'folded' multiplies q, which qk={given.qk!r} normalises again; say argument"
            " or fixed"
        )
    if given.norm_eps != EPSILON and given.qk == GIVEN:
        raise ConventionError(
            f"norm_eps: is of qk='l2norm' alone, got {given.norm_eps} beside qk='given'"
        )


def check_value(name: str, tensor: Tensor) -> Tensor:
    """The tensor, whose values the conventions can express.

    Raises:
        ConventionError: a beta above 1 as a logit.
    """
    if name == "beta" and bool((tensor > 1).any()):
        raise ConventionError(
            f"beta: a logit expresses values in [0, 1], got {tensor.max().item()}; such problems"
            " are not supported"
        )
    return tensor
