"""Laws: relations between runs of one implementation, to the bit or within its budget (math.md 7; `kdaverify list laws`)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.laws.registry import LAWS
from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge

# A problem whose results are held against the truth costs as much as this share of one that is drawn for a single question.
JUDGED = 1 / 16
# Shorter ones show little.
SHORTEST = 3
SCALES = (None, 0.5, 1.0, 0.0883883461356163, 3.0)


@given(data=st.data())
def test_laws(judge: Judge, lawful: tuple[str, str], bounds: Bounds, data: st.DataObject) -> None:
    name, dtype = lawful
    law = LAWS[name]
    asked: Bounds = {**bounds, "max_cost": bounds["max_cost"] * (JUDGED if law.judged else 1)}
    plain = data.draw(problems(dtype=dtype, **law.draws, **asked).filter(lambda p: p.T >= SHORTEST and law.asked(p) is None))
    scaled = plain.replace(scale=data.draw(st.sampled_from(SCALES)))
    judge(plain if judge.adapter.supports(scaled) else scaled, law=name)
