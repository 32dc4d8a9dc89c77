"""The results of others' published standards for the outputs of one case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.isolation import housed
from kdaverify.adapters.registry import find
from kdaverify.canonical import Canonical
from kdaverify.checks.execute import CallError
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.published.evidence import Benchmark, Evidence, emulated
from kdaverify.checks.published.registry import findings
from kdaverify.limits import Limits
from kdaverify.operator import operator_of
from kdaverify.verdicts.verdict import Opinion
from oracles.autograd import ForwardOnlyError


@dataclass(frozen=True)
class NamedBenchmark:
    """An implementation whose errors others' standards compare with, in place of an emulated one.

    Args:
        spec: how the user named it.
    """

    spec: str
    adapter: Adapter


def benchmark_named(spec: str, *, isolate: bool | None, limits: Limits) -> NamedBenchmark:
    """The implementation that `spec` names.

    Args:
        isolate, limits: as of the implementation under test.
    Raises:
        AdapterError: there is none, or it cannot run here.
    """
    adapter = housed(find(spec), spec, isolate=isolate, limits=limits)
    missing = adapter.missing()
    if missing:
        raise AdapterError(f"{adapter.name} cannot run here, {missing}")
    return NamedBenchmark(spec, adapter)


@dataclass(frozen=True)
class Opinions:
    """The results of published rules for one output.

    Args:
        benchmark: whose errors its own were held against; "" where no rule was applied.
        published: by rule.
    """

    benchmark: str = ""
    published: dict[str, Opinion] = field(default_factory=dict[str, Opinion])


def opinions(
    case: Sequence[Outcome], problem: Canonical | None, named: NamedBenchmark | None
) -> list[Opinions]:
    """Others' opinions of every outcome of one case; none of what is no output of a call.

    Args:
        problem: what was tested.
        named: whose run is the benchmark; None for a baseline reference kernel.
    """
    if problem is None:
        return [Opinions() for _ in case]
    # A rule of calls may reject two calls of different batches at once, as it does of a race.
    benchmarks = dict[int, Benchmark]()
    for evidence in filter(None, (outcome.evidence for outcome in case)):
        call = id(evidence.again)
        if named is not None and call not in benchmarks:
            benchmarks[call] = _run(named.adapter, problem, evidence)
    return [
        Opinions()
        if (evidence := outcome.evidence) is None
        else _of(evidence, benchmarks.get(id(evidence.again)) or emulated(evidence))
        for outcome in case
    ]


def _of(evidence: Evidence, benchmark: Benchmark) -> Opinions:
    found = findings(evidence.sample(benchmark))
    return Opinions(
        benchmark.name,
        {name: Opinion.model_validate(vars(finding)) for name, finding in found.items()},
    )


def _run(named: Adapter, problem: Canonical, evidence: Evidence) -> Benchmark:
    """What the named implementation makes of the case; nothing where it cannot be called."""
    if problem.dtype not in named.dtypes:
        reason = f"it does not take {problem.dtype}"
    else:
        reason = operator_of(problem).refusal(named, problem)
    if reason is not None:
        return Benchmark(f"{named.name}: {reason}", {})
    try:
        return Benchmark(named.name, evidence.again(named))
    except (CallError, ForwardOnlyError, AdapterError) as error:
        first, _, _ = str(error).partition("\n")
        return Benchmark(f"{named.name}: {first}", {})
