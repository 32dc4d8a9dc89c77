"""Which runs of the suites are planned, and which are left after a stop."""

from __future__ import annotations

from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.conforming_kernels import CONFORMING
from kdaverify.kills.plan import Plan, chosen
from kdaverify.kills.pool import Job
from kdaverify.plugin.expected import shipped
from tests.kills.rows import ACCEPTANCE, SMOKE, attempt, conforming_row, fault_row

TESTED = tuple(chosen("H1,H2,S26"))


def test_globs_choose_faults() -> None:
    assert {fault.id for fault in chosen("SO?,GA3")} == {"SO1", "SO4", "SO5", "SO6", "SO8", "GA3"}
    assert chosen("*") == [*FAULTS.values()]


def test_everything_is_tested_under_smoke_and_conforming_kernels_under_both() -> None:
    jobs = Plan(TESTED, ACCEPTANCE, conforming=True).jobs(())
    tested = {
        (name, of, suite)
        for name in CONFORMING
        for of in (ACCEPTANCE, SMOKE)
        for suite in shipped()
    }
    assert (
        len(tested) == 2 * len(CONFORMING) * len(shipped())
        and {(job.name, job.profile, job.suite) for job in jobs if job.conforming} == tested
    )
    assert [job for job in jobs if not job.conforming] == [
        Job(fault.id, SMOKE, weaker=True) for fault in TESTED
    ]


def test_a_survivor_of_smoke_is_tested_everything_and_a_dead_one_is_not() -> None:
    plan = Plan(TESTED, ACCEPTANCE, conforming=False)
    assert plan.follow(fault_row("S26", attempt(killed=False))) == [Job("S26", ACCEPTANCE)]
    assert plan.follow(fault_row("H1")) == []
    assert plan.follow(conforming_row()) == []


def test_what_is_done_is_not_done_again() -> None:
    plan = Plan(TESTED, ACCEPTANCE, conforming=True)
    done = [
        fault_row("H1"),
        fault_row("S26", attempt(killed=False)),
        conforming_row("eager", ACCEPTANCE, suite="laws"),
    ]
    left = plan.jobs(done)
    assert Job("S26", ACCEPTANCE) in left and Job("H2", SMOKE, weaker=True) in left
    tested = {(job.name, job.profile, job.suite) for job in left}
    assert not {("H1", SMOKE, "*"), ("S26", SMOKE, "*"), ("eager", ACCEPTANCE, "laws")} & tested
    assert Job("eager", SMOKE, conforming=True, suite="laws") in left
