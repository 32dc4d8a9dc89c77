"""Cases on which the faults of the operators beside KDA show, chosen from what their entries
say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kdaverify.diagnosis.question import PropertyCase
from kdaverify.faults.fault import Fault
from kdaverify.operator import operator_named
from tests.faults.triggers import PLAIN

BASES: Final[Mapping[str, dict[str, Any]]] = {
    "gdn": {**PLAIN, "gates": "head"},
    "delta": {**PLAIN, "gates": "none", "gate": "zero"},
    "short_conv": {"B": 2, "T": 37, "D": 24, "state": "random", "bias": True},
    "gated_rms_norm": {"B": 2, "T": 9, "H": 2, "V": 24},
    "layer": {"B": 2, "T": 7, "D": 16},
}
_PACK: Final[dict[str, Any]] = {"lengths": (70, 5, 65), "T": 149}
_CONV_PACK: Final[dict[str, Any]] = {"B": 1, "lengths": (19, 2, 11, 5), "T": 37}
_STRONG: Final[dict[str, Any]] = {"gate": "bound-5"}
Case = tuple[str, dict[str, Any], dict[str, Any]]


def _forward(**fields: Any) -> Case:
    return "forward", fields, {}


def _gradients(**fields: Any) -> Case:
    return "gradients", fields, {"of": "both"}


def _decode(**fields: Any) -> Case:
    return "resume", {"T": 70, **fields}, {"cut": 66, "way": "chunk-step"}


def _activation(op: str, **fields: Any) -> Case:
    return "activations", {"op": op, "T": 40, "HV": 2, "K": 8, **fields}, {}


TRIGGERS: Final[Mapping[str, Case]] = {
    "GDN-D1": _forward(gate="zero"),
    "GDN-D2": _forward(),
    "GDN-D3": _forward(T=200, gate="slow"),
    "GDN-D5": _forward(**_STRONG),
    "GDN-D9": _forward(),
    "GDN-D25": _forward(K=32),
    "GDN-D32": _forward(),
    "GDN-D34": _forward(gate="slow"),
    "DN-D16": _gradients(),
    "GDN-D17": _gradients(),
    "GDN-D18": _gradients(K=64, **_PACK),
    # Of the gradients of one output the smallest are compared by themselves.
    "GDN-D19": (
        "jacobian",
        {
            "lengths": (4,),
            "T": 4,
            "K": 1,
            "V": 1,
            "seed": 20293,
            "gate": "mixed",
            "key": "one-hot",
            "value": "powers-of-two",
        },
        {},
    ),
    "GDN-D20": _gradients(),
    "GDN-D22": _gradients(),
    "GDN-D30": _gradients(),
    "GDN-D39": _gradients(),
    "GDN-D40": _gradients(),
    "GDN-D41": _gradients(T=90, **_STRONG),
    "GDN-D11": _forward(),
    "GDN-D14": _decode(),
    "GDN-D27": _decode(K=8, V=8),
    "GDN-D29": _activation("beta_sigmoid", K=1, values="normal"),
    "DN-D33": _decode(),
    "GDN-D36": _forward(),
    "GDN-D38": _forward(),
    "GDN-L1": _forward(lengths=(70,), T=90),
    "GDN-L2": _forward(**_PACK),
    "GDN-L3": _forward(**_PACK),
    "GDN-L4": _forward(**_PACK),
    "GDN-L6": _forward(**_PACK),
    "GDN-L8": _forward(),
    "GDN-L9": _forward(),
    "GDN-L10": _forward(**_PACK),
    "GDN-L11": _activation("l2norm", values="zero"),
    "GDN-N13": _activation("l2norm", values="mixed"),
    "GDN-L12": _forward(),
    "CONV-C1": _gradients(**_CONV_PACK),
    "CONV-C3": _forward(T=70),
    "CONV-C4": _forward(B=1, lengths=(19, 2, 13, 7), T=41),
    "CONV-C5": _forward(),
    "CONV-C6": _forward(),
    "CONV-C9": _forward(T=2),
    "CONV-C10": _forward(),
    "CONV-C11": _forward(),
    "CONV-groups": _forward(W=13),
    "CONV-C14": _forward(),
    "CONV-C15": _forward(state="absent"),
    "CONV-C17": _forward(activation="none"),
    "CONV-C20": _forward(value="deep"),
    "CONV-C21": _forward(),
    "CONV-C23": _forward(**_CONV_PACK),
    "CONV-L13": _forward(**_CONV_PACK),
    "NORM-N1": _forward(activation="sigmoid"),
    "NORM-N2": _forward(),
    "NORM-N4": _gradients(),
    "NORM-N6": _forward(),
    "NORM-N8": _forward(),
    "NORM-N11": _gradients(),
    "NORM-N14": _forward(),
    "NORM-L7": _gradients(),
    "CONV-loss": ("gradients", {"state": "random"}, {"of": "y"}),
    "CONV-tiles": _forward(T=64),
    "CONV-strides": (
        "calls",
        {"B": 1, "lengths": (5, 0, 7), "T": 12},
        {"rule": "cotangent-swapped"},
    ),
    "CONV-block": _forward(T=1030, D=2),
    "CONV-rows": _forward(B=1, T=65539, D=1, state="absent"),
    "CONV-zeros": _forward(value="zero-rows"),
    "CONV-fp16": _gradients(loss="uneven"),
    "CONV-taps": _forward(W=6),
    "CONV-square": _forward(D=4),
    "CONV-entries": _forward(B=7, T=7),
    "CONV-singles": _forward(B=1, lengths=(2, 0, 3, 1, 0, 0), T=6),
    "CONV-short": _gradients(B=21, T=2),
    "CONV-tail": _forward(T=1025, D=2),
    "CONV-bias": _forward(B=1, T=2, D=4100),
    "CONV-odd": _forward(B=1, T=2, D=131),
    "CONV-ids": _forward(B=1, lengths=(5, *(0,) * 255, 4), T=9),
    "CONV-transform": _forward(B=1, T=8192, D=2, value="spike", activation="none"),
    "NORM-wide": _forward(B=1, T=2, H=1, V=32776),
    "NORM-tiles": _forward(B=1, T=2, H=1, V=5120),
    "CONV-sums": ("calls", {}, {"rule": "long-sums-backward"}),
    "NORM-sums": ("calls", {}, {"rule": "long-sums-backward"}),
    "NORM-rows": _forward(B=1, T=65539, H=1, V=2),
    "NORM-gates": _gradients(value="zero-rows"),
    "NORM-closed": _gradients(value="closed"),
    "NORM-table": _gradients(value="deep", activation="sigmoid", V=64),
    "NORM-fp16": _gradients(loss="uneven"),
    "NORM-groups": _forward(B=1, T=4, H=1, V=256),
    "NORM-weight": _forward(B=1, T=4, H=1, V=8, value="centred-weight"),
    "NORM-square": _gradients(B=1, T=6, H=2, V=12),
    "NORM-columns": _gradients(B=1, T=72, H=1, V=12, rank=2),
    "NORM-blocks": _gradients(B=1, T=1030, H=1, V=12, rank=2),
    "NORM-views": (
        "calls",
        {"B": 1, "H": 3, "rank": 3},
        {"rule": "view-swapped-backward"},
    ),
    "NORM-graph": _gradients(B=1, T=4, H=2),
    "NORM-partials": (
        "calls",
        {"B": 1, "T": 17, "H": 3, "rank": 3},
        {"rule": "copies-after-more-backward"},
    ),
    "LAYER-fp64": ("laws", {}, {"law": "float64"}),
    "LAYER-idle": ("laws", {}, {"law": "idle-rows"}),
    "LAYER-pack": ("laws", {"B": 3}, {"law": "pack"}),
    "LAYER-pool": ("laws", {}, {"law": "living-caches"}),
    "LAYER-orders": ("laws", {"B": 3}, {"law": "reordered-twice"}),
    "LAYER-grown": ("laws", {"T": 265}, {"law": "grown-rows"}),
    "LAYER-full": ("laws", {"T": 265}, {"law": "grown-cache"}),
    "LAYER-blocks": ("laws", {"T": 530}, {"law": "left-padding-decode"}),
    "LAYER-segments": ("laws", {"T": 265}, {"law": "left-padding"}),
}
"""By id: property, fields of the problem beside those of BASES, detail."""


def case_of(fault: Fault, dtype: str, seed: int = 0) -> PropertyCase:
    """The case of a fault in a format."""
    name, fields, detail = TRIGGERS[fault.id]
    op = fields.get("op") or ("kda" if fault.operator in ("gdn", "delta") else fault.operator)
    base = {} if name == "activations" else BASES[fault.operator]
    values = {**base, "seed": seed, **fields, "dtype": dtype}
    return PropertyCase(name, operator_named(op).problem.model_validate(values), detail)
