"""What can be chosen about interpreted kernels, and what is remembered of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Settings:
    """Choices that hold from the next launch on.

    Args:
        autotune: which of a kernel's configurations runs, counted round and from the end if
            negative.
        tf32: whether one-pass TF32 products round their fp32 operands.
    """

    autotune: int = 0
    tf32: bool = False


@dataclass
class Launches:
    """What was launched.

    Args:
        kernels: qualified names, in order of the first launch since the last forgetting.
        configurations: the configurations every autotuned kernel offered at its last launch, by
            qualified name.
        chosen: the one it ran with.
    """

    kernels: dict[str, None] = field(default_factory=dict[str, None])
    configurations: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    chosen: dict[str, str] = field(default_factory=dict[str, str])


def qualified(function: object) -> str:
    """Module and name of a Python function: how kernels are known here."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
