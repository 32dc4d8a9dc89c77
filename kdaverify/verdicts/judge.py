"""What a suite holds: give it a problem, and it is judged, recorded, and rejected if it must be."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Any

from kdaverify.adapters.base import NOTHING_YET, Adapter
from kdaverify.canonical import Canonical
from kdaverify.checks.compare import Comparison
from kdaverify.checks.forward import implementation_of
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check, is_of_gradients
from kdaverify.operator import operator_of
from kdaverify.operators.sizes import sizes_of
from kdaverify.verdicts.published import NamedBenchmark, Opinions, opinions
from kdaverify.verdicts.recheck import only_near, rechecked
from kdaverify.verdicts.verdict import Verdict, bits_of


class Rejected(AssertionError):
    """An output of the tested kernel is wrong; the message compares and has the replay line."""


class FatalRejection(BaseException):
    """Rejected, and not to be tried again: the kernel crashed, hung or ran out of memory.

    No Exception, so that Hypothesis does not look for a smaller case: every try would cost a
    process, or the whole time limit.
    """


def reject(verdicts: Sequence[Verdict]) -> None:
    """Refuses those that reject.

    Raises:
        Rejected: one of them does.
        FatalRejection: likewise, and the kernel's process is gone.
    """
    wrong = [verdict for verdict in verdicts if verdict.status.rejects]
    if wrong:
        kind = (
            FatalRejection if any(verdict.status.takes_process for verdict in wrong) else Rejected
        )
        raise kind("\n".join(f"{v.status}: {v.message}\n  replay: {v.replay}" for v in wrong))


class Judge:
    """Judges one implementation on one property.

    Args:
        adapter: the implementation.
        report: gets every verdict, in order.
        property_name: a key of PROPERTIES.
        spec: how the user named the implementation, for the replay line; its name by default.
        seed: of the session, for the record.
        defers: whether borderline failures are reported as they are, and not raised: who holds the
            verdicts runs them again.
        benchmark: whose errors others' standards compare with; None for a baseline kernel.
        published: whether others' standards are applied at all.
        fits: whether a problem that is not taken is replaced by the nearest one that is.
    """

    def __init__(
        self,
        adapter: Adapter,
        report: Callable[[Verdict], None],
        property_name: str,
        *,
        spec: str | None = None,
        seed: int = 0,
        defers: bool = False,
        benchmark: NamedBenchmark | None = None,
        published: bool = True,
        fits: bool = False,
    ) -> None:
        self.adapter, self.report, self.property_name = adapter, report, property_name
        self.spec, self.seed, self.defers = spec or adapter.name, seed, defers
        self.benchmark, self.published, self.fits = benchmark, published, fits

    def __call__(self, problem: Canonical, **detail: Any) -> None:
        """Runs the property on `problem` and reports a verdict for every output.

        Raises:
            Rejected: one of them rejects.
            FatalRejection: likewise, and the kernel's process is gone.
        """
        if self.fits:
            problem = operator_of(problem).fitted(
                self.adapter, problem, backward=is_of_gradients(self.property_name, detail)
            )
        started = time.perf_counter()
        self._conclude(
            check(self.property_name, self.adapter, problem, detail),
            problem,
            detail,
            time.perf_counter() - started,
        )

    def conventions(self) -> None:
        """Probes the declared conventions.

        Raises:
            Rejected: another convention than the declared one fits.
            FatalRejection: the kernel's process is gone.
        """
        started = time.perf_counter()
        found = self.adapter.operator.preflight(self.adapter)
        if found:
            self._conclude(found, None, {}, time.perf_counter() - started)

    def _conclude(
        self,
        found: list[Outcome],
        problem: Canonical | None,
        detail: dict[str, Any],
        seconds: float,
    ) -> None:
        said = opinions(found if self.published else [], problem, self.benchmark) or [
            Opinions()
        ] * len(found)
        verdicts = [
            self._verdict(*reported, problem, detail, seconds / len(found))
            for reported in zip(found, said, strict=True)
        ]
        verdicts = verdicts if self.defers else rechecked(verdicts, self.adapter)
        for verdict in verdicts:
            self.report(verdict)
        if not (self.defers and only_near(verdicts)):
            reject(verdicts)

    def _verdict(
        self,
        outcome: Outcome,
        others: Opinions,
        problem: Canonical | None,
        detail: dict[str, Any],
        seconds: float,
    ) -> Verdict:
        tested = implementation_of(self.adapter, detail)
        about, ran = tested.environment(), NOTHING_YET
        dtype = self.adapter.dtypes[0] if problem is None else problem.dtype
        if outcome.comparison:
            ran = tested.proof()
        return Verdict(
            implementation=self.adapter.name,
            property=self.property_name,
            dtype=dtype,
            **self._about_case(problem),
            detail=detail,
            output=outcome.output,
            status=outcome.status,
            ratio=outcome.ratio,
            **_figures(outcome.comparison),
            message=self._message(outcome),
            digits_fewer=None if outcome.digits_fewer is None else round(outcome.digits_fewer, 2),
            published=others.published,
            benchmark=others.benchmark,
            contract=tested.contract(dtype).name if dtype in tested.dtypes else "",
            oracle=outcome.oracle,
            oracle_bits=bits_of(outcome.oracle),
            device=about.pop("device", "cpu"),
            mode=about.pop("mode", "native"),
            versions=about if ran == NOTHING_YET else {**about, "kernel": ran},
            seed=self.seed,
            duration_s=round(seconds, 4),
            replay=self._replay(problem, detail, isolated=outcome.status.takes_process),
        )

    def _about_case(self, problem: Canonical | None) -> dict[str, Any]:
        if problem is None:
            return {"op": self.adapter.op}
        case = problem.to_json()
        return {
            "op": problem.op,
            "regime": problem.regime,
            "case": problem.id,
            "problem": case,
            **sizes_of(case),
        }

    def _message(self, outcome: Outcome) -> str:
        """Where outputs come from files, those at fault are named."""
        if self.adapter.open_ended or not outcome.status.rejects:
            source = NOTHING_YET
        else:
            source = self.adapter.proof()
        return outcome.message if source == NOTHING_YET else f"{outcome.message}\n  from {source}"

    def _replay(self, problem: Canonical | None, detail: dict[str, Any], *, isolated: bool) -> str:
        words = [
            "kdaverify",
            "replay",
            "--impl",
            self.spec,
            "--property",
            self.property_name,
            *(["--isolate"] if isolated else []),
        ]
        if self.benchmark is not None:
            words += ["--benchmark", self.benchmark.spec]
        if detail:
            words += ["--detail", json.dumps(detail, sort_keys=True)]
        return shlex.join(words if problem is None else [*words, problem.to_json()])


def _figures(found: Comparison | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "statistic": found.statistic,
        "value": found.value,
        "budget": found.budget,
        "grade": found.grade,
        "worst": str(found.worst) if found.worst else "",
        "vacuous": found.vacuous,
        "peers": tuple(float(f"{ratio:.4g}") for ratio in found.peers),
    }
