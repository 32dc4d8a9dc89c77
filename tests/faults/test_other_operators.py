"""The faults of Gated DeltaNet, DeltaNet, short convolution and gated norm: each is rejected on the
case that shows it, where the same kernel without it, and other conforming ones, pass.
"""

from __future__ import annotations

import pytest

from kdaverify.adapters import find
from kdaverify.diagnosis.diagnose import diagnose
from kdaverify.diagnosis.minimise import failure
from kdaverify.faults.catalogue import FAULTS, NOT_RECREATED
from kdaverify.faults.fault import Fault
from kdaverify.faults.hosts import HOSTS, host_of
from tests.faults.other_triggers import BASES, TRIGGERS, case_of

OTHERS = tuple(fault for fault in FAULTS.values() if fault.operator in BASES)
"""Those of attention have tests of their own: tests/attention/test_faults.py."""
LEAST = 55


def named(fault: Fault) -> str:
    return fault.id


def test_of_the_survey_at_least_55_are_re_created() -> None:
    gaps = [gap for gap in NOT_RECREATED if "-" in gap.id and "attention" not in gap.id]
    surveyed = [fault for fault in OTHERS if not fault.reference.startswith("class:")]
    assert {fault.id for fault in OTHERS} == {*TRIGGERS} and len(surveyed) >= LEAST
    assert len(surveyed) + len(gaps) == 63


@pytest.mark.rotates
@pytest.mark.parametrize("fault", OTHERS, ids=named)
def test_a_fault_is_rejected_where_its_twin_passes(fault: Fault) -> None:
    case = case_of(fault, fault.dtypes[0])
    assert failure(find(f"fault:{fault.id}"), case) is not None
    assert failure(host_of(fault).right(fault), case) is None


@pytest.mark.rotates
@pytest.mark.parametrize("operator", [*BASES])
def test_conforming_kernels_pass_where_faults_show(operator: str) -> None:
    plain = [fault for fault in OTHERS if fault.operator == operator]
    for spec in HOSTS[operator].conforming:
        kernel = find(spec)
        for fault in plain[:6]:
            case = case_of(fault, kernel.dtypes[0])
            if kernel.supports(case.problem) is None:
                assert failure(kernel, case) is None, (spec, fault.id)


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["GDN-D3", "GDN-D22", "CONV-C9", "CONV-C21", "NORM-N11"])
def test_the_diagnosis_names_it_first(name: str) -> None:
    fault = FAULTS[name]
    found = diagnose(find(f"fault:{name}"), case_of(fault, fault.dtypes[0]), seconds=20.0)
    assert str(found).startswith(f"matches known bug {name}: {fault.title}")
