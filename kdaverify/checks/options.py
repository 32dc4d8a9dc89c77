"""Options: what a kernel may be asked to do otherwise must not change what it computes."""

from __future__ import annotations

from kdaverify.adapters.base import Adapter
from kdaverify.checks.forward import forward
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.problems import Problem


def options(adapter: Adapter, problem: Problem, *, variant: str) -> list[Outcome]:
    """Runs the problem once under one of the adapter's variants and judges every exposed output.

    Args:
        variant: a name of `adapter.variants()`.
    """
    variants = adapter.variants()
    if variant not in variants:
        raise ValueError(f"options: {adapter.name} has no variant {variant!r}; it has {', '.join(variants) or 'none'}")
    other = variants[variant]
    reason = other.supports(problem)
    return skipped(reason) if reason else forward(other, problem)
