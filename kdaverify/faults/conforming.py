"""Kernels that are right, in any conventions: a token loop and a chunk form in plain torch, both
differentiated by autograd.

Each computes from the tensors as they are declared (a decay multiplies the state, a logit goes
through the kernel's own sigmoid), in fp32 for fp32, bf16 and fp16 inputs and in fp64 for fp64, and
conforms to the contract that it declares.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.kernel_adapter import KernelAdapter
from kdaverify.problems import Problem
from kdaverify.problems.covering_array import covering_array
from oracles.gate_activation import FORMS as ACTIVATED
from oracles.gate_activation import LOWER_BOUND, PARAMETERS
from oracles.row_norm import EPSILON, GIVEN

Activate = Callable[[Tensor, Tensor, Tensor, str], Tensor]
LN_2: Final = 0.6931471805599453
CHUNK: Final = 64
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
        takes: (q, k, v, g, beta, keywords) -> whether the kernel takes such a call; it raises where
            not.
        activate: what a kernel that is wrong makes its log gates by; see `activated`.
        qk: as `Conventions` has it.
        normalise: what a kernel that is wrong normalises the rows of q and k by.
    """
    arithmetic = _token if form == "token" else _chunk
    form_of_g = "log" if gate in ACTIVATED else gate

    def run(tokens: tuple[Tensor, ...], options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        q, k, v, *gate_and_write = (_token_major(x, layout) for x in tokens)
        b, g = gate_and_write[-1], _to_channels(gate_and_write[:-1], gates, q, v)
        if takes is not None and not takes(q, k, v, g, b, options):
            raise ValueError("a call outside the declared domain")
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        if gate in ACTIVATED:
            A_log, bias = (options[name].to(wide) for name in PARAMETERS)
            bias = bias[:, None] if gates == "head" else bias
            g = (activate or activated)(g.to(wide), A_log, bias, gate)
        if qk != GIVEN:
            q, k = ((normalise or normalised)(x.to(wide)) for x in (q, k))
        if qk == "l2norm-stored":
            q, k = (x.to(tokens[0].dtype) for x in (q, k))
        factor = {"argument": options["scale"], "fixed": q.shape[-1] ** -0.5, "folded": 1.0}[scale]
        write = b.to(wide).sigmoid() if beta == "logit" else b.to(wide)
        given = options["initial_state"]
        start = None if given is None else (given.mT if state == "vk" else given).to(wide)
        spans, rows, final = list(_spans(q, options)), list[Tensor](), list[Tensor]()
        if start is None:
            start = torch.zeros(len(spans), v.shape[2], q.shape[3], v.shape[3], dtype=wide)
        for n, (row, first, end) in enumerate(spans):
            x = [y[row, first:end].to(wide) for y in (q, k, v, g)]
            x[:2] = (_for_value_heads(y, v.shape[2] // q.shape[2], heads) for y in x[:2])
            span = _Span(*x, beta=write[row, first:end], gate=form_of_g, scale=factor)
            part, after = arithmetic(span, start[n])
            rows.append(part)
            final.append(after)
        o = _placed(rows, spans, torch.zeros(v.shape, dtype=wide), padding).to(v.dtype)
        o = o.transpose(1, 2) if layout == "bhtd" else o.flatten(0, 1) if layout == "thd" else o
        states = torch.stack(final)
        return o, (states.mT if state == "vk" else states)

    function = _with_signature(run, packing, scale, gates, gate)
    options: dict[str, Any] = {
        "layout": layout, "state": state, "gate": gate, "beta": beta, "packing": packing,
        "scale": scale, "padding": padding, "dtypes": (dtype,), "contract": _contract(form, dtype),
    }  # fmt: skip
    options |= {"qk": qk, **(declared or {}), "gates": gates, "heads": heads}
    title = JOINT.join((form, layout, state, gate, beta, packing, scale, padding, dtype))
    return kernel(name=title, **options)(function)


def activated(x: Tensor, A_log: Tensor, dt_bias: Tensor, gate: str) -> Tensor:
    """math.md 6: log gates of x [..., HV, K] by a kernel's own activation."""
    z, a = x + dt_bias, A_log.exp()[:, None]
    if gate == "bounded":
        return LOWER_BOUND * torch.sigmoid(a * z)
    # Not by torch's softplus, which takes z for log(1 + exp z) from 20 on in fp64, too; nor by
    # max(z, 0) + log(1 + exp -|z|), whose slope autograd takes for 1 at z = 0, where it is 1 / 2.
    return -a * torch.logaddexp(z, torch.zeros_like(z))


def normalised(x: Tensor) -> Tensor:
    """math.md 6: rows of unit length."""
    return x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt()


def _for_value_heads(x: Tensor, groups: int, heads: str) -> Tensor:
    """Keys or queries [T, H, K], each head repeated for the value heads that read it."""
    return x.repeat(1, groups, 1) if heads == "tiled" else x.repeat_interleave(groups, 1)


class ConventionMatrix:
    """Every combination, as `--impl` names it.

    kdaverify.faults.conforming:MATRIX.form__layout__state__gate__beta__packing__scale__padding__dtype
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
    """Token loops that raise outside a domain, and declare it:
    kdaverify.faults.conforming:DOMAINS.name.
    """

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
    """Combinations in which every possible pair of values of two axes occurs; then others, until
    there are `number` of them.

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


def _to_channels(given: list[Tensor], gates: str, q: Tensor, v: Tensor) -> Tensor:
    """[B, T, HV, K] of whatever gates there are; none is a log gate of 0."""
    shape = (*v.shape[:3], q.shape[3])
    if gates == "channel":
        return given[0]
    return given[0][..., None].expand(shape) if gates == "head" else v.new_zeros(shape)


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


def _token_major(x: Tensor, layout: str) -> Tensor:
    if layout == "thd":
        return x[None]
    return x.transpose(1, 2) if layout == "bhtd" else x


def _spans(q: Tensor, options: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    """(row, first token, end) of every sequence."""
    offsets, ids = options["cu_seqlens"], options["segment_ids"]
    if offsets is not None:
        for first, end in itertools.pairwise(offsets.tolist()):
            yield 0, first, end
    elif ids is not None:
        changes = [0, *((ids[0, 1:] != ids[0, :-1]).nonzero().flatten() + 1).tolist(), ids.shape[1]]
        for first, end in itertools.pairwise(changes):
            yield 0, first, end
    else:
        for row in range(q.shape[0]):
            yield row, 0, q.shape[1]


def _placed(
    rows: list[Tensor], spans: list[tuple[int, int, int]], o: Tensor, padding: str
) -> Tensor:
    """All rows of o; those of no sequence are zero, or NaN where they are undefined."""
    out = list[Tensor]()
    for row in range(o.shape[0]):
        parts = [part for part, span in zip(rows, spans, strict=True) if span[0] == row]
        used = sum(len(part) for part in parts)
        rest = torch.full_like(o[row, used:], torch.nan if padding == "undefined" else 0.0)
        out.append(torch.cat([*parts, rest]))
    return torch.stack(out) if out else o


@dataclass(frozen=True)
class _Span:
    """One sequence, or a chunk of one: [T, HV, ...],
    the gates as they are declared, beta as a value.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    gate: str
    scale: float

    def __len__(self) -> int:
        return len(self.q)

    def head_major(self, first: int, end: int) -> list[Tensor]:
        """q, k, v, g [HV, c, ...] and beta [HV, c] of some tokens."""
        return [x[first:end].transpose(0, 1) for x in (self.q, self.k, self.v, self.g, self.beta)]


def _token(x: _Span, state: Tensor) -> tuple[Tensor, Tensor]:
    """math.md 2."""
    decay = x.g if x.gate == "decay" else torch.exp2(x.g) if x.gate == "log2" else torch.exp(x.g)
    out = list[Tensor]()
    for t in range(len(x)):
        state = state * decay[t][..., None]
        u = x.beta[t][..., None] * (x.v[t] - torch.einsum("hk,hkv->hv", x.k[t], state))
        state = state + x.k[t][..., None] * u[..., None, :]
        out.append(x.scale * torch.einsum("hk,hkv->hv", x.q[t], state))
    return (torch.stack(out) if out else torch.zeros_like(x.v)), state.clone()


def _chunk(x: _Span, state: Tensor) -> tuple[Tensor, Tensor]:
    """math.md 3, chunk by chunk."""
    out = list[Tensor]()
    for first in range(0, len(x), CHUNK):
        q, k, v, g, beta = x.head_major(first, first + CHUNK)
        decays = _decays(g, x.gate)
        A = beta[..., None] * torch.einsum("hik,hjk,hijk->hij", k, k, decays.between).tril(-1)
        P = x.scale * torch.einsum("hik,hjk,hijk->hij", q, k, decays.between).tril()
        right = beta[..., None] * (v - (k * decays.from_start) @ state)
        u = torch.linalg.solve_triangular(
            A + torch.eye(A.shape[-1], dtype=A.dtype), right, upper=False, unitriangular=True
        )
        out.append((x.scale * (q * decays.from_start) @ state + P @ u).transpose(0, 1))
        state = decays.from_start[:, -1, :, None] * state + (k * decays.to_end).mT @ u
    return (torch.cat(out) if out else torch.zeros_like(x.v)), state.clone()


@dataclass(frozen=True)
class _Decays:
    """exp(G_i - G_j) [HV, c, c, K], exp(G_i) and exp(G_c - G_i) [HV, c, K]."""

    between: Tensor
    from_start: Tensor
    to_end: Tensor


def _decays(g: Tensor, gate: str) -> _Decays:
    """Exponentials of differences of log decays; a hard reset is counted, never subtracted."""
    reset = g == 0 if gate == "decay" else g.isneginf()
    safe = torch.where(reset, torch.ones_like(g) if gate == "decay" else torch.zeros_like(g), g)
    total = (safe.log() if gate == "decay" else safe * LN_2 if gate == "log2" else safe).cumsum(1)
    resets = reset.long().cumsum(1)
    causal = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool).tril()[..., None]
    unbroken = (resets[:, :, None] == resets[:, None]) & causal
    return _Decays(
        torch.where(unbroken, total[:, :, None] - total[:, None], -torch.inf).exp(),
        torch.where(resets == 0, total, -torch.inf).exp(),
        torch.where(resets == resets[:, -1:], total[:, -1:] - total, -torch.inf).exp(),
    )
