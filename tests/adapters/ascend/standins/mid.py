"""The middle revision: natural gates, o sequence-major; its public functions hide their signatures,
as the package's wrappers do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.adapters.ascend.standins.behaviour import Behaviour, chunk, recurrent

BEHAVIOUR = Behaviour()


def chunk_operator(does: Behaviour) -> Callable[..., Any]:
    """chunk_kda_fwd, with the given behaviour."""

    def npu_chunk_kda_fwd(  # noqa: PLR0917 - the vendor's signature
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

    return npu_chunk_kda_fwd


def recurrent_operator(does: Behaviour) -> Callable[..., Any]:
    """recurrent_kda, with the given behaviour."""

    def npu_recurrent_kda(  # noqa: PLR0917 - the vendor's signature
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        initial_state: Any = None,
        *,
        cu_seqlens: Any = None,
        ssm_state_indices: Any = None,
        A_log: Any = None,
        dt_bias: Any = None,
        num_accepted_tokens: Any = None,
        layout: str = "BSND",
        scale: Any = None,
        output_final_state: bool = False,
        inplace_final_state: bool = True,
        use_qk_l2norm_in_kernel: bool = False,
        use_gate_in_kernel: bool = False,
        use_beta_sigmoid_in_kernel: bool = False,
        allow_neg_eigval: bool = False,
        safe_gate: bool = False,
        lower_bound: Any = None,
        state_v_first: bool = False,
    ) -> Any:
        said = {
            "cu_seqlens": cu_seqlens,
            "ssm_state_indices": ssm_state_indices,
            "scale": scale,
            "state_v_first": state_v_first,
        }
        said |= {
            "output_final_state": output_final_state,
            "inplace_final_state": inplace_final_state,
        }
        return recurrent(does, (q, k, v, g, beta), initial_state, **said)

    return npu_recurrent_kda


def _direct(name: str) -> Any:
    """What the public wrapper's signature leads to."""
    return name


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """A public wrapper that says nothing of what it takes."""

    @functools.wraps(_direct)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def operators(does: Behaviour) -> dict[str, Any]:
    """The names of the module, with the given behaviour."""
    chunk_kda_fwd, recurrent_kda = chunk_operator(does), recurrent_operator(does)
    behind = SimpleNamespace(npu_chunk_kda_fwd=chunk_kda_fwd, npu_recurrent_kda=recurrent_kda)
    return {
        "chunk_kda_fwd": hidden(chunk_kda_fwd),
        "recurrent_kda": hidden(recurrent_kda),
        "_aclnn_ctypes": behind,
    }


_OPERATORS = operators(BEHAVIOUR)
chunk_kda_fwd, recurrent_kda, _aclnn_ctypes = (
    _OPERATORS["chunk_kda_fwd"],
    _OPERATORS["recurrent_kda"],
    _OPERATORS["_aclnn_ctypes"],
)
