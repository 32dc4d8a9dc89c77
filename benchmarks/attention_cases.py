"""Faults of attention as the diagnosis meets them: in a kernel of another arithmetic, on the least
expensive case that it fails.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.checks.status import Status
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.minimise import failure
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.attention import list_kernel
from kdaverify.faults.attention.adapter import OTHERWISE, adapted
from kdaverify.faults.attention.kernel import PLAIN, AttentionKernel, AttentionPatch
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.hosts import host_of
from kdaverify.operator import operator_named, problem_from_json
from kdaverify.operators.attention.tolerances_operator import STAGES
from kdaverify.operators.attention.traced import wrong_rows

MATRIX: Final = Path("reports/kill_matrix_operators.json")
LARGEST: Final = 4.0
"""Seconds of judging one problem: of the panel, faults of sizes need the largest."""


def is_of_attention(fault: Fault) -> bool:
    """Whether it is of an operator whose stages are hidden."""
    return operator_named(host_of(fault).op).hidden_stages == STAGES


def kernels(fault: Fault) -> Iterator[Adapter]:
    """The fault in other blocks, splits, order and base; then as its patch is made, where that
    cannot be called otherwise.
    """
    for design in (OTHERWISE, PLAIN):
        patch = fault.patch(Setting(1.0, torch.Generator().manual_seed(3)))
        if isinstance(patch, AttentionPatch):
            function = getattr(AttentionKernel(_designed(patch, design)), fault.operator)
            yield adapted(function, fault.operator, f"fault:{fault.id}", dtypes=fault.dtypes)
        else:
            attention = _designed(patch.attention, design)
            yield list_kernel.planted(replace(patch, attention=attention), fault)


def _designed(patch: AttentionPatch, design: Any) -> AttentionPatch:
    return replace(patch, design=design) if patch.design == PLAIN else patch


def failing_case(fault: Fault, dtypes: tuple[str, ...]) -> tuple[Adapter, PropertyCase] | None:
    """The kernel, and the first case that it fails."""
    for adapter in kernels(fault):
        for case in (*_of_the_panel(fault, adapter, dtypes), *_of_the_matrix(fault)):
            found = failure(adapter, case)
            if found is not None and found[1] is Status.ERROR:
                break
            if found is not None:
                return adapter, case
    return None


def _of_the_panel(
    fault: Fault, adapter: Adapter, dtypes: tuple[str, ...]
) -> Iterator[PropertyCase]:
    """Plain forwards, or gradients of what the forward has right."""
    operator = adapter.operator
    problems = sorted(
        (
            x
            for _, x in operator.panel(adapter, "smoke")
            if x.dtype in dtypes and operator.cost(x) <= LARGEST
        ),
        key=lambda x: (dtypes.index(x.dtype), operator.cost(x)),
    )
    of_gradients = all(name.startswith("d") for name in fault.outputs)
    for problem in problems:
        if of_gradients:
            of = operator.whole(adapter.exposes(problem))
            yield PropertyCase("gradients", problem, {"of": of, "exponent": 0})
        else:
            yield PropertyCase("forward", problem)


def _of_the_matrix(fault: Fault) -> Iterator[PropertyCase]:
    """What rejects it in the kill matrix: rules and laws need more than one call."""
    rows = json.loads(MATRIX.read_text())["faults"]
    words = [shlex.split(row["by"]["replay"]) for row in rows if row["id"] == fault.id]
    for line in (line for line in words if line[-1].startswith("{")):
        detail = json.loads(line[line.index("--detail") + 1]) if "--detail" in line else {}
        name = line[line.index("--property") + 1]
        yield PropertyCase(name, problem_from_json(line[-1]), detail)


def accepted(count: int) -> Iterator[tuple[Adapter, PropertyCase]]:
    """Cases that conforming kernels pass, of every operator in turn."""
    by_kernel = list[list[tuple[Adapter, PropertyCase]]]()
    for adapter in _conforming():
        operator = adapter.operator
        own = [x for _, x in operator.panel(adapter, "smoke") if operator.cost(x) <= 1 / 16]
        by_kernel.append([(adapter, PropertyCase("forward", x)) for x in own])
    share = -(-count // len(by_kernel))
    chosen = (cases[:: max(1, len(cases) // share)][:share] for cases in by_kernel)
    yield from [case for cases in chosen for case in cases][:count]


def stage_of(adapter: Adapter, case: PropertyCase) -> dict[str, Any]:
    """Which stage is named for a conforming kernel: as it is tested, and by the rows of o and LSE
    that are off.
    """
    found = [diagnose(adapter, case).stage]
    found += [] if case.problem.op == "merge_state" else [wrong_rows(case.problem, adapter)]
    said = [str(stage) for stage in found if stage is not None]
    return {"found": "a stage named" if said else "no stage named", "said": said}


def _conforming() -> Iterator[Adapter]:
    for op in ("attention", "mla_decode", "merge_state"):
        for design in (PLAIN, OTHERWISE):
            kernel = AttentionKernel(AttentionPatch(design=design))
            yield adapted(getattr(kernel, op), op, f"conforming {op}")
    for host in list_kernel.CACHES:
        yield list_kernel.adapted(list_kernel.ListPatch(), host, f"conforming {host}")
