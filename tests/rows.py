"""Verdicts and kernels that the tests of records, decisions,
the plugin and the command line share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kdaverify.checks.status import Status
from kdaverify.verdicts.verdict import Verdict

ROOT = Path(__file__).parent.parent

# A right kernel as a user would write it: float64 inside, one rounding of each output.
PORT = """
import kdaverify as kv
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

@kv.kernel(name="port", contract="recurrent-fp32", dtypes=("fp32", "bf16"))
def port(q, k, v, g, beta, *, scale, initial_state):
    o, final = recurrence(Inputs(q, k, v, g, beta, scale=scale, initial_state=initial_state))
    return o.to(q.dtype), final.float()
"""

# A suite whose outcome is written down, so that a test of the plugin costs no kernel and no oracle.
SUITE = """
import pytest
from kdaverify.checks.status import Status
from kdaverify.verdicts.judge import Rejected
from kdaverify.verdicts.verdict import Verdict

def report(judge, status=Status.PASS, output="o", **fields):
    name = judge.adapter.name
    found = dict(implementation=name, property=judge.property_name, status=status, output=output)
    judge.report(Verdict(**found, replay="again", **fields))
    if status.rejects:
        raise Rejected(f"{status}: {output} is off")
"""


def row(status: Status = Status.PASS, **fields: Any) -> Verdict:
    """A verdict with every field that a reader may use."""
    given: dict[str, Any] = {
        "implementation": "port",
        "property": "forward",
        "dtype": "fp32",
        "regime": "mild",
        "case": "kda-0",
        "problem": '{"op":"kda"}',
        "output": "o",
        "replay": 'kdaverify replay --impl port.py --property forward \'{"op":"kda"}\'',
    }
    return Verdict(status=status, **{**given, **fields})
