"""Options: in-kernel gates, normalisation, other chunk sizes and state orders give what the plain call gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.adapters.fitting import fitted
from kdaverify.problems import Bounds, problems
from kdaverify.problems.drift_probes import MEASURED
from kdaverify.problems.probes import PROBES
from kdaverify.verdicts.judge import Judge

# What every option can express: gates an activation reaches, beta a sigmoid reaches.
GATES = ("log-sigmoid", "slow", "mild")
# Eight chunks and a token, so that what is lost between two of them adds up; two for interpreted kernels.
TOKENS, INTERPRETED = 513, 129


@given(data=st.data())
def test_options(judge: Judge, dtype: str, variant: str, bounds: Bounds, data: st.DataObject) -> None:
    judge(data.draw(problems(dtype=dtype, gate=GATES, beta="uniform", **bounds)), variant=variant)


def test_options_keep_a_memory_from_chunk_to_chunk(judge: Judge, variant: str) -> None:
    adapter = judge.adapter
    narrowest = next((dtype for dtype in MEASURED if dtype in adapter.dtypes), adapter.dtypes[0])
    tokens = INTERPRETED if adapter.environment()["mode"] == "interpreted" else TOKENS
    judge(fitted(adapter, PROBES["long-memory"].problem.replace(T=tokens, dtype=narrowest)), variant=variant)
