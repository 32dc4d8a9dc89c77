"""Options: in-kernel gates, normalisation,
other chunk sizes and state orders give what the plain call gives.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.adapters.fitting import fitted
from kdaverify.checks.forward import variant_of
from kdaverify.problems import Bounds, Problem, problems
from kdaverify.problems.drift_probes import MEASURED
from kdaverify.problems.probes import PROBES
from kdaverify.verdicts.judge import Judge

# What every option can express: gates an activation reaches, beta a sigmoid reaches.
GATES = ("log-sigmoid", "slow", "mild")
# What a softplus makes of normal logits, and what a gate bounded by -5 can make too.
ORDINARY = ("log-sigmoid", "mild")
PLAIN = Problem.model_validate(
    {"B": 1, "T": 20, "H": 1, "HV": 2, "K": 16, "V": 16, "dtype": "fp32", "seed": 0}
    | {
        "gate": "log-sigmoid",
        "key": "random",
        "beta": "uniform",
        "state": "random",
        "value": "normal",
    }
)
# Eight chunks and a token, so that what is lost between two of them adds up; two for interpreted
# kernels.
TOKENS, INTERPRETED = 513, 129


@given(data=st.data())
def test_options(
    judge: Judge, dtype: str, variant: str, bounds: Bounds, data: st.DataObject
) -> None:
    judge(data.draw(problems(dtype=dtype, gate=GATES, beta="uniform", **bounds)), variant=variant)


def test_options_on_ordinary_gates(judge: Judge, dtype: str, variant: str) -> None:
    # Smoke's two draws may both have weak gates: a softplus that is linear from 1 passed them, off
    # by 5e5 of what is allowed on these.
    adapter = judge.adapter
    tested = [fitted(adapter, PLAIN.replace(dtype=dtype, gate=gate)) for gate in ORDINARY]
    option = variant_of(adapter, variant)
    judge(
        next((problem for problem in tested if option.supports(problem) is None), tested[0]),
        variant=variant,
    )


def test_options_keep_a_memory_from_chunk_to_chunk(judge: Judge, variant: str) -> None:
    adapter = judge.adapter
    narrowest = next((dtype for dtype in MEASURED if dtype in adapter.dtypes), adapter.dtypes[0])
    tokens = INTERPRETED if adapter.environment()["mode"] == "interpreted" else TOKENS
    judge(
        fitted(adapter, PROBES["long-memory"].problem.replace(T=tokens, dtype=narrowest)),
        variant=variant,
    )
