"""How often a conforming attention kernel is rejected, and how often a weaker one is accepted.

    python -m benchmarks.attention_alarms --runs 5000
    python -m benchmarks.attention_alarms --seed 7103 --only 17 250

Random segments (lengths, heads, widths, formats, ten kinds of logits), and on each of them kernels
of random designs that the ensemble does not have: blocks of 16 to 128, 1 to 8 splits cut and merged
in every way, both directions, lazy rescaling, both row sums, both bases, P relative to either
maximum, sums in any order. Each is held against the tolerances of a contract that admits it; what
is over is repeated on 20 fresh segments of the same kind, and is a false alarm if most of those are
over too. Kernels with scores in bf16, P in e4m3 and partials in bf16 are held against the same
tolerances, and counted where they are within. Prints counts, the worst ratios, and the number of
every run that is over; --only repeats runs by number.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import attention_contract
from kdaverify.budgets.attention.ensemble import kernel
from kdaverify.budgets.attention.reference import (
    Loss,
    attention_gradient_reference,
    attention_reference,
)
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.sampled import reference_kernels
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.sums import from_last, one_by_one
from oracles.arithmetic import Arithmetic
from oracles.attention.backward import AttentionBackward
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline
from oracles.attention.segment import Segment
from oracles.enclosure import Enclosure

FRESH = 20
PER_SEGMENT = 8
WEAKER = ("S:bf16", "P:e4m3", "partial_o:bf16")
Outputs = dict[str, Tensor]
Dot = Callable[[Tensor, Tensor], Tensor]
Logits = Callable[[Tensor, Tensor], Tensor]


def _iid(std: float) -> Logits:
    return lambda q, _: std * q


def _winner(at: float) -> Logits:
    """Every query along one key: its logit is far above the others."""
    return lambda q, k: 0.3 * q + 6 * k[:1, [int(at * (k.shape[1] - 1))]] / k.shape[-1] ** 0.5


LOGITS: dict[str, Logits] = {
    "zero": _iid(0.0),
    **{f"std {std:g}": _iid(std) for std in (0.05, 1.0, 3.0, 8.0, 100.0)},
    "first key wins": _winner(0.0),
    "last key wins": _winner(1.0),
    "shifted by 100": lambda q, _: q + 0.0 * q,
    "rising": lambda q, _: q + 0.0 * q,
}


@dataclass(frozen=True)
class Drawn:
    """A random segment and what is tested on it."""

    segment: Segment
    logits: str
    dtype: str


def drawn(rng: random.Random, kind: str | None = None) -> Drawn:
    dtype, logits = rng.choice(("bf16", "fp16", "fp32")), kind or rng.choice([*LOGITS])
    h_kv, group = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 5, 8))
    s_q, s_k = rng.choice((1, 1, 2, 4, 33)), rng.choice((1, 2, 17, 63, 64, 65, 129, 300, 700))
    d_k, d_v = rng.choice(((64, 64), (192, 128), (128, 128), (576, 512), (40, 24)))
    made = torch.Generator().manual_seed(rng.randrange(2**31))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    q, k, v = normal(h_kv * group, s_q, d_k), normal(h_kv, s_k, d_k), normal(h_kv, s_k, d_v)
    q = LOGITS[logits](q, k)
    if logits in ("shifted by 100", "rising"):
        step = torch.arange(s_k, dtype=torch.float64) * rng.choice((0.69, 0.7, 5.5, 6.0))
        k[..., 0] = 100.0 if logits.startswith("shifted") else step
        q[..., 0] = d_k**0.5
    if rng.random() < 0.3:
        v = v + 3.0
    visible = torch.arange(s_k) <= torch.arange(s_q)[:, None] + s_k - s_q
    visible |= rng.random() < 0.5
    cast = FORMATS[dtype].dtype
    return Drawn(Segment(q.to(cast), k.to(cast), v.to(cast), d_k**-0.5, visible), logits, dtype)


def random_design(rng: random.Random) -> OnlineDesign:
    return OnlineDesign(
        block=rng.choice((16, 24, 32, 48, 64, 96, 128)),
        direction=rng.choice(("forward", "backward")),
        splits=rng.randint(1, 8),
        cut=rng.choice(("even", "blocks", "uneven")),
        merge=rng.choice(("at once", "in order", "reversed", "tree")),
        rescale=rng.choice(("always", "always", "lazy", "once")),
        lazy=rng.choice((2.0, 8.0)),
        base=rng.choice(("2", "e")),
        scale=rng.choice(("scores", "exponent")),
        fused=rng.random() < 0.5,
        relative_to=rng.choice(("running", "running", "block")),
        row_sum=rng.choice(("unrounded", "unrounded", "rounded")),
        seesaw=rng.random() < 0.1,
    )


def admitting(design: OnlineDesign, dtype: str) -> str:
    """The contract that a kernel of this design declares."""
    lazy = "lazy:8" if design.rescale == "lazy" else ""
    form = "seesaw" if design.seesaw else "online"
    rest = ";".join(filter(None, (lazy, f"row_sum:{design.row_sum}")))
    return f"{form}64-{dtype}[{rest}]"


def backwards(a: Tensor, b: Tensor) -> Tensor:
    return a.flip(-1) @ b.flip(-2)


SUMS: tuple[Dot, ...] = (backwards, backwards, from_last, one_by_one)
"""Orders of the sums of products; a kernel has one."""


def outputs(parts: Sequence[tuple[Tensor, ...]]) -> Outputs:
    return {"o": parts[0][0], "lse": parts[0][1]}


def gradients(parts: Sequence[tuple[Tensor, ...]]) -> Outputs:
    return dict(zip(("dq", "dk", "dv"), parts[0], strict=True))


def enclosed(values: Outputs) -> dict[str, Enclosure]:
    def one(x: Tensor) -> Enclosure:
        finite = x.masked_fill(torch.isinf(x), 0.0)
        return Enclosure(finite, torch.zeros_like(finite), torch.zeros_like(finite), finite == 0)

    return {name: one(x) for name, x in values.items()}


class Judge:
    """Exact values and tolerances of one segment, by contract; made when first needed."""

    def __init__(self, given: Drawn, *, backward: bool) -> None:
        self.given, self.backward, self._made = given, backward, dict[str, Reference]()
        o, lse = AttentionPipeline()(given.segment, torch.float64)
        rng = torch.Generator().manual_seed(1)
        self.do = torch.randn(o.shape, generator=rng).to(given.segment.q.dtype)
        exact = outputs([(o, lse)])
        if backward:
            found = AttentionBackward()(given.segment, (o, lse), (self.do, None), torch.float64)
            exact = gradients([found])
        self.exact = enclosed(exact)

    def reference(self, contract: str) -> Reference:
        if contract not in self._made:
            declared = attention_contract(contract)
            segments = [self.given.segment]
            self._made[contract] = (
                attention_gradient_reference(
                    segments, [Loss(self.do, None)], self.exact, gradients, declared, method=""
                )
                if self.backward
                else attention_reference(segments, self.exact, outputs, declared, method="")
            )
        return self._made[contract]

    def ratio(
        self, contract: str, ran: str, design: OnlineDesign, dot: Dot = backwards
    ) -> tuple[float, str]:
        """The worst multiple of a tolerance of `contract`, of a kernel whose formats are those of
        `ran`, and whose sums of products are `dot`.
        """
        declared = attention_contract(ran)
        library = reference_kernels(declared)["library order"]
        arithmetic = Arithmetic(store=library.store, dot=dot)
        one = kernel(design, arithmetic, declared.accumulate.dtype)
        found = one.forward(self.given.segment)
        values = outputs([found])
        if self.backward:
            values = gradients([one.backward(self.given.segment, found, self.do, None)])
        held, worst = self.reference(contract), (0.0, "")
        for name, allowed in held.budgets.items():
            error = self.exact[name].error(values[name]).masked_fill(torch.isinf(values[name]), 0.0)
            ratios = allowed.ratios(allowed.measure(error, self.exact[name]))
            worst = max(worst, *((ratio, f"{name} {which}") for which, ratio in ratios.items()))
        return worst


def fresh(given: Drawn, contract: str, design: OnlineDesign, dot: Dot, *, backward: bool) -> bool:
    """Whether most fresh segments of the same shape are over the tolerance too."""
    over = 0
    for seed in range(FRESH):
        made = torch.Generator().manual_seed(seed)
        segment = given.segment
        moved = {
            name: x[..., torch.randperm(x.shape[-1], generator=made)] if name == "v" else x
            for name, x in (("q", segment.q), ("v", segment.v))
        }
        v = moved["v"] * (1 + 0.25 * torch.rand(segment.v.shape, generator=made)).to(
            segment.v.dtype
        )
        again = replace(given, segment=replace(segment, v=v))
        over += Judge(again, backward=backward).ratio(contract, contract, design, dot)[0] > 1
    return over > FRESH / 2


@dataclass
class Tally:
    """What came of the runs."""

    over: list[str]
    alarms: list[str]
    worst: defaultdict[str, float]
    caught: Counter[str]
    tried: Counter[str]

    def conforming(self, number: int, judge: Judge, design: OnlineDesign) -> None:
        """A run of a kernel that the contract admits."""
        given = judge.given
        contract, dot = admitting(design, given.dtype), SUMS[number % len(SUMS)]
        ratio, which = judge.ratio(contract, contract, design, dot)
        self.worst[which] = max(self.worst[which], ratio)
        if ratio > 1:
            kind = f"{given.logits} {contract} {dot.__name__} {design} {shape(given)}"
            line = f"{number}: {ratio:.3f} {which} {kind}"
            self.over.append(line)
            if fresh(given, contract, design, dot, backward=judge.backward):
                self.alarms.append(line)

    def weaker(self, judge: Judge) -> None:
        """Kernels that the contract does not admit."""
        plain = f"online64-{judge.given.dtype}"
        for stored in WEAKER:
            design = OnlineDesign(splits=4 if "partial" in stored else 1)
            key = f"{stored}, {judge.given.logits}"
            self.tried[key] += 1
            self.caught[key] += judge.ratio(plain, f"{plain}[{stored}]", design)[0] > 1

    def show(self, runs: int) -> None:
        over, alarms = len(self.over), len(self.alarms)
        print(f"{runs} runs, {over} over tolerance, {alarms} false alarms after fresh seeds")
        print(*self.over, sep="\n")
        print("false alarms:", *self.alarms, sep="\n")
        print({which: round(x, 3) for which, x in sorted(self.worst.items())})
        print({key: f"{self.caught[key]}/{n}" for key, n in sorted(self.tried.items())})


def designs(rng: random.Random) -> list[OnlineDesign]:
    """Those of one segment: their tolerances are made once for a row sum and a way to rescale."""
    first, lazy = random_design(rng), rng.random() < 0.3
    found = [random_design(rng) for _ in range(PER_SEGMENT)]
    return [
        replace(
            one,
            row_sum=first.row_sum,
            seesaw=first.seesaw,
            rescale="lazy" if lazy else ("once" if one.rescale == "once" else "always"),
        )
        for one in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--only", type=int, nargs="+", default=[], help="numbers of runs")
    tested = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(tested.seed)  # noqa: S311 # problems, no secrets
    tally = Tally([], [], defaultdict(float), Counter(), Counter())
    began, runs = time.monotonic(), 0
    last = max(tested.only) + 1 if tested.only else tested.runs
    while runs < last and time.monotonic() - began < tested.seconds:
        given, backward = drawn(rng), rng.random() < 0.25
        kernels = [*enumerate(designs(rng), runs)]
        runs += len(kernels)
        chosen = [one for one in kernels if not tested.only or one[0] in tested.only]
        if not chosen:
            continue
        judge = Judge(given, backward=backward)
        for number, design in chosen:
            tally.conforming(number, judge, design)
        if given.dtype != "fp32" and not (backward or kernels[0][1].seesaw or tested.only):
            tally.weaker(judge)
    tally.show(len(tested.only) or runs)


def shape(given: Drawn) -> str:
    return f"q {[*given.segment.q.shape]} k {[*given.segment.k.shape]} v {given.segment.v.shape[2]}"


if __name__ == "__main__":
    main()
