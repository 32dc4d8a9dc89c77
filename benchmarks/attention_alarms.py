"""How often a conforming attention kernel is rejected, and how often a weaker one is accepted.

    python -m benchmarks.attention_alarms --runs 5000
    python -m benchmarks.attention_alarms --seed 7103 --only 17 250

Random segments (lengths, heads, widths, formats, twelve kinds of logits; dense keys, lists of
slots, and lists of slots of an FP8 cache; with and without a sink; forward and, but for FP8,
backward), and on each of them kernels of random designs that the ensemble does not have: blocks of
16 to 128, 1 to 8 splits cut and merged in every way, partials in fp32 or in 16 bits, both
directions, lazy rescaling, both row sums, both bases, P relative to either maximum, q scaled and
stored, the sink first or last, sums in any order, cached keys dequantised in one rounding or two.
Each is held against the tolerances of a contract that admits it; what is over is repeated on 20
fresh segments of the same kind, and is a false alarm if most of those are over too. Kernels with
scores in bf16, P in e4m3 and partials in bf16 are held against the same tolerances, and counted
where they are within. Prints counts by kind of segment, the worst ratios, and the number of every
run that is over; --only repeats runs by number.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.attention_segments import Drawn, drawn, named_contract
from kdaverify.budgets.attention.contract import AttentionContract, attention_contract
from kdaverify.budgets.attention.ensemble import kernel
from kdaverify.budgets.attention.reference import (
    Loss,
    attention_gradient_reference,
    attention_reference,
)
from kdaverify.budgets.sampled import reference_kernels
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.sums import from_last, one_by_one
from oracles.arithmetic import Arithmetic
from oracles.attention.backward import AttentionBackward
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline
from oracles.attention.sparse import SparseCall
from oracles.enclosure import Enclosure

FRESH = 20
PER_SEGMENT = 8
SCALED = 0.2
"""Share of segments whose kernels scale q and store it in the format of the inputs."""
WEAKER = ("S:bf16", "P:e4m3", "partial_o:bf16")
Outputs = dict[str, Tensor]
Dot = Callable[[Tensor, Tensor], Tensor]
Again = Callable[[int], "Judge"]
"""A judge of the next fresh segment."""


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
        division=rng.choice(("quotient", "reciprocal")),
        sink=rng.choice(("end", "start")),
    )


def admitting(design: OnlineDesign, dtype: str, keys: Sequence[str]) -> str:
    """The contract that a kernel of this design declares."""
    lazy = ("lazy:8",) if design.rescale == "lazy" else ()
    form = "seesaw" if design.seesaw else "online"
    scaled = ("scale:q", f"q_scaled:{dtype}") if design.scale == "q" else ()
    return named_contract(form, dtype, (*lazy, f"row_sum:{design.row_sum}", *scaled, *keys))


def backwards(a: Tensor, b: Tensor) -> Tensor:
    return a.flip(-1) @ b.flip(-2)


SUMS: tuple[Dot, ...] = (backwards, backwards, from_last, one_by_one)
"""Orders of the sums of products; a kernel has one."""


def outputs(parts: Sequence[tuple[Tensor, ...]]) -> Outputs:
    return {"o": parts[0][0], "lse": parts[0][1]}


def gradients(call: SparseCall | None, parts: Sequence[tuple[Tensor, ...]]) -> Outputs:
    if call is not None:
        return call.joined_gradients(parts)
    (found,) = parts
    return dict(zip(("dq", "dk", "dv", "dsink")[: len(found)], found, strict=True))


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
        some = given.segment.q.numel() % 2
        self.dlse = torch.randn(lse.shape, generator=rng) if some else None
        exact = outputs([(o, lse)])
        if backward:
            loss = self.do, self.dlse
            exact = self.gradients(
                [AttentionBackward()(given.segment, (o, lse), loss, torch.float64)]
            )
        self.exact = enclosed(exact)

    def gradients(self, parts: Sequence[tuple[Tensor, ...]]) -> Outputs:
        return gradients(self.given.call, parts)

    def declared(self, contract: str) -> AttentionContract:
        found = attention_contract(contract)
        shared = self.backward and self.given.call is not None
        return found.of_shared_keys() if shared else found

    def reference(self, contract: str) -> Reference:
        if contract not in self._made:
            declared = self.declared(contract)
            segments = [self.given.reads[0]]
            self._made[contract] = (
                attention_gradient_reference(
                    segments,
                    [Loss(self.do, self.dlse)],
                    self.exact,
                    self.gradients,
                    declared,
                    method="",
                )
                if self.backward
                else attention_reference(segments, self.exact, outputs, declared, method="")
            )
        return self._made[contract]

    def ratio(
        self, contract: str, ran: str, design: OnlineDesign, dot: Dot = backwards, *, read: int = 0
    ) -> tuple[float, str]:
        """The worst multiple of a tolerance of `contract`, of a kernel whose formats are those of
        `ran`, whose sums of products are `dot`, and which reads its keys in way `read`.
        """
        segment = self.given.reads[read % len(self.given.reads)]
        declared = self.declared(ran)
        library = reference_kernels(declared)["library order"]
        arithmetic = Arithmetic(store=library.store, dot=dot)
        one = kernel(design, arithmetic, declared.accumulate.dtype)
        found = one.forward(segment)
        values = outputs([found])
        if self.backward:
            joined = self.gradients([one.backward(segment, found, self.do, self.dlse)])
            values = {name: arithmetic.store(name, x) for name, x in joined.items()}
        held, worst = self.reference(contract), (0.0, "")
        for name, allowed in held.budgets.items():
            error = self.exact[name].error(values[name]).masked_fill(torch.isinf(values[name]), 0.0)
            ratios = allowed.ratios(allowed.measure(error, self.exact[name]))
            worst = max(worst, *((ratio, f"{name} {which}") for which, ratio in ratios.items()))
        return worst


def fresh(again: Again, contract: str, design: OnlineDesign, dot: Dot, *, read: int) -> bool:
    """Whether most fresh segments of the same kind and shape are over the tolerance too."""
    judges = (again(number) for number in range(1, FRESH + 1))
    over = [judge.ratio(contract, contract, design, dot, read=read)[0] > 1 for judge in judges]
    return sum(over) > FRESH / 2


def another(state: Any, number: int, *, backward: bool) -> Judge:
    """That of a fresh segment of the same kind and shape."""
    rng = random.Random()  # noqa: S311 # problems, no secrets
    rng.setstate(state)
    return Judge(drawn(rng, number), backward=backward)


@dataclass
class Tally:
    """What came of the runs."""

    over: list[str]
    alarms: list[str]
    worst: defaultdict[str, float]
    caught: Counter[str]
    tried: Counter[str]
    kinds: Counter[str]

    def conforming(
        self,
        number: int,
        judge: Judge,
        design: OnlineDesign,
        partials: Sequence[str],
        again: Again,
    ) -> None:
        """A run of a kernel that the contract admits."""
        given, dot = judge.given, SUMS[number % len(SUMS)]
        contract = admitting(design, given.dtype, (*given.keys, *partials))
        ratio, which = judge.ratio(contract, contract, design, dot, read=number)
        self.worst[which] = max(self.worst[which], ratio)
        narrow = ", 16-bit partials" if partials else ""
        self.kinds[given.label + narrow + (", backward" if judge.backward else "")] += 1
        if ratio > 1:
            kind = f"{given.logits} {contract} {dot.__name__} {design} {shape(given)}"
            line = f"{number}: {ratio:.3f} {which} {kind}"
            self.over.append(line)
            if fresh(again, contract, design, dot, read=number):
                self.alarms.append(line)

    def weaker(self, judge: Judge) -> None:
        """Kernels that the contract does not admit."""
        given = judge.given
        plain = named_contract("online", given.dtype, given.keys)
        for stored in WEAKER:
            design = OnlineDesign(splits=4 if "partial" in stored else 1)
            key = f"{stored}, {given.logits}"
            self.tried[key] += 1
            ran = named_contract("online", given.dtype, (*given.keys, stored))
            self.caught[key] += judge.ratio(plain, ran, design)[0] > 1

    def show(self, runs: int) -> None:
        over, alarms = len(self.over), len(self.alarms)
        print(f"{runs} runs, {over} over tolerance, {alarms} false alarms after fresh seeds")
        print(*self.over, sep="\n")
        print("false alarms:", *self.alarms, sep="\n")
        print(dict(sorted(self.kinds.items())))
        print({which: round(x, 3) for which, x in sorted(self.worst.items())})
        print({key: f"{self.caught[key]}/{n}" for key, n in sorted(self.tried.items())})


def designs(rng: random.Random) -> list[OnlineDesign]:
    """Those of one segment: their tolerances are made once for a row sum and a way to rescale."""
    first, lazy, scaled = random_design(rng), rng.random() < 0.3, rng.random() < SCALED
    found = [random_design(rng) for _ in range(PER_SEGMENT)]
    return [
        replace(
            one,
            scale="q" if scaled else one.scale,
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
    tally = Tally([], [], defaultdict(float), Counter(), Counter(), Counter())
    began, runs = time.monotonic(), 0
    last = max(tested.only) + 1 if tested.only else tested.runs
    while runs < last and time.monotonic() - began < tested.seconds:
        state = rng.getstate()
        given = drawn(rng)
        backward = rng.random() < 0.4 and given.kind != "fp8"
        narrow = rng.random() < 0.3 and given.dtype != "fp32" and not backward
        partials = (f"partial_o:{given.dtype}",) if narrow else ()
        kernels = [*enumerate(designs(rng), runs)]
        runs += len(kernels)
        chosen = [one for one in kernels if not tested.only or one[0] in tested.only]
        if not chosen:
            continue
        judge = Judge(given, backward=backward)
        for number, design in chosen:
            again = partial(another, state, backward=backward)
            tally.conforming(number, judge, design, partials, again)
        if given.dtype != "fp32" and not (backward or kernels[0][1].seesaw or tested.only):
            tally.weaker(judge)
    tally.show(len(tested.only) or runs)


def shape(given: Drawn) -> str:
    return f"q {[*given.segment.q.shape]} k {[*given.segment.k.shape]} v {given.segment.v.shape[2]}"


if __name__ == "__main__":
    main()
