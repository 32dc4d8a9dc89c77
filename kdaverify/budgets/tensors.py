"""Every pipeline's named tensors, stage by stage: what may have a storage format."""

from __future__ import annotations

from typing import Final, NamedTuple


class StageTensors(NamedTuple):
    """A stage and what it stores.

    Args:
        stage: its name; that of the oracle's stage for the chunk form.
        every: stored by every kernel, in order.
        some: stored only by those that factor decays, take the residual form, round first or form
            maps of the state.
    """

    stage: str
    every: tuple[str, ...]
    some: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.every, *self.some)


class Pipeline(NamedTuple):
    """What a form stores, there and back."""

    forward: tuple[StageTensors, ...]
    backward: tuple[StageTensors, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, once."""
        return tuple(
            dict.fromkeys(name for stage in (*self.forward, *self.backward) for name in stage.names)
        )


CHUNK: Final = Pipeline(
    forward=(
        StageTensors("cumsum", ("G",)),
        StageTensors("scores", ("Aqk", "Akk"), ("factor", "q_in", "k_in", "k_out")),
        StageTensors("solve", ("R",)),
        StageTensors("wy", ("beta_k_wy", "kb", "w", "vb", "u", "qg", "kg"), ("k_back",)),
        StageTensors(
            "state", ("h", "v_new", "S"), ("residual", "prediction", "rounded_beta", "M", "C")
        ),
        StageTensors("output", ("o",), ("o_part",)),
    ),
    backward=(
        StageTensors("dv_local", ("dv_local",)),
        StageTensors("dA", ("dAqk",)),
        StageTensors("state_bwd", ("dh", "dv_new", "dS_o", "dS"), ("do_scaled",)),
        StageTensors("dqkwg", ("dq_state", "dk_state", "dw", "h_dh", "dG_state")),
        StageTensors(
            "wy_bwd",
            ("k_decayed", "dkb", "dvb", "dv", "dbeta_wy", "dk_wy", "dG_wy", "dR", "R_dR", "dAkk"),
        ),
        StageTensors("intra_bwd", ("beta_k", "dbeta", "dG", "dq_head", "dk_head", "dq", "dk")),
        StageTensors("cumsum_bwd", ("dg",)),
    ),
)

SCALAR_DECAY: Final = Pipeline(
    forward=(
        StageTensors("cumsum", ("G",)),
        StageTensors("scores", ("Akk",)),
        StageTensors("solve", ("R",)),
        StageTensors("wy", ("beta_k_wy", "kb", "w", "vb", "u")),
        StageTensors("state", ("h", "v_new", "v_decayed", "S"), ("residual", "kg", "M", "C")),
        StageTensors("output", ("Aqk", "o")),
    ),
    backward=(
        StageTensors("dv_local", ("Aqk", "dv_local")),
        StageTensors("dA", ("dAqk",)),
        StageTensors("state_bwd", ("dh", "dv_new", "q_decayed", "dS"), ("do_scaled",)),
        StageTensors("dqkwg", ("dw", "h_dh", "dG", "dq_done", "dk_part")),
        StageTensors(
            "wy_bwd",
            (
                "kb", "vb", "dR", "R_dR", "dAkk", "dv", "dbeta_wy", "dbeta", "kb_gate", "dk_w",
                "beta_k", "dk_wy", "dq", "dk",
            ),
        ),
        StageTensors("cumsum_bwd", ("dg",)),
    ),
)  # fmt: skip
"""Where channels share a gate: dq_done is dq of a value head, dk_part its dk but for what passes
through w and u, dk_w and dk_wy that; kb_gate is kb where the gradient of the gate reads it."""

RECURRENT: Final = Pipeline(
    forward=(StageTensors("token", ("decayed", "p", "u", "S", "o")),),
    backward=(
        StageTensors(
            "token_bwd", ("P", "dp", "dv", "dbeta", "dq_head", "dk_head", "dg", "dS", "dq", "dk")
        ),
    ),
)

PIPELINES: Final = {"chunk": CHUNK, "scalar decay": SCALAR_DECAY, "recurrent": RECURRENT}
