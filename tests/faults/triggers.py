"""Inputs on which every fault of the catalogue shows, chosen from what its entry says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kdaverify.problems import Problem

How = Literal["call", "step", "variant", "gradients", "gradients of o", "activation", "own"]
PLAIN: dict[str, Any] = {
    "B": 1, "T": 130, "H": 1, "HV": 2, "K": 8, "V": 12, "dtype": "fp32", "seed": 0,
    "gate": "log-sigmoid", "key": "random", "beta": "uniform", "state": "random", "value": "normal",
}  # fmt: skip


@dataclass(frozen=True)
class Trigger:
    """One input.

    Args:
        how: which path is tested; "own": by a test of its own.
        fields: of the problem, beside PLAIN; of an ActivationProblem for activations.
        calls: at most so many, one of which must show it.
    """

    how: How = "call"
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    calls: int = 1

    def problem(self, dtypes: tuple[str, ...]) -> Problem:
        fields: dict[str, Any] = {
            **PLAIN,
            "dtype": PLAIN["dtype"] if PLAIN["dtype"] in dtypes else dtypes[0],
            **self.fields,
        }
        if "lengths" in self.fields:
            fields["T"] = sum(fields["lengths"]) + fields.pop("padding", 0)
        return Problem.model_validate(fields)


def _call(**fields: Any) -> Trigger:
    return Trigger("call", fields)


def _step(**fields: Any) -> Trigger:
    return Trigger("step", {"T": 1, **fields})


def _grad(**fields: Any) -> Trigger:
    return Trigger("gradients", fields)


def _often(**fields: Any) -> Trigger:
    return Trigger("call", fields, calls=60)


def _activation(**fields: Any) -> Trigger:
    return Trigger("activation", fields)


_PACK = (70, 5, 65)
_EMPTIES = (0, 70, 5, 0, 65, 0)
_STRONG = {"gate": "bound-5"}
_LONG = {"T": 2100, "gate": "slow", "beta": "sparse"}
_OWN = Trigger("own")

TRIGGERS: Mapping[str, Trigger] = {
    "GA8": _activation(op="gate_softplus", T=40, HV=2, K=4, dtype="fp32", values="uniform"),
    "GA13": _activation(op="beta_sigmoid", T=8, HV=2, dtype="fp32", values="normal"),
    "H29": _activation(op="gate_bounded", T=8, HV=2, K=4, dtype="fp32", values="normal"),
    "P1": _activation(op="l2norm", T=40, HV=2, K=8, dtype="fp32", values="mixed"),
    "P2": _activation(op="l2norm", T=40, HV=2, K=8, dtype="fp32", values="mixed"),
    "B33": _activation(op="l2norm", T=8, HV=2, K=8, dtype="fp32", values="zero"),
    "B34": _activation(op="l2norm", T=40, HV=2, K=8, dtype="fp32", values="mixed"),
    "GA2": _call(),
    "CS2": _often(),
    "CS3": _call(lengths=_PACK),
    "CS4": _call(lengths=_PACK),
    "GA22": _call(gate="hard-reset"),
    "GA4": _call(**_STRONG),
    "GA5": _call(gate="bound-20"),
    "GA15": _call(gate="zero"),
    "GA16": _call(gate="bound-20"),
    "GA17": _call(gate="spread"),
    "GA18": _call(**_STRONG),
    "GA20": _call(lengths=(40, 30), **_STRONG),
    "CS5": _call(gate="bound-100"),
    "A2": _call(gate="bound-20"),
    "A3": _call(),
    "A4": _call(),
    "A5": _call(),
    "A8": _often(),
    "A9": _call(T=70, **_STRONG),
    "A10": _call(K=32),
    "A11": _call(),
    "GA21": _grad(gate="bound-20"),
    "DESIGN-d": _call(**_STRONG),
    "DESIGN-g": _call(lengths=_PACK),
    "SO1": _call(key="coherent-0.9", beta="one", gate="slow"),
    "SO4": _call(lengths=_PACK),
    "SO5": _call(),
    "SO6": _call(),
    "WU2": _call(lengths=(16, 32, 48) * 2),
    "WU8": _often(),
    "WU9": _call(V=72),
    "GA3": _call(T=200),
    "H1": _call(),
    "H2": _call(),
    "H4": _call(lengths=_PACK),
    "H6": _call(),
    "H7": _call(gate="mild"),
    "H8": _call(),
    "H10": _call(T=129),
    "H11": Trigger("variant", {**_LONG, "T": 5000, "HV": 1, "K": 4, "V": 4, "key": "one-hot"}),
    "H12": _call(**_LONG),
    "H23": _call(),
    "H28": _call(lengths=_PACK),
    "DESIGN-a": _call(V=8, gate="spread"),
    "DESIGN-c": _call(),
    "DESIGN-e": _call(T=260, gate="slow", beta="sparse"),
    "DESIGN-h": _call(gate="slow"),
    "H13": _often(),
    "H20": _often(),
    "H21": _often(),
    "H22": _often(),
    "H24": _often(gate="spread"),
    "H25": _often(lengths=_PACK),
    "H27": _often(lengths=_PACK),
    "O1": _call(V=8),
    "O2": _call(),
    "O3": Trigger("variant"),
    "O4": _call(),
    "O5": _call(),
    "O6": _call(value="tiny", state="absent"),
    "O10": _call(lengths=_EMPTIES, padding=7),
    "B22": _call(V=64),
    "X3": _call(lengths=_EMPTIES),
    "X4": _call(B=2),
    "X5": _OWN,
    "X6": _often(),
    "X7": Trigger("variant"),
    "GA10": _step(),
    "GA12": _call(),
    "H15": _step(),
    "H16": _step(),
    "O11": Trigger("step", {"T": 1}, calls=60),
    "S8": _step(V=8),
    "S12": _step(),
    "SO8": _grad(),
    "WU7": _grad(),
    "B2": _grad(),
    "B3": _grad(),
    "B10": _OWN,
    "B17": _grad(),
    "B18": _grad(),
    "B19": Trigger("gradients", {}, calls=20),
    "B21": _grad(),
    "L6": Trigger("gradients", {"T": 70}, calls=60),
    "C1": _grad(),
    "DESIGN-f": _grad(lengths=_PACK),
    "A12": _grad(gate="bound-20"),
    "B4": _grad(**_STRONG),
    "B8": _grad(**_STRONG),
    "B9": _grad(lengths=_PACK),
    "B11": _grad(),
    "B16": _grad(T=110, **_STRONG),
    "B24": _grad(),
    "B30": _grad(),
    "V1": _call(lengths=_PACK),
    "V3": _call(lengths=_EMPTIES),
    "V4": _call(lengths=_EMPTIES),
    "V6": _call(lengths=(0, 0)),
    "V7": _call(lengths=_EMPTIES),
    "V8": _call(lengths=_PACK),
    "V9": _call(lengths=_PACK, padding=9),
    "V10": _call(lengths=_PACK),
    "V11": _call(lengths=_PACK),
    "V13": _call(lengths=_PACK, padding=9),
    "V14": _call(lengths=_PACK),
    "S3": _OWN,
    "S5": _call(T=4),
    "S10": _call(),
    "S11": _call(state="absent"),
    "S14": _call(beta="zero"),
    "S16": _call(lengths=_PACK, padding=9),
    "S17": _call(lengths=_PACK, padding=9),
    "S19": _call(lengths=_PACK),
    "S20": _call(lengths=(70, 3)),
    "S25": _call(),
    "P8": _call(lengths=_PACK, padding=9),
    "C2": _call(**_LONG),
    "DESIGN-b": _call(),
    "S15": _OWN,
    "S29": _OWN,
    "P7": _OWN,
    "S30": _OWN,
    "P9": _call(),
    "B12": _grad(lengths=_PACK, padding=9),
    "B15": Trigger("gradients of o"),
    "B25": _grad(),
    "B26": _grad(),
    "B27": _grad(T=40),
    "P6": _grad(T=2),
    "B35": _OWN,
    "S23": _OWN,
    "S26": _OWN,
    "S28": _call(),
    "L4": _OWN,
    "L8": _call(K=64, T=20),
}
"""By id."""
