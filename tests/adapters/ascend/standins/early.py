"""The early revision: gates summed over the chunk in log2, o in the layout of the inputs, empty
tensors for what is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.adapters.ascend.standins.behaviour import Behaviour, chunk

BEHAVIOUR = Behaviour(gate="summed log2", o_as_inputs=True)


def operators(does: Behaviour) -> dict[str, Callable[..., Any]]:
    """The functions of the module, with the given behaviour."""

    def chunk_kda_fwd(  # noqa: PLR0917 - the vendor's signature
        q: Any,
        k: Any,
        v: Any,
        gk: Any,
        beta: Any,
        scale: Any,
        chunk_size: Any,
        *,
        layout: str = "BSND",
        initial_state: Any = None,
        output_final_state: bool = False,
        cu_seqlens: Any = None,
        chunk_indices: Any = None,
        return_intermediate: bool = False,
        safe_gate: bool = False,
        transpose_state_layout: bool = False,
    ) -> Any:
        if safe_gate or transpose_state_layout or (layout == "TND" and q.shape[1] > 1):
            raise RuntimeError(
                "safe_gate, transpose_state_layout, or TND with H > 1 is not supported"
            )
        said = {
            "layout": layout,
            "initial_state": initial_state,
            "cu_seqlens": cu_seqlens,
            "chunk_indices": chunk_indices,
        }
        o, final_state, *_ = chunk(
            does,
            (q, k, v, gk, beta),
            scale=scale,
            chunk_size=chunk_size,
            **said,
            state_v_first=False,
        )
        empty = q.new_empty(0)
        return o, final_state if output_final_state else empty, gk.float(), *(empty,) * 9

    return {"chunk_kda_fwd": chunk_kda_fwd}


chunk_kda_fwd = operators(BEHAVIOUR)["chunk_kda_fwd"]
