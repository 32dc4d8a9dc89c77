"""Whether conforming kernels pass the test that rejected a fault: only that is a kill."""

from __future__ import annotations

from collections.abc import Sequence

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.registry import find
from kdaverify.checks.borderline import RetestFinding
from kdaverify.checks.forward import implementation_of
from kdaverify.checks.status import Status
from kdaverify.kills.known_faults import KnownFault
from kdaverify.operator import problem_from_json
from kdaverify.verdicts.judge import FatalRejection, Judge, Rejected
from kdaverify.verdicts.verdict import Verdict

BROKEN = (Status.ERROR, Status.CRASH, Status.HANG, Status.OOM)
CALL = "call"


def retested(adapter: Adapter, failed: Verdict, spec: str = "") -> list[Verdict]:
    """An implementation's verdicts on another's test, borderline ones again; or none."""
    reported = list[Verdict]()
    judge = Judge(
        adapter,
        reported.append,
        failed.property,
        spec=spec or None,
        seed=failed.seed,
        published=False,
    )
    try:
        implementation_of(adapter, failed.detail)
    except ValueError:
        return reported
    try:
        if not failed.problem:
            judge.conventions()
        else:
            judge(problem_from_json(failed.problem), **failed.detail)
    except (Rejected, FatalRejection):
        pass
    return reported


class ConformingControls:
    """The conforming kernels, and what of a fault's rejections they let stand.

    Args:
        fault: its twin, the kernel that differs from it in nothing else, must pass too.
        specs: of the others, as `--impl` names them; None: those that the fault names.
    """

    def __init__(self, fault: KnownFault, specs: Sequence[str] | None = None) -> None:
        self.fault, self.twin = fault, fault.twin()
        self.others = [find(spec) for spec in (fault.conforming if specs is None else specs)]

    def objection(self, verdict: Verdict) -> str:
        """Why a rejection of the fault is no kill; "" if it is one."""
        about = f"{verdict.property} {verdict.dtype} {verdict.output} {verdict.status}"
        if verdict.recheck is not None and verdict.recheck.finding is not RetestFinding.CONFIRMED:
            return f"{about}: a borderline failure that no fresh seed confirms"
        if verdict.status in BROKEN and CALL not in self.fault.outputs:
            return f"{about}: the call breaks, and the fault does not say so: {verdict.headline()}"
        if verdict.status in (Status.ORACLE_UNCERTIFIED, Status.WRONG_KERNEL):
            return f"{about}: nothing was compared: {verdict.headline()}"
        return self._rejected_too(verdict, about)

    def _rejected_too(self, verdict: Verdict, about: str) -> str:
        for kernel in (self.twin, *self.others):
            found = retested(kernel, verdict)
            wrong = [reported for reported in found if reported.status.rejects]
            if wrong:
                return (
                    f"{about}: {kernel.name} is rejected too: {wrong[0].headline()};"
                    f" {verdict.replay}"
                )
            if kernel is self.twin and not any(
                reported.status is Status.PASS for reported in found
            ):
                return (
                    f"{about}: the kernel without the fault is not judged on it; {verdict.replay}"
                )
        return ""
