"""What a call of flash-linear-attention may do otherwise without changing its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.checked_options import checked

ALLOWED: Final = {
    "chunk_size": ("32", "64"),
    "safe_gate": ("no", "yes"),
    "gate": ("log", "softplus", "bounded"),
    "beta": ("value", "sigmoid", "doubled"),
    "l2norm": ("no", "yes"),
    "state": ("kv", "vk"),
    "recompute": ("yes", "no"),
}
CHUNK_ONLY: Final = ("chunk_size", "safe_gate", "recompute")


@dataclass(frozen=True)
class FlaOptions:
    """The arguments of chunk_kda and fused_recurrent_kda that change the way, not the result.

    Args:
        chunk_size: 32 or 64 tokens.
        safe_gate: yes: diagonal blocks on matrix units, for gates in [-5, 0].
        gate: log; softplus or bounded: activated in the kernel, from a raw gate.
        beta: value; sigmoid: of logits, in the kernel; doubled: twice that (allow_neg_eigval).
        l2norm: yes: q and k normalised in the kernel.
        state: kv or vk.
        recompute: no: intermediates are saved for the backward.
        autotune: which configuration every kernel takes; -1 is the last. None: on a device the one
            its own tuner finds best, under the interpreter the last.
        tf32: yes: the interpreter rounds fp32 operands of products to TF32, as matrix units do.
    """

    chunk_size: str = "64"
    safe_gate: str = "no"
    gate: str = "log"
    beta: str = "value"
    l2norm: str = "no"
    state: str = "kv"
    recompute: str = "yes"
    autotune: int | None = None
    tf32: str = "no"

    def changed(self, name: str, form: str, options: Mapping[str, str]) -> FlaOptions:
        """These options with those of the command line.

        Args:
            name: of the implementation, for errors.
            form: chunk or recurrent.
            options: as given.
        Raises:
            AdapterError: no such option for the form, or no such value.
        """
        allowed = ALLOWED | {"tf32": ("no", "yes")}
        known = {
            field.name: allowed.get(field.name)
            for field in fields(self)
            if form == "chunk" or field.name not in CHUNK_ONLY
        }
        changes: dict[str, Any] = dict(checked(name, options, known))
        if "autotune" in changes:
            changes["autotune"] = _whole(name, changes["autotune"])
        return replace(self, **changes)

    def said(self) -> str:
        """The options that differ from the default, as on the command line."""
        default = FlaOptions()
        differing = (
            field.name
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        )
        return ",".join(f"{name}={getattr(self, name)}" for name in differing)


def _whole(name: str, value: str) -> int:
    if not value.removeprefix("-").isdecimal():
        raise AdapterError(
            f"{name}: autotune: wanted a whole number, the place of the configuration in its list,"
            f" got {value!r}"
        )
    return int(value)


VARIANTS: Final = {
    "chunk-32": {"chunk_size": "32"},
    "safe-gate": {"safe_gate": "yes"},
    "softplus-in-kernel": {"gate": "softplus"},
    "bounded-gate-in-kernel": {"gate": "bounded", "safe_gate": "yes"},
    "sigmoid-in-kernel": {"beta": "sigmoid"},
    "doubled-sigmoid-in-kernel": {"beta": "doubled"},
    "l2norm-in-kernel": {"l2norm": "yes"},
    "value-first-state": {"state": "vk"},
    "saved-intermediates": {"recompute": "no"},
}
"""Every option driven away from its default, by name."""


def variants_of(form: str) -> dict[str, dict[str, str]]:
    """The variants of a form; the recurrence has no chunks, and so no options of theirs."""
    if form == "chunk":
        return VARIANTS
    own = {
        name: {k: v for k, v in options.items() if k not in CHUNK_ONLY}
        for name, options in VARIANTS.items()
    }
    return {name: options for name, options in own.items() if options}
