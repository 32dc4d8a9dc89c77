"""The short convolution as the machinery sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final, final

import torch
from hypothesis import strategies as st
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import USUAL_WIDTHS, resized
from kdaverify.budgets.bounded import Counted
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError
from kdaverify.checks.laws.law import Law
from kdaverify.checks.place import ElementPlace
from kdaverify.checks.status import Status
from kdaverify.operator import Choices
from kdaverify.operators.bounded import (
    CASTS,
    PARTIALS,
    BoundedOperator,
    Misreading,
    counted_as,
    gate_freedoms,
    storing,
)
from kdaverify.operators.function import FunctionTakes
from kdaverify.operators.short_conv.laws import LAWS
from kdaverify.operators.short_conv.panel import PAST_16_BITS, named_problems, random_problems
from kdaverify.operators.short_conv.problem import ShortConvProblem
from kdaverify.operators.short_conv.shapes import (
    EQUAL,
    LONG_TAPS,
    MOST_TAPS,
    SHORT,
    TAPS,
    USUAL_TAPS,
)
from kdaverify.operators.sizes import WIDTHS, shrunk
from oracles.pointwise.short_conv import EXACT, SIGNATURE, ConvPrecision, ShortConv, ShortConvCall

Z: Final = "z"
Z_BACKWARD: Final = "z of the backward"
DZ: Final = "dz"
TERMS: Final = "terms of dx"
SEQUENCES: Final = "sums of gradients of parameters over sequences"
ON_THE_WAY: Final = (Z, Z_BACKWARD, DZ, TERMS, PARTIALS, SEQUENCES, CASTS)
"""In the order of `ConvPrecision`."""
SIZES: Final[Mapping[str, dict[str, Any]]] = {
    "tails": {"lengths": (66, 0, 9, 2), "T": 80, "D": 33},
    "tiny": {"lengths": (5, 0, 2), "T": 10, "D": 8},
    "one": {"lengths": (1,), "T": 1, "D": 8},
    "equal": {"lengths": (4,), "T": 4, "D": 4},
    "equal-one": {"lengths": (1,), "T": 1, "D": 4},
    "real": {"lengths": (513, 0, 446, 65, 1), "T": 1028, "D": 512},
    "long": {"lengths": (513, 0, 446, 65, 1), "T": 1028, "D": 64},
}
LONG_SUMS: Final = {"B": 2, "T": 8209, "D": 16}
"""Without an activation, and with one of small z: what contracts admit to be stored of z would hide
as much as a partial sum does."""
STATE: Final = "final_state"
SECONDS: Final = 1e-7
"""A tap of a token of a channel, in float64, there and back."""


@final
class ShortConvOperator(BoundedOperator):
    """Math: `oracles.pointwise.short_conv`."""

    name, signature, call, problem = "short_conv", SIGNATURE, ShortConvCall, ShortConvProblem
    about = (
        "the causal short convolution over W tokens [B, T, D] with its state, forward and backward"
    )
    positional = ("x", "weight", "bias")
    keywords = ("initial_state", "cu_seqlens", "activation")
    words = {  # noqa: RUF012 # a Final mapping
        "conv_state": ("W", "W-1"),
        "packing": ("none", "cu_seqlens"),  # undeclared: what the signature names
        "activation": ("silu", "none"),
    }
    options = {"activation": ("silu", "none")}  # noqa: RUF012
    width = "W"
    has_known_bugs = True
    native = (PAST_16_BITS,)
    of_sizes = frozenset((*EQUAL, *SHORT, *TAPS, *LONG_TAPS))
    absent = {STATE: f"{STATE}=False"}  # noqa: RUF012
    equal_sizes = holds_nan = True
    fed_back = {STATE: "initial_state"}  # noqa: RUF012
    long_sums = (LONG_SUMS | {"activation": "none"}, LONG_SUMS | {"value": "tiny"})
    accuracy_fields = ("value", "activation")
    sizes = {"B": (1,), "D": WIDTHS, "W": (2, 3)}  # noqa: RUF012
    usual = (*resized("D", USUAL_WIDTHS), *resized("W", (4, 3, 2)), *resized("B", (1,)))

    def contracts(self, io: Format) -> Mapping[str, StorageContract]:
        """In fp32, z stored in x's type in the backward alone, as FLA recomputes it; nowhere; or in
        both passes, as torch's modules do. Autograd of taps that are widened one by one sums dx tap
        by tap in x's type.
        """
        stored: dict[str, dict[str, Format]] = {
            "short-conv": {Z_BACKWARD: io},
            "short-conv-strict": {},
            "short-conv-stored": dict.fromkeys((Z, Z_BACKWARD, DZ), io),
            "short-conv-taps": dict.fromkeys((Z_BACKWARD, TERMS), io),
        }
        return storing(io, stored)

    def freedoms(self, io: Format) -> Mapping[str, tuple[str, Format]]:
        """sequences: parameters are widened once a sequence, as in a loop over sequences. Autograd
        rounds each one's part of the gradient, and adds the parts in the format of the parameters.

        taps: the terms of dx are stored and added up in x's type. torch 2.13 does so in fp16 on a
        CPU without instructions for it, to the bit; it was rejected for dx of seven taps.
        """
        return {**gate_freedoms(io), "sequences": (SEQUENCES, io), "taps": (TERMS, io)}

    def returns(
        self, names: frozenset[str], words: Mapping[str, Any], *, final_state: bool
    ) -> tuple[str, ...]:
        if final_state and "initial_state" in names:
            return SIGNATURE.returned
        return SIGNATURE.returned[:1]

    def arguments(self, call: ShortConvCall, takes: FunctionTakes) -> dict[str, Any]:
        state = call.initial_state
        if state is not None and takes.words["conv_state"] == "W-1":
            state = state[..., 1:].contiguous()
        activation = None if call.activation == "none" else call.activation
        return {
            **{name: getattr(call, name) for name in SIGNATURE.names()},
            "initial_state": state,
            "activation": activation,
        }

    def canonical(
        self, name: str, value: Tensor, call: ShortConvCall, takes: FunctionTakes
    ) -> Tensor:
        """Rows past the last offset mean nothing; a state of W - 1 columns gets a column 0."""
        if name in ("y", "x") and call.cu_seqlens is not None and value.shape == call.x.shape:
            own = sum(call.lengths)
            # Without such rows the graph stays as it is: a mask makes incoming gradients dense, and
            # a backward that misreads their strides was accepted.
            if own == value.shape[1]:
                return value
            return value.masked_fill(
                torch.arange(value.shape[1], device=value.device)[:, None] >= own, 0.0
            )
        if (
            name == "final_state"
            and takes.words["conv_state"] == "W-1"
            and value.ndim
            and value.shape[-1] == call.W - 1
        ):
            return torch.nn.functional.pad(value, (1, 0))
        return value

    def fit(self, problem: ShortConvProblem, takes: FunctionTakes) -> ShortConvProblem:
        return problem.replace(
            lengths=problem.lengths if takes.words["packing"] == "cu_seqlens" else None,
            state=problem.state if "initial_state" in takes.names else "absent",
            bias=problem.bias and "bias" in takes.names,
            activation=takes.fixed("activation", problem.activation),
            W=takes.width(problem.W),
        )

    def probe(self, dtype: str) -> ShortConvProblem:
        return ShortConvProblem.model_validate(
            {"dtype": dtype, "B": 2, "T": 16, "D": 64, "state": "random", "bias": True}
        )

    def pack(self, dtype: str) -> ShortConvProblem:
        return ShortConvProblem.model_validate(
            {"dtype": dtype, "lengths": (5, 0, 9, 1), "T": 17, "D": 33, "state": "random"}
        )

    def advice(self, fault: CallError, adapter: Adapter, problem: ShortConvProblem) -> str:
        states = fault.output == STATE and fault.status is Status.SHAPE
        return "; a state of W - 1 columns is declared by conv_state='W-1'" if states else ""

    def other_steps(
        self, adapter: Adapter, problem: ShortConvProblem
    ) -> Iterator[Mapping[str, Any]]:
        """Every choice of activation, bias and state, every W, and more channels than a tile: a
        step that applied SiLU whatever the activation is was accepted, and so was one that had
        branches for 2 to 4 taps and added the first of more again and again.
        """
        for activation, bias, state in product(
            ("silu", "none"), (True, False), ("random", "absent")
        ):
            yield {"activation": activation, "bias": bias, "state": state}
        yield from ({"W": W} for W in adapter.takes.widths or range(2, MOST_TAPS + 1))
        yield {"D": 130}

    def may_decline(self, adapter: Adapter, call: ShortConvCall) -> str:
        """More taps than kernels usually have, where no `widths` promise them."""
        return "" if call.W <= USUAL_TAPS or adapter.takes.widths else f"W = {call.W}"

    def panels(self, adapter: Adapter, profile: str) -> list[Choices]:
        """Every declared W is in some problem."""
        found = super().panels(adapter, profile)
        for dtype, panel in zip(adapter.dtypes, found, strict=True):
            tested = {problem.W for _, problem in panel}
            more = [self.probe(dtype).replace(W=W) for W in adapter.takes.widths if W not in tested]
            inside = [self.within(adapter, problem) for problem in more]
            panel.extend(
                (f"{dtype}-{problem.W}-taps", problem)
                for problem in inside
                if adapter.supports(problem) is None
            )
        return found

    def counted(
        self,
        call: ShortConvCall,
        cotangents: Mapping[str, Tensor] | None,
        contract: StorageContract | None,
        io: Format,
    ) -> Counted:
        if contract is None:
            counted = ShortConv(call, EXACT)
        else:
            counted = ShortConv(call, counted_as(ConvPrecision, contract, io, ON_THE_WAY))
        return counted.forward() if cotangents is None else counted.backward(cotangents)

    def misreadings(self, call: ShortConvCall) -> Iterator[Misreading]:
        """States with the newest column first, returned so, or taken so as well."""
        said = "their newest column first; order columns from the oldest to the newest"
        yield Misreading(f"{STATE} has {said.replace('their', 'its')}", call, _newest_first)
        if call.initial_state is not None:
            # Column 0 of a state is never read; of one that is read backwards, it is the newest.
            taken = replace(call, initial_state=call.initial_state.flip(-1))
            yield Misreading(f"both states have {said}", taken, _newest_first)

    def groups(self, call: ShortConvCall) -> int:
        """A channel has one weight and one bias for all of its tokens."""
        return call.x.shape[2]

    def undefined(self, call: ShortConvCall) -> Mapping[str, Tensor]:
        mask = torch.zeros(call.N, call.x.shape[2], call.W, dtype=torch.bool, device=call.device)
        mask[..., 0] = True
        return {"final_state": mask}

    def laws(self) -> Mapping[str, Law]:
        return LAWS

    def named_problems(self, dtype: str, profile: str) -> Mapping[str, ShortConvProblem]:
        return named_problems(dtype, profile)

    def random_problems(self, dtype: str) -> st.SearchStrategy[ShortConvProblem]:
        return random_problems(dtype)

    def sized(self, rule: CallRule, dtype: str, *, seed: int) -> ShortConvProblem:
        fields: dict[str, Any] = {
            "dtype": dtype,
            "seed": seed,
            "state": "random",
            "bias": True,
            **SIZES[rule.size],
        }
        if not rule.packed:
            B = 4 if rule.size in ("equal", "equal-one") else 2
            fields |= {"lengths": None, "B": B, "T": max(fields["lengths"])}
        elif not rule.spare:
            fields["T"] = sum(fields["lengths"])
        return ShortConvProblem(**fields)

    def in_other_forms(self, rule: CallRule, problem: ShortConvProblem) -> Mapping[str, Any]:
        """Of axes that no size distinguishes: a pack of as many sequences, each of one token."""
        if rule.size != "equal":
            return {}
        return {"pack": problem.replace(B=1, lengths=(1,) * problem.T)}

    def cost(self, problem: ShortConvProblem) -> float:
        return SECONDS * problem.B * problem.T * problem.D * problem.W

    def smaller(
        self, problem: ShortConvProblem, detail: Mapping[str, Any]
    ) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        if problem.lengths is not None:
            rest = [problem.lengths[:n] + problem.lengths[n + 1 :] for n in range(problem.N)]
            yield {"lengths": None, "T": max(problem.lengths)}, detail
            yield from (
                ({"lengths": lengths, "T": sum(lengths)}, detail)
                for lengths in rest
                if sum(lengths)
            )
        else:
            yield from (({"T": tokens}, detail) for tokens in shrunk(problem.T))
        plain = {"bias": False, "state": "absent", "value": "normal", "loss": None}
        yield from (
            ({name: value}, detail)
            for name, value in plain.items()
            if getattr(problem, name) != value
        )
        yield from super().smaller(problem, detail)

    def example(self) -> ShortConvProblem:
        return ShortConvProblem(T=70, D=33, dtype="bf16", bias=True, state="random")

    def traits(self, problem: ShortConvProblem) -> Mapping[str, bool]:
        return {
            "a pack of several sequences": problem.packed and problem.N > 1,
            "rows past the last offset": problem.packed and sum(problem.lengths or ()) < problem.T,
            "a sequence of no tokens": problem.shortest == 0,
            "a sequence is shorter than W - 1": problem.shortest < problem.W - 1,
            "a sequence is shorter than W": problem.shortest < problem.W,
            "several batch entries": problem.B > 1,
            "T is no multiple of 64": problem.T % 64 > 0,
            "D is no multiple of 16": problem.D % 16 > 0,
            **super().traits(problem),
        }

    def place(self, output: str, index: tuple[int, ...], call: ShortConvCall) -> ElementPlace:
        """Sequence, token and channel, and what made the element: its taps."""
        axes = SIGNATURE[output].axes
        if axes[0] == "N":
            n, channel, column = index
            about = f"{call.lengths[n]} tokens"
            return ElementPlace(
                index, f"sequence {n}, channel {channel}, column {column} of {call.W}", about
            )
        if axes[0] != "B":
            words = ", ".join(
                f"{word} {at}" for word, at in zip(("channel", "tap"), index, strict=False)
            )
            return ElementPlace(index, words, f"a sum over {sum(call.lengths)} tokens")
        row, channel = index[0] * call.x.shape[1] + index[1], index[2]
        n = next(
            (n for n, (first, length) in enumerate(call.spans) if first <= row < first + length),
            None,
        )
        if n is None:
            return ElementPlace(
                index, f"row {index[1]}, past the last offset, channel {channel}", "nobody's"
            )
        first, length = call.spans[n]
        pack = "" if call.cu_seqlens is None else f" (row {row} of the pack)"
        return ElementPlace(
            index,
            f"sequence {n}, token {row - first} of {length}{pack}, channel {channel}",
            _made_by(call, row, channel),
        )


def _newest_first(exact: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {**exact, STATE: exact[STATE].flip(-1)}


def _made_by(call: ShortConvCall, row: int, channel: int) -> str:
    exact = ShortConv(call)
    at = int((exact.taps.rows == row).nonzero()[0])
    taps = ", ".join(f"{float(x[at, channel]):.4g}" for x in exact.factors)
    weight = ", ".join(f"{float(w):.4g}" for w in call.weight[channel])
    return f"x {taps} times w {weight}, z {float(exact.z[at, channel]):.6g}"


SHORT_CONV: Final = ShortConvOperator()
