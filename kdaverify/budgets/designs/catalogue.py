"""The designs there are. Sizes are those that they were made for: C = 64, K = V = 128, one head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kdaverify.budgets.designs.ascend import CHUNK_BACKWARD, CHUNK_STAGES, COLUMN_DECAY
from kdaverify.budgets.designs.design import Design, Mailbox
from kdaverify.budgets.designs.state_kernel import GATED, SCALED
from kdaverify.budgets.scalar_decay import BACKWARD as SCALAR_BACKWARD

C, K, V, HALF = 64, 128, 128, 64

_BACKWARD = (
    Mailbox("dv_local", C, V, "vector"), Mailbox("dAqk", C, C, "vector"),
    Mailbox("dh", K, V, "cube"), Mailbox("dv_new", C, V, "cube"), Mailbox("dw", C, K, "cube"),
    Mailbox("k_decayed", C, K, "cube"), Mailbox("dkb", C, K, "vector"),
    Mailbox("dvb", C, V, "vector"), Mailbox("dR", C, C, "cube"), Mailbox("R_dR", C, C, "cube"),
    Mailbox("dAkk", C, C, "vector"),
)  # fmt: skip
"""The designs have no backward: what passes between the cores is taken to be every factor and every
product of the backward stages."""

ASCEND_V3: Final = Design(
    "ascend_v3",
    "Ascend chunk kernel, seven phases and six transfers",
    CHUNK_STAGES,
    (
        Mailbox("K_scaled", C, K, "cube", 1),
        Mailbox("K_div", C, K, "cube", 1),
        Mailbox("Q_scaled", C, K, "cube", 1),
        Mailbox("K_decay", C, K, "cube", 1),
        Mailbox("v", C, V, "cube", 1),
        Mailbox("A_raw", C, C, "vector", 2),
        Mailbox("M", C, C, "cube", 3),
        Mailbox("U", C, V, "vector", 4),
        Mailbox("WS", C, V, "vector", 4),
        Mailbox("O_inter", C, V, "vector", 4),
        Mailbox("Aqk_raw", C, C, "vector", 4),
        Mailbox("Aqk", C, C, "cube", 5),
        Mailbox("V_pseudo", C, V, "cube", 5),
        Mailbox("O_intra", C, V, "vector", 6),
        Mailbox("S_delta", K, V, "vector", 6),
    ),
    _BACKWARD,
    kept=("q", "W"),
    backward=CHUNK_BACKWARD,
    factored=True,
)

_V2_TRANSFERS = {
    "K_scaled": 1,
    "K_div": 1,
    "v": 1,
    "A_raw": 2,
    "M": 3,
    "W": 4,
    "U": 4,
    "Q_scaled": 5,
    "WS": 6,
    "O_inter": 7,
    "Aqk_raw": 7,
    "V_pseudo": 8,
    "O_intra": 9,
    "K_decay": 10,
    "S_delta": 11,
}


def _v2() -> tuple[Mailbox, ...]:
    known = {
        mailbox.name: mailbox for mailbox in (*ASCEND_V3.mailboxes, Mailbox("W", C, K, "vector"))
    }
    return tuple(
        replace(known[name], transfer=transfer) for name, transfer in _V2_TRANSFERS.items()
    )


ASCEND_V2: Final = replace(
    ASCEND_V3,
    name="ascend_v2",
    about=(
        "the same algebra in eleven transfers: W returned to the vector core, the scores masked"
        " where they lie"
    ),
    mailboxes=_v2(),
    kept=("q", "Aqk"),
)

ASCEND_V1: Final = replace(
    ASCEND_V2,
    name="ascend_v1",
    about="as ascend_v2, the state decayed along the value axis: wrong",
    stages=COLUMN_DECAY,
    square=True,
)

TRITON_NPU_STATE: Final = Design(
    "triton_npu_state",
    "state kernel of the gated delta rule, Triton for NPU, V in halves of 64",
    GATED,
    (
        Mailbox("h", K, HALF, "cube", 1),
        Mailbox("residual", C, HALF, "vector", 2, wide=True),
        Mailbox("v_gated", C, HALF, "cube", 3),
        Mailbox("S_delta", K, HALF, "vector", 4, wide=True),
    ),
    _BACKWARD,
    buffers=2,
)

TRITON_NPU_GDN: Final = Design(
    "triton_npu_gdn",
    "the same with one gate a head alone, between kernels that decay products and no operands",
    SCALED,
    (
        Mailbox("h", K, HALF, "cube", 1),
        Mailbox("residual", C, HALF, "vector", 2, wide=True),
        Mailbox("v_decayed", C, HALF, "cube", 3),
        Mailbox("S_delta", K, HALF, "vector", 4, wide=True),
    ),
    (
        Mailbox("dv_local", C, V, "vector"),
        Mailbox("dAqk", C, C, "cube"),
        Mailbox("dh", K, V, "cube"),
        Mailbox("dv_new", C, V, "cube"),
        Mailbox("q_decayed", C, K, "cube"),
        Mailbox("dw", C, K, "cube"),
        Mailbox("dR", C, C, "cube"),
        Mailbox("R_dR", C, C, "cube"),
        Mailbox("dAkk", C, C, "cube"),
        Mailbox("beta_k", C, K, "cube"),
    ),
    backward=SCALAR_BACKWARD,
    buffers=2,
    gates="head",
)

DESIGNS: Final[Mapping[str, Design]] = {
    design.name: design
    for design in (ASCEND_V3, ASCEND_V2, ASCEND_V1, TRITON_NPU_STATE, TRITON_NPU_GDN)
}


def design(name: str) -> Design:
    """The design of that name.

    Raises:
        KeyError: there is none; the message names those there are.
    """
    if name not in DESIGNS:
        raise KeyError(f"no design named {name!r}; there are {', '.join(DESIGNS)}")
    return DESIGNS[name]
