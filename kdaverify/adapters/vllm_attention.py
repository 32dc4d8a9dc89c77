"""vLLM: its Triton decode over a paged cache and its merges of two states, native or interpreted.

Both are single files of the package; the package itself is never imported, so that a wheel or a
source tree without its dependencies will do.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import FLOATS, contracts
from kdaverify.adapters.base import NOTHING_YET, WrongKernelError, absent, versions
from kdaverify.adapters.operator_kernel import shipped

OPS: Final = Path("v1/attention/ops")
DECODE: Final = "triton_decode_attention"
MERGE: Final = "triton_merge_attn_states"
PLAIN: Final = "merge_attn_states"
SPLITS: Final = 4
INSTALL: Final = "pip install --no-deps vllm==0.33.0"
_RAN: Final[list[str]] = [NOTHING_YET]


def part_of_package(part: Path) -> Path | None:
    """Where a file or folder of the package lies; None where it does not."""
    found = util.find_spec("vllm")
    places = [] if found is None else found.submodule_search_locations or []
    return next((path for path in (Path(place) / part for place in places) if path.exists()), None)


def _missing() -> str | None:
    lacking = absent(("vllm", "triton"), INSTALL)
    if lacking or torch.cuda.is_available():
        return lacking
    from kdaverify.adapters.triton_interpreter import missing

    return missing()


@functools.cache
def _interpreter() -> Any:
    from kdaverify.adapters.triton_interpreter import activate

    return activate(backend="cuda")


@functools.cache
def _module(name: str) -> ModuleType:
    """One file of the package."""
    path = part_of_package(OPS / f"{name}.py")
    assert path is not None
    spec = util.spec_from_file_location(f"kdaverify_vllm_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    with _stand_ins():
        spec.loader.exec_module(module)
    return module


@contextmanager
def _stand_ins() -> Generator[None]:
    """The two modules of the package that these files import, reduced to what they read there."""
    import triton
    import triton.language as tl

    platform = SimpleNamespace(
        is_rocm=lambda: False, is_cpu=lambda: True, fp8_dtype=lambda: torch.float8_e4m3fn
    )
    stand_ins: dict[str, Any] = {
        "vllm": ModuleType("vllm"),
        "vllm.platforms": _holding(current_platform=platform),
        "vllm.triton_utils": _holding(triton=triton, tl=tl),
    }
    kept = {name: sys.modules.get(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, before in kept.items():
            sys.modules.pop(name)
            if before is not None:
                sys.modules[name] = before


def _holding(**values: Any) -> ModuleType:
    module = ModuleType("stand-in")
    vars(module).update(values)
    return module


def _watched(name: str, dtype: torch.dtype, call: Callable[[ModuleType], None]) -> None:
    """Calls a file's kernels; which of them ran is remembered where they are interpreted."""
    if torch.cuda.is_available():
        call(_module(name))
        _RAN[0] = f"{name}, native"
        return
    interpreter = _interpreter()
    if dtype == torch.bfloat16 and interpreter.bf16 is not None:
        raise WrongKernelError(interpreter.bf16)
    interpreter.forget()
    call(_module(name))
    ran = [kernel.rpartition(".")[2] for kernel in interpreter.kernels_run()]
    _RAN[0] = f"{name}: {', '.join(ran) or 'no kernel'}, interpreted"


def _decode(
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    *,
    d_v: int,
    softmax_scale: float,
) -> tuple[Tensor, Tensor]:
    """One query token a request; V is a view of the cache."""
    B, _, H, _ = q.shape
    o = q.new_empty(B, H, d_v)
    lse = q.new_empty(B, H, dtype=torch.float32)
    partials = q.new_empty(B, H, SPLITS, d_v + 1, dtype=torch.float32)

    def call(module: ModuleType) -> None:
        module.decode_attention_fwd(
            q[:, 0],
            cache,
            cache[..., :d_v],
            o,
            lse,
            block_table,
            cache_seqlens,
            partials,
            SPLITS,
            softmax_scale,
            cache.shape[1],
            is_mla=True,
        )

    _watched(DECODE, q.dtype, call)
    return o[:, None], lse[..., None]


def _merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    o, lse = torch.empty_like(o_a), torch.empty_like(lse_a)

    def call(module: ModuleType) -> None:
        module.merge_attn_states(o, o_a, lse_a, o_b, lse_b, lse)

    _watched(MERGE, o.dtype, call)
    return o, lse


def _plain_merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """The function of torch that takes over on a CPU."""
    o, lse = torch.empty_like(o_a), torch.empty_like(lse_a)
    merge = _module(PLAIN)._merge_attn_states_torch  # noqa: SLF001
    merge(o, o_a, lse_a, o_b, lse_b, lse)
    _RAN[0] = f"{PLAIN}, torch"
    return o, lse


def _one_query(problem: Any) -> str | None:
    return None if problem.s_q == 1 else "one query token: the kernel has no more a request"


def _environment() -> dict[str, str]:
    mode = "native" if torch.cuda.is_available() else "interpreted"
    return {**versions("triton"), "vllm": version(unknown="a source tree"), "mode": mode}


def version(*, unknown: str) -> str:
    """That of the package; `unknown` where parts of it lie there alone."""
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return unknown


_adapter = functools.partial(
    shipped,
    dtypes=FLOATS,
    device="cuda" if torch.cuda.is_available() else "cpu",
    isolate=True,  # its kernels can take their process with them
    gradients=False,
    proof=lambda: _RAN[0],
    environment=_environment,
    missing=_missing,
)
DECODE_KERNEL: Final = _adapter(
    "mla_decode",
    _decode,
    "vllm-triton-decode",
    contract=contracts(f"online32-{{0}}[splits:{SPLITS}]"),
    supports=_one_query,
)
MERGE_KERNEL: Final = _adapter("merge_state", _merge, "vllm-triton-merge")
PLAIN_MERGE: Final = _adapter("merge_state", _plain_merge, "vllm-torch-merge")
