"""The framework of a decorated function: how it becomes a function of torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kdaverify.adapters.base import Channel, absent, all_behind, versions
from kdaverify.adapters.jax_function import JaxFunction


@dataclass(frozen=True)
class Framework:
    """One framework.

    Args:
        adapt: turns a function of its arrays into one of torch tensors, with the same signature.
        missing: why nothing of it can run here, or None.
        environment: what decides the result beside torch's version.
        barriers: of its kernels, as `Adapter` has them.
        compiled: whether it compiles a function for every shape and format.
    """

    adapt: Callable[[Callable[..., Any]], Callable[..., Any]]
    missing: Callable[[], str | None]
    environment: Callable[[], Mapping[str, str]]
    barriers: Mapping[Channel, str] = field(default_factory=dict[Channel, str])
    compiled: bool = False


def _jax_environment() -> dict[str, str]:
    import jax

    return {**versions("jax", "jaxlib"), "device": jax.default_backend()}


FRAMEWORKS: Final[Mapping[str, Framework]] = {
    "torch": Framework(lambda function: function, lambda: None, dict),
    "jax": Framework(
        JaxFunction,
        lambda: absent(("jax", "ml_dtypes"), "pip install jax"),
        _jax_environment,
        all_behind("torch tensors are copied to JAX arrays and back"),
        compiled=True,
    ),
}


def framework_of(function: Callable[..., Any]) -> Framework:
    """That of an adapted function."""
    return FRAMEWORKS["jax" if isinstance(function, JaxFunction) else "torch"]
