"""The public stage functions of flash-linear-attention by name and parameter.

FLA's names for our tensors (`oracles.stages`, `oracles.backward_stages`):
    A of the WY functions, and the Akk that the intra function returns, is R, the inverse; A of the
    others is Aqk. k of the state is kg, q of its backward qg; v of the output, of dA and of dv is
    v_new. g and gk are G in base 2, multiplied by 1 / ln 2 when it is made. dg is the gradient of G
    in natural logarithms all the same. dAqk has the scale in it, dAkk is the gradient of the
    system, not of its inverse; both are fp32. dv is dv_local before the state's backward, dv_new
    after it (du of the WY function), and dv after the WY function. dq, dk, db and dg grow from
    function to function, in fp32; dq and dk belong to a value head and are summed by the caller.

Of the gated delta rule g is G, k of the state and q of its backward are the call's own, and every
function of the backward returns a part, which the caller adds to the others; dq and dk are summed
over the value heads of a key head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from kdaverify.adapters.stages import StageArguments
from kdaverify.budgets.stage_forms import CHANNEL, HEAD, StageForm

LOG2_E: Final = 1 / math.log(2)
Setting = Callable[[StageArguments], Any]


@dataclass(frozen=True)
class StageFunction:
    """One of FLA's stage functions.

    Args:
        name, module: its name, and the module of FLA that holds it.
        covers: the stages it computes.
        tensors: parameter -> the tensor handed to it.
        gives: the tensors it returns, in order.
        settings: parameter -> what else it is handed, whether or not it has a default.
        needs: parameters without which a function of that name is another one.
        form: how the pipeline is cut, of which it is a part.
    """

    name: str
    module: str
    covers: tuple[str, ...]
    tensors: Mapping[str, str]
    gives: tuple[str, ...]
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])
    needs: tuple[str, ...] = ()
    form: StageForm = CHANNEL


def always(value: Any) -> Setting:
    return lambda _: value


FUNCTIONS: Final[Mapping[str, StageFunction]] = {
    "cumsum": StageFunction("chunk_local_cumsum", "fla.ops.utils", ("cumsum",), {"g": "g"}, ("G",),
                            {"scale": always(LOG2_E), "output_dtype": always(torch.float32)}),
    "intra": StageFunction("chunk_kda_fwd_intra", "fla.ops.kda.chunk_intra",
                           ("scores", "solve", "wy"),
                           {"q": "q", "k": "k", "v": "v", "gk": "G", "beta": "beta"},
                           ("w", "u", "qg", "kg", "Aqk", "R"),
                           {"disable_recompute": always(value=True)}),
    "wy": StageFunction("recompute_w_u_fwd", "fla.ops.kda.wy_fast", ("wy",),
                        {"k": "k", "v": "v", "beta": "beta", "A": "R", "gk": "G", "q": "q"},
                        ("w", "u", "qg", "kg")),
    "state": StageFunction("chunk_gated_delta_rule_fwd_h", "fla.ops.common.chunk_delta_h",
                           ("state",),
                           {"k": "kg", "w": "w", "u": "u", "gk": "G",
                            "initial_state": "initial_state"}, ("h", "v_new", "final_state"),
                           {"output_final_state": always(value=True)}),
    "output": StageFunction("chunk_gla_fwd_o_gk", "fla.ops.gla.chunk", ("output",),
                            {"q": "q", "v": "v_new", "g": "G", "A": "Aqk", "h": "h"}, ("o",)),
    "solve": StageFunction("solve_tril", "fla.ops.utils.solve_tril", ("solve",), {"A": "Akk"},
                           ("R",), {"output_dtype": lambda x: x.formats("R").dtype}),
}  # fmt: skip
"""FLA's stage functions by the name of the stage they make, in the order in which a forward calls
them; solve_tril stands apart."""

BACKWARD_FUNCTIONS: Final[Mapping[str, StageFunction]] = {
    "dAv": StageFunction("chunk_kda_bwd_dAv", "fla.ops.kda.chunk_bwd", ("dv_local", "dA"),
                         {"q": "q", "k": "k", "v": "v_new", "do": "do", "A": "Aqk"},
                         ("dAqk", "dv_local")),
    "dv_local": StageFunction("chunk_bwd_dv_local", "fla.ops.common.chunk_o", ("dv_local",),
                              {"q": "q", "k": "k", "do": "do", "A": "Aqk"}, ("dv_local",)),
    "dA": StageFunction("chunk_gla_bwd_dA", "fla.ops.gla.chunk", ("dA",),
                        {"v": "v_new", "do": "do"}, ("dAqk",)),
    "state_bwd": StageFunction(
        "chunk_gated_delta_rule_bwd_dhu",
        "fla.ops.common.chunk_delta_h",
        ("state_bwd",),
        {
            "q": "qg",
            "k": "kg",
            "w": "w",
            "do": "do",
            "dv": "dv_local",
            "gk": "G",
            "dht": "d_final_state",
        },
        ("dh", "d_initial_state", "dv_new"),
        # Without an initial state its gradient is not returned.
        {"h0": lambda x: x.inputs.state},
    ),
    "wy_dqkg": StageFunction("chunk_kda_bwd_wy_dqkg_fused", "fla.ops.kda.chunk_bwd",
                             ("dqkwg", "wy_bwd"),
                             {"q": "q", "k": "k", "v": "v", "v_new": "v_new", "g": "G",
                              "beta": "beta", "A": "R", "h": "h", "do": "do", "dh": "dh",
                              "dv": "dv_new"},
                             ("dq_state", "dk_wy", "dv", "dbeta_wy", "dG_wy", "dAkk")),
    "dqkwg": StageFunction("chunk_kda_bwd_dqkwg", "fla.ops.kda.chunk_inter", ("dqkwg",),
                           {"q": "q", "k": "k", "w": "w", "v": "v_new", "h": "h", "g": "G",
                            "do": "do", "dh": "dh", "dv": "dv_new"},
                           ("dq_state", "dk_state", "dw", "dG_state")),
    "wy_bwd": StageFunction("prepare_wy_repr_bwd", "fla.ops.kda.wy_fast", ("wy_bwd",),
                            {"k": "k", "v": "v", "beta": "beta", "gk": "G", "A": "R",
                             "dk": "dk_state", "dw": "dw", "du": "dv_new", "dg": "dG_state"},
                            ("dk_wy", "dv", "dbeta_wy", "dG_wy", "dAkk")),
    "intra_bwd": StageFunction("chunk_kda_bwd_intra", "fla.ops.kda.chunk_intra", ("intra_bwd",),
                               {"q": "q", "k": "k", "g": "G", "beta": "beta", "dAqk": "dAqk",
                                "dAkk": "dAkk", "dq": "dq_state", "dk": "dk_wy", "db": "dbeta_wy",
                                "dg": "dG_wy"}, ("dq_head", "dk_head", "dbeta", "dG")),
    "cumsum_bwd": StageFunction("chunk_local_cumsum", "fla.ops.utils", ("cumsum_bwd",), {"g": "dG"},
                                ("dg",),
                                {"reverse": always(value=True), "scale": always(None),
                                 "output_dtype": always(torch.float32)}, needs=("reverse",)),
}  # fmt: skip
"""Those of the backward, in the order of the dataflow. A backward of 0.6.0 calls dAv, state_bwd,
wy_dqkg, intra_bwd and cumsum_bwd; dqkwg was its function before 0.5 and is there in ports only, and
dv_local, dA and wy_bwd stand apart."""

ALL_FUNCTIONS: Final[Mapping[str, StageFunction]] = {**FUNCTIONS, **BACKWARD_FUNCTIONS}


def _of_heads(
    name: str, module: str, covers: tuple[str, ...], tensors: str, gives: str, **settings: Setting
) -> StageFunction:
    """A function of the gated delta rule.

    Args:
        tensors: parameters and what they get, as in "q, dv=dv_new"; gives: what it returns.
    """
    pairs = [pair.partition("=") for pair in tensors.split(", ")]
    handed = {parameter: tensor or parameter for parameter, _, tensor in pairs}
    returned = tuple(gives.split(", "))
    home = f"fla.ops.{module}"
    return StageFunction(name, home, covers, handed, returned, settings, ("g",), HEAD)


HEAD_FUNCTIONS: Final[Mapping[str, StageFunction]] = {
    "cumsum": replace(FUNCTIONS["cumsum"], form=HEAD),
    "intra": _of_heads("chunk_gated_delta_rule_fwd_intra", "gated_delta_rule.chunk_fwd",
                       ("scores", "solve", "wy"), "k, v, g=G, beta", "w, u, R"),
    "kkt": _of_heads("chunk_scaled_dot_kkt_fwd", "common.chunk_scaled_dot_kkt", ("scores",),
                     "k, g=G, beta", "Akk", output_dtype=always(torch.float32)),
    "solve": replace(FUNCTIONS["solve"], form=HEAD),
    "wy": _of_heads("recompute_w_u_fwd", "gated_delta_rule.wy_fast", ("wy",),
                    "k, v, beta, A=R, g=G", "w, u"),
    "state": _of_heads("chunk_gated_delta_rule_fwd_h", "common.chunk_delta_h", ("state",),
                       "k, w, u, g=G, initial_state", "h, v_new, final_state",
                       output_final_state=always(value=True)),
    "output": _of_heads("chunk_fwd_o", "common.chunk_o", ("output",), "q, k, v=v_new, h, g=G", "o"),
    "dv_local": _of_heads("chunk_bwd_dv_local", "common.chunk_o", ("dv_local",), "q, k, do, g=G",
                          "dv_local"),
    "state_bwd": _of_heads("chunk_gated_delta_rule_bwd_dhu", "common.chunk_delta_h", ("state_bwd",),
                           "q, k, w, do, dv=dv_local, g=G, dht=d_final_state",
                           "dh, d_initial_state, dv_new", h0=lambda x: x.inputs.state),
    "dqkwg": _of_heads("chunk_bwd_dqkwg", "common.chunk_o", ("dqkwg",),
                       "q, k, v=v_new, do, h, dh, w, g=G, dv=dv_new", "dq, dk_done, dw, dG_part"),
    "wy_bwd": _of_heads("prepare_wy_repr_bwd", "gated_delta_rule.wy_fast", ("wy_bwd",),
                        "k, v, beta, A=R, dw, du=dv_new, g=G", "dk_added, dv, dbeta, dG_wy"),
    "cumsum_bwd": replace(BACKWARD_FUNCTIONS["cumsum_bwd"], form=HEAD),
}  # fmt: skip
"""Those of the gated delta rule, in the order of the dataflow."""
