"""Which faults of attention the smoke panel alone rejects, and by which output first.

    python benchmarks/attention_panel_kills.py

Exact values and tolerances of every fp32 problem of the panel are made once, outputs and gradients,
and every fault and the conforming twin run on all of them, twice in the same order. Faults of call
rules (views, reuse, edited inputs) survive this; the suites have rules for those. Prints a line a
fault: how many problems reject it, and the output that is over its tolerance most often.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference
from kdaverify.checks.compare import compare
from kdaverify.checks.status import Status
from kdaverify.faults.attention.adapter import ATTENTION, MERGE_STATE, MLA_DECODE
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.hosts import host_of
from kdaverify.operator import call_operator

TWINS = {"attention": ATTENTION, "mla_decode": MLA_DECODE, "merge_state": MERGE_STATE}
IO = FORMATS["fp32"]


@dataclass(frozen=True)
class PanelCase:
    """A problem with what its outputs and gradients are held against."""

    call: Any
    outputs: Reference
    loss: dict[str, Tensor] | None
    gradients: Reference | None


def prepared(op: str) -> Iterator[PanelCase]:
    """The cases of an operator."""
    operator, twin = call_operator(op), TWINS[op]
    contract = twin.contract("fp32")
    for _, problem in operator.panel(twin, "smoke"):
        if problem.dtype != "fp32":
            continue
        call, loss = problem.inputs(), None
        outputs = operator.reference(call, contract, IO)
        gradients = None
        if op == "attention":
            loss = operator.loss(problem, ("o", "lse"), "both", 0)
            gradients = operator.gradient_reference(call, loss, contract, IO)
        yield PanelCase(call, outputs, loss, gradients)


def over(adapter: Adapter, case: PanelCase) -> list[str]:
    """The outputs and gradients over their tolerance."""
    found = [(case.outputs, adapter.forward(case.call.copied()))]
    if case.gradients is not None:
        found.append((case.gradients, adapter.gradients(case.call.copied(), case.loss)))
    return [
        name
        for reference, values in found
        for name in reference.budgets
        if compare(name, values[name], reference, case.call).status is not Status.PASS
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    cases = {op: [*prepared(op)] for op in TWINS}
    for op, twin in TWINS.items():
        wrong = Counter(name for case in cases[op] for name in over(twin, case))
        print(f"conforming {op}: {len(cases[op])} problems, over tolerance {dict(wrong)}")
    rejected = 0
    faults = [fault for fault in FAULTS.values() if fault.operator in TWINS]
    for fault in faults:
        adapter = host_of(fault).faulty(fault, 1.0)
        hits = [over(adapter, case) for _ in range(2) for case in cases[fault.operator]]
        outputs = Counter(output for hit in hits for output in hit)
        problems = sum(bool(hit) for hit in hits)
        rejected += problems > 0
        print(f"{fault.id}: {problems} of {len(hits)} {dict(outputs)}", flush=True)
    print(f"{rejected} of {len(faults)} rejected by the panel alone")


if __name__ == "__main__":
    main()
