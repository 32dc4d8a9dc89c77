"""What no option declares, by the names that ports give it, and what to do instead."""

from __future__ import annotations

from typing import Final

INSIDE: Final = (
    "it is no option: say gate='softplus' or gate='bounded'; A_log and dt_bias are passed where the"
    " signature names them"
)
NORMALISED: Final = "it is no option: say qk='l2norm'"
GROUPED: Final = "a norm is of whole rows; call the kernel with one group in the port"
MASKED: Final = "no problem has such scores; judge the kernel without it"
DECLARED_OTHERWISE: Final = (INSIDE, NORMALISED)
ADVICE: Final = {
    **dict.fromkeys(("A_log", "dt_bias", "use_gate_in_kernel"), INSIDE),
    **dict.fromkeys(("use_qk_l2norm_in_kernel", "qk_l2norm"), NORMALISED),
    **dict.fromkeys(("groups", "group_size", "num_groups"), GROUPED),
    "norm_before_gate": "the gate multiplies behind the norm; no other order is judged",
    **dict.fromkeys(
        ("window", "window_size", "sliding_window", "softcap", "soft_cap", "alibi", "bias"), MASKED
    ),
    "layout": "it has one layout; transpose in the port",
    **dict.fromkeys(
        ("max_seqlen", "max_seqs", "max_heads", "num_heads", "batch"),
        "limits of sizes are declared by supports=",
    ),
    "out": "outputs are returned; copy a buffer that you reuse",
}
"""By the name of an option that does not exist."""


def advice(name: str) -> str:
    """What to do in place of an option that does not exist; "" where nothing is known."""
    if name not in ADVICE:
        return ""
    said = "" if ADVICE[name] in DECLARED_OTHERWISE else "it cannot be declared: "
    return f"; {said}{ADVICE[name]}"
