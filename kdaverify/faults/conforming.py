"""Right kernels in any conventions: a token loop and a chunk form, by autograd.

Each computes from the tensors as they are declared (a decay multiplies the state, a logit goes
through the kernel's own sigmoid), in fp32 for fp32, bf16 and fp16 inputs and in fp64 for fp64, and
conforms to the contract that it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.kernel_adapter import KernelAdapter
from kdaverify.faults.conforming_call import (
    CHUNK,
    Activate,
    ConformingCall,
    activated,
    chunk_form,
    normalised,
    token_loop,
)
from kdaverify.problems import Problem
from kdaverify.problems.covering_array import covering_array
from oracles.gate_activation import FORMS as ACTIVATED
from oracles.gate_activation import PARAMETERS
from oracles.row_norm import GIVEN

JOINT: Final = "__"
AXES: Final[dict[str, tuple[str, ...]]] = {
    "form": ("token", "chunk"),
    "layout": ("bthd", "bhtd", "thd"),
    "state": ("kv", "vk"),
    "gate": ("log", "log2", "decay", "softplus", "bounded"),
    "beta": ("value", "logit"),
    "packing": ("cu_seqlens", "segment_ids", "none"),
    "scale": ("argument", "fixed", "folded"),
    "padding": ("zero", "undefined"),
    "dtype": ("fp32", "bf16", "fp16"),
}
"""What conventions combine; thd goes with cu_seqlens alone, and segment_ids always leave padding
undefined."""


def conforming(
    form: str = "token",
    *,
    layout: str = "bthd",
    state: str = "kv",
    gate: str = "log",
    beta: str = "value",
    packing: str = "none",
    scale: str = "argument",
    padding: str = "zero",
    dtype: str = "fp32",
    gates: str = "channel",
    heads: str = "interleaved",
    declared: dict[str, Any] | None = None,
    takes: Callable[..., bool] | None = None,
    activate: Activate | None = None,
    qk: str = GIVEN,
    normalise: Callable[[Tensor], Tensor] | None = None,
) -> KernelAdapter:
    """A conforming kernel.

    Args:
        form: "token" (recurrent-fp32) or "chunk" (chunk64-fp32).
        gates, heads: as `Conventions` has them.
        declared: what the adapter declares beside the truth, or in its place.
        takes: (q, k, v, g, beta, keywords) -> whether the kernel takes such a call or raises.
        activate: what a kernel that is wrong makes its log gates by; see `activated`.
        qk: as `Conventions` has it.
        normalise: what a kernel that is wrong normalises the rows of q and k by.
    """
    run = ConformingCall(
        arithmetic=token_loop if form == "token" else chunk_form,
        layout=layout, state=state, gate=gate, beta=beta, scale=scale, padding=padding, gates=gates,
        heads=heads, takes=takes, qk=qk,
        activate=activate or activated, normalise=normalise or normalised,
    )  # fmt: skip
    function = _with_signature(run, packing, scale, gates, gate)
    options: dict[str, Any] = {
        "layout": layout, "state": state, "gate": gate, "beta": beta, "packing": packing,
        "scale": scale, "padding": padding, "dtypes": (dtype,), "contract": _contract(form, dtype),
    }  # fmt: skip
    options |= {"qk": qk, **(declared or {}), "gates": gates, "heads": heads}
    title = JOINT.join((form, layout, state, gate, beta, packing, scale, padding, dtype))
    return kernel(name=title, **options)(function)


class ConventionMatrix:
    """Every combination, as `--impl` names it.

    kdaverify.faults.conforming:MATRIX. and the values of AXES, in their order, joined by `__`.
    """

    def __getattr__(self, name: str) -> KernelAdapter:
        values = name.split(JOINT)
        if len(values) != len(AXES) or any(
            value not in known for value, known in zip(values, AXES.values(), strict=True)
        ):
            raise AttributeError(name)
        named: dict[str, Any] = dict(zip(AXES, values, strict=True))
        return conforming(**named)


MATRIX: Final = ConventionMatrix()


class Domains:
    """Token loops that raise outside a stated domain: kdaverify.faults.conforming:DOMAINS.name."""

    names = (
        "gates_from_minus_5",
        "gates_by_supports",
        "beta_to_1",
        "width_128",
        "one_value_head",
        "multiples_of_64",
        "no_packs",
        "fixed_scale",
        "fp16_alone",
    )

    def __getattr__(self, name: str) -> KernelAdapter:
        if name not in self.names:
            raise AttributeError(name)
        return getattr(self, f"_{name}")()

    def _gates_from_minus_5(self) -> KernelAdapter:
        return conforming(
            packing="cu_seqlens",
            declared={"gate_range": (-5.0, 0.0)},
            takes=lambda *x: not bool((x[3] < -5).any()),
        )

    def _gates_by_supports(self) -> KernelAdapter:
        def supports(problem: Problem) -> str | None:
            return "gates below -5" if bool((problem.inputs().g < -5).any()) else None

        return conforming(
            dtype="bf16",
            declared={"supports": supports},
            takes=lambda *x: not bool((x[3] < -5).any()),
        )

    def _beta_to_1(self) -> KernelAdapter:
        return conforming(
            form="chunk",
            declared={"beta_range": (0.0, 1.0)},
            takes=lambda *x: not bool((x[4] > 1).any()),
        )

    def _width_128(self) -> KernelAdapter:
        return conforming(
            dtype="bf16",
            declared={"widths": (128,)},
            takes=lambda *x: x[0].shape[-1] == x[2].shape[-1] == 128,
        )

    def _one_value_head(self) -> KernelAdapter:
        return conforming(
            packing="cu_seqlens",
            declared={"head_ratios": (1,)},
            takes=lambda *x: x[0].shape[2] == x[2].shape[2],
        )

    def _multiples_of_64(self) -> KernelAdapter:
        return conforming(
            form="chunk",
            dtype="bf16",
            declared={"length_multiple": CHUNK},
            takes=lambda *x: x[0].shape[1] % CHUNK == 0,
        )

    def _no_packs(self) -> KernelAdapter:
        return conforming(layout="bhtd", state="vk", dtype="fp16")

    def _fixed_scale(self) -> KernelAdapter:
        return conforming(scale="fixed", packing="segment_ids")

    def _fp16_alone(self) -> KernelAdapter:
        return conforming(form="chunk", packing="cu_seqlens", dtype="fp16")


DOMAINS: Final = Domains()


def is_possible(row: Mapping[str, str]) -> bool:
    """Whether a combination can be declared at all, and is none of another name."""
    return (row["layout"] != "thd" or row["packing"] == "cu_seqlens") and (
        row["packing"] == "cu_seqlens" or row["padding"] == "zero"
    )


def covering_rows(
    number: int = 0, seed: int = 0, axes: Mapping[str, Sequence[str]] = AXES
) -> list[dict[str, str]]:
    """Combinations with every possible pair of two axes' values; then others, to `number`.

    Args:
        axes: those that are combined; layout, packing and padding among them.
    """
    rows = covering_array(
        axes, 2, bound=("layout", "packing", "padding"), possible=is_possible, seed=seed
    )
    possible = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    rest = [row for row in possible if is_possible(row) and row not in rows]
    Random(seed).shuffle(rest)  # noqa: S311 # combinations, not secrets
    return [*rows, *rest[: max(0, number - len(rows))]]


def _contract(form: str, dtype: str) -> str:
    wide = "fp64" if dtype == "fp64" else "fp32"
    return f"recurrent-{wide}" if form == "token" else f"chunk{CHUNK}-{wide}"


def _with_signature(
    run: Callable[..., Any], packing: str, scale: str, gates: str, gate: str
) -> Callable[..., Any]:
    """`run` with the parameters that a kernel of these conventions has."""
    tokens = "q, k, v, beta" if gates == "none" else "q, k, v, g, beta"
    names = [
        "initial_state",
        *(["scale"] if scale == "argument" else []),
        *([packing] if packing != "none" else []),
        *(PARAMETERS if gate in ACTIVATED else ()),
    ]
    passed = ", ".join(f"{name!r}: {name}" for name in names)
    body = (
        f"def call({tokens}, *, {', '.join(names)}):\n    return run(({tokens}),"
        f" {{**ABSENT, {passed}}})"
    )
    scope: dict[str, Any] = {
        "run": run,
        "ABSENT": dict.fromkeys(("scale", "cu_seqlens", "segment_ids")),
    }
    exec(body, scope)  # noqa: S102 # a signature is what the decorator reads
    return scope["call"]
