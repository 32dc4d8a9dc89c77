"""What a verdict says of the kernel that ran."""

from __future__ import annotations

from kdaverify.adapters import find
from kdaverify.operators.pointwise.cases import activation_panel
from kdaverify.verdicts.judge import Judge
from kdaverify.verdicts.verdict import Verdict
from tests.verdicts.louder import PROBLEM


def test_the_kernel_is_named_where_one_ran() -> None:
    found: list[Verdict] = []
    Judge(find("eager"), found.append, "forward")(PROBLEM)
    assert all(verdict.versions["kernel"].startswith("oracles in torch") for verdict in found)
    found.clear()
    Judge(find("eager"), found.append, "activations")(activation_panel("usual", "l2norm", "fp32"))
    assert found and all(verdict.versions and "kernel" not in verdict.versions for verdict in found)
