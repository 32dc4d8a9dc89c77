"""A probe: a problem on which a single rounding decision is visible, and how it is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from kdaverify.problems.axes import DTYPES
from kdaverify.problems.problem import Problem

Measure = Literal["spacing", "memory", "update", "bias"]

ROWS = 16
COLUMNS = 8


@dataclass(frozen=True)
class Probe:
    """A named question to one rounding.

    Args:
        name: unique; `kdaverify list probes` and the detail of a verdict say it.
        about: what the problem is, and what a right kernel gives.
        exposes: the fault classes it shows, with ids of the fault catalogue.
        problem: in one of `dtypes`.
        measures: how errors are measured beside the usual statistics; names of `budgets.measures`.
        dtypes: types it is tested in: those whose roundings the fault can be distinguished from.
        cut: the token at which the run is cut and resumed from its saved state; None for one run.
        exponent: of the power of two that v and S_0 are scaled by in a second run, which must give
            the same bits; 0 for one run.
        profile: the smallest profile that tests it.
    """

    name: str
    about: str
    exposes: str
    problem: Problem
    measures: tuple[Measure, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    cut: int | None = None
    exponent: int = 0
    profile: str = "smoke"

    def of(self, problem: Problem) -> Probe:
        """The same probe of its problem in another dtype, or at other widths."""
        return replace(self, problem=problem)


def posed(*, lengths: tuple[int, ...] | None = None, **fields: Any) -> Problem:
    """A narrow problem of one head, exact in every format by default:
    one-hot keys, beta 1, no decay, dyadic values.
    """
    plain: dict[str, Any] = {
        "B": 1, "H": 1, "HV": 1, "K": ROWS, "V": COLUMNS, "dtype": "bf16", "seed": 0,
        "gate": "zero", "key": "one-hot", "beta": "one", "state": "absent", "value": "dyadic",
    }  # fmt: skip
    sizes: dict[str, Any] = {} if lengths is None else {"T": sum(lengths), "lengths": lengths}
    return Problem(**{**plain, **sizes, **fields})
