"""Parts of vLLM that run without it: single modules of its wheel, native or interpreted.

The package itself is never imported, so that a wheel or a source tree without its dependencies will
do.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from importlib import metadata, util
from itertools import accumulate
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import FLOATS
from kdaverify.adapters.base import NOTHING_YET, WrongKernelError, versions
from kdaverify.adapters.operator_kernel import shipped
from kdaverify.adapters.triton_device import FIRST, spy
from kdaverify.adapters.triton_interpreter import kernels_missing

Returned = TypeVar("Returned")

PACKAGE: Final = "vllm"
INSTALL: Final = "pip install --no-deps vllm==0.33.0"
NATIVE: Final = torch.cuda.is_available()
_RAN: Final[list[str]] = [NOTHING_YET]
_LOADED: Final[dict[str, ModuleType]] = {}
"""Modules of the package and stand-ins, kept out of `sys.modules` between two imports: elsewhere
the package is there, or not, as it is installed."""


def part_of_package(part: Path) -> Path | None:
    """Where a file or folder of the package lies; None where it does not."""
    found = util.find_spec(PACKAGE)
    places = [] if found is None else found.submodule_search_locations or []
    return next((path for path in (Path(place) / part for place in places) if path.exists()), None)


def missing(*beside: str) -> str | None:
    """Why its Triton kernels cannot run here, native or interpreted; None if they can.

    Args:
        beside: what a module imports of other packages.
    """
    modules, install = (PACKAGE, "triton", *beside), " ".join((INSTALL, *beside))
    return kernels_missing(modules, install, native=NATIVE)


@functools.cache
def _interpreter() -> Any:
    from kdaverify.adapters.triton_interpreter import activate

    return activate(backend="cuda")


@functools.cache
def module(name: str) -> ModuleType:
    """One module of the package, by its dotted name within it, and those that it imports."""
    places = {part: part_of_package(Path(*part.split("."))) for part in _parents(name)}
    with _alone(places):
        return importlib.import_module(f"{PACKAGE}.{name}")


def _parents(name: str) -> list[str]:
    return [*accumulate(name.split(".")[:-1], "{}.{}".format)]


@contextmanager
def _alone(places: dict[str, Path | None]) -> Generator[None]:
    """Imports see folders in place of packages, so that no `__init__` runs, and stand-ins."""
    folders = {f"{PACKAGE}.{name}": _folder(place) for name, place in places.items()}
    kept = _taken_out()
    sys.modules.update({PACKAGE: _folder(None), **_stand_ins(), **folders, **_LOADED})
    try:
        yield
    finally:
        _LOADED.update(_taken_out())
        sys.modules.update(kept)


def _taken_out() -> dict[str, ModuleType]:
    own = [n for n in sys.modules if n == PACKAGE or n.startswith(f"{PACKAGE}.")]
    return {name: sys.modules.pop(name) for name in own}


def _stand_ins() -> dict[str, ModuleType]:
    """What these modules import of the rest of the package, reduced to what they read there."""
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    gpu = NATIVE
    platform = SimpleNamespace(
        is_rocm=lambda: False,
        is_cpu=_never,  # its kernels are wanted, not what takes over there
        is_cuda_alike=lambda: gpu,
        is_device_capability=_never,
        has_device_capability=_never,
        is_arch_support_pdl=_never,
        fp8_dtype=lambda: torch.float8_e4m3fn,
    )
    values: dict[str, dict[str, Any]] = {
        "platforms": {"current_platform": platform},
        "triton_utils": {"triton": triton, "tl": tl, "tldevice": libdevice},
        "utils.gpu_sync_debug": {"gpu_sync_allowed": nullcontext},
        "utils.math_utils": {
            "RCP_LN2": 1.4426950216293335,
            "cdiv": triton.cdiv,
            "next_power_of_2": triton.next_power_of_2,
        },
        "utils.platform_utils": {"num_compute_units": _compute_units},
        "utils.torch_utils": {"async_tensor_h2d": _moved},
        "model_executor.custom_op": {"CustomOp": _CustomOp},
        "model_executor.warmup.jit_warmup": {"VllmJitKernel": _JitKernel},
        "model_executor.warmup.jit_warmup_triton_helper": dict.fromkeys(
            ("TritonPointerInputVariant", "TritonWarmupTensor", "triton_scalar_specialization_rep")
        ),
        "v1.attention.backends.utils": {"NULL_BLOCK_ID": 0, "PAD_SLOT_ID": -1},
    }
    parents = {parent: dict[str, Any]() for name in values for parent in _parents(name)}
    return {f"{PACKAGE}.{name}": _holding(**found) for name, found in (parents | values).items()}


def _never(*_: object) -> bool:
    return False


def _moved(x: Tensor, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    return x.to(device=device, dtype=dtype)


def _compute_units(device: int) -> int:
    gpu = NATIVE
    return torch.cuda.get_device_properties(device).multi_processor_count if gpu else 1


class _JitKernel:
    """What launches a kernel, without what compiles it ahead of time."""

    def __class_getitem__(cls, _: object) -> type[_JitKernel]:
        return cls


class _CustomOp(torch.nn.Module):
    @classmethod
    def register(cls, _: str) -> Callable[[Returned], Returned]:
        return lambda found: found


def _folder(place: Path | None) -> ModuleType:
    return _holding(__path__=[] if place is None else [str(place)])


def _holding(**values: Any) -> ModuleType:
    found = ModuleType("stand-in")
    vars(found).update(values)
    return found


def watched(name: str, dtype: torch.dtype, call: Callable[[ModuleType], Returned]) -> Returned:
    """What a call of a module's kernels returns; which of them ran is remembered.

    Raises:
        WrongKernelError: the interpreter does not compute `dtype` as its definition says.
    """
    kernels = spy(FIRST) if NATIVE else _interpreter()
    wrong = None if NATIVE or dtype != torch.bfloat16 else _interpreter().bf16
    if wrong is not None:
        raise WrongKernelError(wrong)
    kernels.forget()
    returned = call(module(name))
    ran = dict.fromkeys(kernel.rpartition(".")[2] for kernel in kernels.kernels_run())
    _RAN[0] = f"{name.rpartition('.')[2]}: {', '.join(ran) or 'no kernel'}, {_mode()}"
    return returned


def remember(ran: str) -> None:
    """What ran, of a function that launches no kernel."""
    _RAN[0] = ran


def proof() -> str:
    """What ran last."""
    return _RAN[0]


def environment() -> dict[str, str]:
    """Versions, and where kernels run."""
    return {**versions("triton"), PACKAGE: version(unknown="a source tree"), "mode": _mode()}


def _mode() -> str:
    return "native" if NATIVE else "interpreted"


def version(*, unknown: str) -> str:
    """That of the package; `unknown` where parts of it lie there alone."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return unknown


adapter_of: Final = functools.partial(
    shipped,
    dtypes=FLOATS,
    device="cuda" if NATIVE else "cpu",
    isolate=True,  # its kernels can take their process with them
    gradients=False,
    proof=proof,
    environment=environment,
    missing=missing,
)
"""Makes the adapter of a function of the package, of any operator but the delta rule."""
