"""The main branch of September: as v26.9.1, with switches for what may be done inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.adapters.ascend.standins.behaviour import Behaviour, chunk
from tests.adapters.ascend.standins.mid import recurrent_operator

BEHAVIOUR = Behaviour(square=True)


def operators(does: Behaviour) -> dict[str, Callable[..., Any]]:
    """The functions of the module, with the given behaviour."""

    def chunk_kda_fwd(  # noqa: PLR0917 - the vendor's signature
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        scale: Any,
        chunk_size: int = 64,
        *,
        layout: str = "BSND",
        initial_state: Any = None,
        output_final_state: bool = False,
        cu_seqlens: Any = None,
        chunk_indices: Any = None,
        safe_gate: bool = False,
        lower_bound: Any = None,
        use_gate_in_kernel: bool = False,
        A_log: Any = None,
        dt_bias: Any = None,
        disable_recompute: bool = False,
        return_intermediate_states: bool = False,
        state_v_first: bool = False,
        epsilon: float = 1e-6,
        use_qk_l2norm_in_kernel: bool = False,
        use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False,
        use_exp2: bool = True,
    ) -> Any:
        said = {
            "layout": layout,
            "initial_state": initial_state,
            "cu_seqlens": cu_seqlens,
            "chunk_indices": chunk_indices,
        }
        results = chunk(
            does,
            (q, k, v, g, beta),
            scale=scale,
            chunk_size=chunk_size,
            **said,
            state_v_first=state_v_first,
        )
        return results[0], results[1] if output_final_state else None, *results[2:]

    return {"chunk_kda_fwd": chunk_kda_fwd, "recurrent_kda": recurrent_operator(does)}


chunk_kda_fwd, recurrent_kda = operators(BEHAVIOUR).values()
