"""Finding an implementation: by shipped name, by file, by module, by entry point."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.foreign_warnings import foreign_warnings

GROUP: Final = "kdaverify.adapters"
OURS: Final = "kdaverify."
FIELDS: Final = {"name", "dtypes", "device", "deterministic"}
"""Some of what every adapter that the decorator makes holds."""
SHIPPED: Final[Mapping[str, str]] = {
    "eager": "kdaverify.adapters.eager:EAGER",
    "eager-recurrent": "kdaverify.adapters.eager:EAGER_RECURRENT",
    "transformers-recurrent": "kdaverify.adapters.transformers_kda:RECURRENT",
    "transformers-chunk": "kdaverify.adapters.transformers_kda:CHUNK",
    "transformers-gdn-recurrent": "kdaverify.adapters.transformers_kda:GDN_RECURRENT",
    "transformers-gdn-chunk": "kdaverify.adapters.transformers_kda:GDN_CHUNK",
    "onnxruntime": "kdaverify.adapters.onnxruntime_kda:ONNXRUNTIME",
    "onnxruntime-gdn": "kdaverify.adapters.onnxruntime_kda:ONNXRUNTIME_GDN",
    "onnxruntime-delta": "kdaverify.adapters.onnxruntime_kda:ONNXRUNTIME_DELTA",
    "pallas": "kdaverify.adapters.pallas_kda:PALLAS",
    "fla-short-conv": "kdaverify.adapters.fla.neighbours:FLA_SHORT_CONV",
    "fla-gated-norm": "kdaverify.adapters.fla.neighbours:FLA_GATED_NORM",
    "transformers-short-conv": "kdaverify.adapters.transformers_neighbours:SHORT_CONV",
    "transformers-gated-norm": "kdaverify.adapters.transformers_neighbours:GATED_NORM",
    "transformers-gated-norm-kimi": "kdaverify.adapters.transformers_neighbours:GATED_NORM_KIMI",
    "eager-attention": "kdaverify.adapters.eager_attention:ATTENTION",
    "eager-mla-decode": "kdaverify.adapters.eager_attention:MLA_DECODE",
    "eager-sparse-attention": "kdaverify.adapters.eager_sparse:ROWS",
    "eager-sparse-fp8": "kdaverify.adapters.eager_sparse:FP8",
    "eager-merge": "kdaverify.adapters.eager_attention:MERGE",
    "torch-short-conv": "kdaverify.adapters.torch_neighbours:SHORT_CONV",
    "torch-gated-norm": "kdaverify.adapters.torch_neighbours:GATED_NORM",
    "mlx-gdn": "kdaverify.adapters.delta_ports:MLX_GDN",
    "mlx-kda": "kdaverify.adapters.delta_ports:MLX_KDA",
    "executorch-gdn": "kdaverify.adapters.delta_ports:EXECUTORCH_GDN",
    "executorch-kda": "kdaverify.adapters.delta_ports:EXECUTORCH_KDA",
    "bitsandbytes-gdn": "kdaverify.adapters.delta_ports:BITSANDBYTES_GDN",
    "opengdn": "kdaverify.adapters.delta_ports:OPENGDN",
    "opengdn-chunk": "kdaverify.adapters.delta_ports:OPENGDN_CHUNK",
    "transformers-kimi-layer": "kdaverify.adapters.transformers_layers:KIMI_LAYER",
    "transformers-qwen3-next-layer": "kdaverify.adapters.transformers_layers:QWEN_LAYER",
    "fla-kda-layer": "kdaverify.adapters.fla.layers:FLA_KDA_LAYER",
    "fla-gdn-layer": "kdaverify.adapters.fla.layers:FLA_GDN_LAYER",
    "torch-sdpa-flash": "kdaverify.adapters.torch_attention:SDPA_FLASH",
    "torch-sdpa-math": "kdaverify.adapters.torch_attention:SDPA_MATH",
    "torch-sdpa-efficient": "kdaverify.adapters.torch_attention:SDPA_EFFICIENT",
    "torch-sdpa-cudnn": "kdaverify.adapters.torch_attention:SDPA_CUDNN",
    "torch-flex": "kdaverify.adapters.torch_attention:FLEX",
    "torch-ring-merge": "kdaverify.adapters.torch_attention:RING_MERGE",
    "jax-nn-attention": "kdaverify.adapters.jax_attention:NN",
    "pallas-flash": "kdaverify.adapters.jax_attention:PALLAS_FLASH",
    "pallas-splash": "kdaverify.adapters.jax_attention:PALLAS_SPLASH",
    "pallas-mha": "kdaverify.adapters.jax_attention:PALLAS_MHA",
    "pallas-decode": "kdaverify.adapters.jax_attention:PALLAS_DECODE",
    "pallas-paged": "kdaverify.adapters.jax_attention:PALLAS_PAGED",
    "onnxruntime-attention": "kdaverify.adapters.onnxruntime_attention:ATTENTION",
    "transformers-eager-attention": "kdaverify.adapters.transformers_attention:EAGER",
    "transformers-eager-attention-half": "kdaverify.adapters.transformers_attention:EAGER_HALF",
    "mlx-attention": "kdaverify.adapters.mlx_attention:ATTENTION",
    "vllm-triton-decode": "kdaverify.adapters.vllm_attention:DECODE_KERNEL",
    "vllm-triton-merge": "kdaverify.adapters.vllm_attention:MERGE_KERNEL",
    "vllm-torch-merge": "kdaverify.adapters.vllm_attention:PLAIN_MERGE",
    "flash_mla": "kdaverify.adapters.flash_mla:FLASH_MLA",
    "flash_mla-sparse-decode": "kdaverify.adapters.flash_mla_sparse:DECODE",
    "flash_mla-sparse-prefill": "kdaverify.adapters.flash_mla_sparse:PREFILL",
    "flash_mla-sparse-prefill-few-heads": "kdaverify.adapters.flash_mla_sparse:FEW_HEADS",
    "offline": "kdaverify.adapters.exchange.offline:OFFLINE",
    "elsewhere": "kdaverify.adapters.elsewhere.named:ELSEWHERE",
    "fla": "kdaverify.adapters.fla.adapter:FLA",
    "fla-recurrent": "kdaverify.adapters.fla.adapter:FLA_RECURRENT",
    "triton_npu": "kdaverify.adapters.fla.adapter:TRITON_NPU",
    "triton_npu-recurrent": "kdaverify.adapters.fla.adapter:TRITON_NPU_RECURRENT",
    "fla-gdn": "kdaverify.adapters.fla.delta:FLA_GDN",
    "fla-gdn-recurrent": "kdaverify.adapters.fla.delta:FLA_GDN_RECURRENT",
    "triton_npu-gdn": "kdaverify.adapters.fla.delta:TRITON_NPU_GDN",
    "fla-delta": "kdaverify.adapters.fla.delta:FLA_DELTA",
    "fla-delta-recurrent": "kdaverify.adapters.fla.delta:FLA_DELTA_RECURRENT",
    "fla-delta-product": "kdaverify.adapters.fla.delta:FLA_PRODUCT",
    "fla-delta-product-grouped": "kdaverify.adapters.fla.delta:FLA_PRODUCT_GROUPED",
    "fla_port": "kdaverify.adapters.fla.port:FLA_PORT",
    "ascendc": "kdaverify.adapters.ascend.ascendc:ASCENDC",
    "ascend_pto": "kdaverify.adapters.ascend.pto:ASCEND_PTO",
    "cudnn": "kdaverify.adapters.cudnn_kda:CUDNN",
    "flash_kda": "kdaverify.adapters.flash_kda:FLASH_KDA",
    "emulated:ascend_v1": "kdaverify.adapters.emulated:ASCEND_V1",
    "emulated:ascend_v2": "kdaverify.adapters.emulated:ASCEND_V2",
    "emulated:ascend_v3": "kdaverify.adapters.emulated:ASCEND_V3",
    "emulated:triton_npu_state": "kdaverify.adapters.emulated:TRITON_NPU_STATE",
    "emulated:triton_npu_gdn": "kdaverify.adapters.emulated:TRITON_NPU_GDN",
    "emulated:flashmla_seesaw": "kdaverify.adapters.emulated_attention:SEESAW",
    "emulated:flashmla_seesaw_splits": "kdaverify.adapters.emulated_attention:SEESAW_SPLITS",
    "emulated:flashmla_turned_round": "kdaverify.adapters.emulated_attention:TURNED_ROUND",
    "emulated:flashmla_one_factor": "kdaverify.adapters.emulated_attention:ONE_FACTOR",
    "emulated:flashmla_normalised": "kdaverify.adapters.emulated_attention:NORMALISED",
    "emulated:flashmla_unguarded": "kdaverify.adapters.emulated_attention:UNGUARDED",
    "emulated:flashmla_clamped": "kdaverify.adapters.emulated_attention:CLAMPED",
}
_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<object>[\w.]+))?")
_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.]*)(?::(?P<object>[\w.]+))?")
_FAULT: Final = "fault:"
_OPTIONS = re.compile(r"(?P<name>[\w-]+):(?P<options>\w+=.*)")


class CannotImportError(AdapterError):
    """An implementation is there, and imports what this machine lacks,
    or has in another version.
    """


@dataclass(frozen=True)
class Listing:
    """One implementation that can be named.

    Args:
        name: what find takes.
        origin: "shipped", or the entry point's module:object.
        dtypes: formats it takes; empty if it could not be loaded.
        missing: why it cannot run on this machine, or None.
    """

    name: str
    origin: str
    dtypes: tuple[str, ...]
    missing: str | None


def find(spec: str) -> Adapter:
    """The implementation that `spec` names.

    Args:
        spec: NAME (shipped, or an entry point of the group kdaverify.adapters), path.py[:object] or
            package.module[:object]. Without an object the file or module must hold exactly one
            adapter. A NAME may be followed by :option=value,option=value. fault:ID[@STRENGTH] is
            the embedded kernel with a fault of the catalogue in it.
    Raises:
        AdapterError: nothing by that name, it raised at import, what it holds is no adapter, or it
            has no such option.
        CannotImportError: what it raised at import is an ImportError.
    """
    with foreign_warnings():
        return _find(spec)


def _find(spec: str) -> Adapter:
    if spec.startswith(_FAULT):
        return _fault(spec.removeprefix(_FAULT))
    if match := _OPTIONS.fullmatch(spec):
        return find(match["name"]).configured(_options(match["options"], spec))
    if spec in SHIPPED:
        return _from_module(SHIPPED[spec])
    points = _entry_points()
    if spec in points:
        return _loaded(points[spec])
    if match := _FILE.fullmatch(spec):
        return _adapter(_import_file(Path(match["path"])), match["object"], match["path"])
    if "." in spec or ":" in spec:
        return _from_module(spec)
    raise AdapterError(_unknown(spec, [*SHIPPED, *points]))


def without_options(spec: str) -> str:
    """The name that options may follow."""
    match = _OPTIONS.fullmatch(spec)
    return match["name"] if match else spec


def source_of(spec: str) -> Path | str | None:
    """The file or the module that an implementation begins in; None for one that is known by name
    alone.

    Args:
        spec: what `find` has found one by.
    """
    if match := _OPTIONS.fullmatch(spec):
        # Those that take the place of their kernel: elsewhere:kernel=FILE:FUNCTION,
        # fla_port:module=MODULE.
        options = _options(match["options"], spec)
        named = options.get("kernel") or options.get("module")
        return source_of(match["name"]) if named is None else _place(named)
    if spec.startswith(_FAULT):
        return None
    if spec in SHIPPED:
        return SHIPPED[spec].partition(":")[0]
    points = _entry_points()
    return _place(points[spec].value.replace(" ", "") if spec in points else spec)


def _place(spec: str) -> Path | str | None:
    if match := _FILE.fullmatch(spec):
        return Path(match["path"])
    match = _MODULE.fullmatch(spec)
    return match and match["module"]


def _fault(spec: str) -> Adapter:
    # The catalogue knows adapters; only a fault by name loads it.
    from kdaverify.faults.catalogue import faulty

    return faulty(spec)


def _options(text: str, spec: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name and equals) or name in options:
            raise AdapterError(
                f"{spec!r}: wanted each option once, as option=value with commas between, got"
                f" {part!r}"
            )
        options[name] = value
    return options


def shipped() -> tuple[Listing, ...]:
    """Every implementation known by name, those that cannot run here with the reason;
    no vendor framework is imported.
    """
    with foreign_warnings():
        return _shipped()


def _shipped() -> tuple[Listing, ...]:
    listings = [_listing(name, "shipped", _from_module(place)) for name, place in SHIPPED.items()]
    for name, point in sorted(_entry_points().items()):
        try:
            listings.append(_listing(name, point.value, _loaded(point)))
        except AdapterError as error:
            listings.append(Listing(name, point.value, (), str(error)))
    return tuple(listings)


def _listing(name: str, origin: str, adapter: Adapter) -> Listing:
    return Listing(name, origin, adapter.dtypes, adapter.missing())


def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _loaded(point: metadata.EntryPoint) -> Adapter:
    return _from_module(point.value.replace(" ", ""))


def _unknown(spec: str, names: list[str]) -> str:
    if Path(f"{spec}.py").is_file():
        return f"no implementation named {spec!r}; the file is {spec}.py"
    close = difflib.get_close_matches(spec, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return (
        f"no implementation named {spec!r}; {hint}wanted one of the {len(names)} names of"
        " `kdaverify list impls`, path.py[:object] or package.module[:object]"
    )


def _from_module(spec: str) -> Adapter:
    match = _MODULE.fullmatch(spec)
    if match is None:
        raise AdapterError(f"{spec!r}: wanted NAME, path.py[:object] or package.module[:object]")
    name = match["module"]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _refusal(name, None, error) from error
        raise AdapterError(
            f"{spec!r}: no module named {error.name}; install it, or say path.py[:object] for a"
            " file"
        ) from None
    except Exception as error:
        raise _refusal(name, None, error) from error
    return _adapter(module, match["object"], name)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AdapterError(
            f"{path}: no such file (looked in {Path.cwd()}); give the path from here, or the name"
            " of an implementation"
        )
    full = path.resolve()
    # By place and content: two files of one name are two modules, and an edited file is a new one.
    digest = hashlib.sha256(str(full).encode() + full.read_bytes()).hexdigest()[:12]
    name = f"kdaverify_adapter_{re.sub(r'[^0-9A-Za-z_]', '_', full.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = util.spec_from_file_location(name, full)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    # As for a script: a port may import its neighbours, now or at its first call.
    if str(full.parent) not in sys.path:
        sys.path.append(str(full.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _refusal(str(path), full, error) from error
    return module


def _refusal(name: str, path: Path | None, error: BaseException) -> AdapterError:
    return (CannotImportError if isinstance(error, ImportError) else AdapterError)(
        _raised(name, path, error)
    )


def _raised(name: str, path: Path | None, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if path is not None and frame.filename == str(path)]
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return f"{name}: not valid Python: {said}"
    frame = (own or frames)[-1]
    return (
        f"{name}: raised at import, {Path(frame.filename).name} line {frame.lineno}: {frame.line}:"
        f" {said}"
    )


def _adapter(module: ModuleType, wanted: str | None, spec: str) -> Adapter:
    found = _adapters(module)
    if wanted is not None:
        return _as_adapter(_attribute(module, wanted, spec, list(found)), f"{spec}:{wanted}")
    if not found:
        raise AdapterError(
            f"{spec}: holds no adapter; decorate your kernel with @kdaverify.kernel(...) or write"
            f" an Adapter class{_callables(module)}"
        )
    if len(found) > 1:
        raise AdapterError(
            f"{spec}: holds several adapters: {', '.join(found)}; name one, such as"
            f" {spec}:{next(iter(found))}"
        )
    name, value = next(iter(found.items()))
    return _as_adapter(value, f"{spec}:{name}")


def _adapters(module: ModuleType) -> dict[str, Any]:
    """Names of the adapters a module holds: instances, and the concrete classes it defines unless
    it made an instance of them.

    Shipped ones that it imports are none of its own: a port that calls one would otherwise be left
    alone and the other be judged.
    """
    own = module.__name__ if module.__name__.startswith(OURS) else ""
    public = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and (own or not _is_shipped(value))
    }
    instances = {
        id(value): name for name, value in reversed(public.items()) if isinstance(value, Adapter)
    }
    made = {type(value) for value in public.values() if isinstance(value, Adapter)}
    return {
        name: value
        for name, value in public.items()
        if instances.get(id(value)) == name or _is_own_class(value, module, made)
    }


def _callables(module: ModuleType) -> str:
    """What a file defines that the decorator can be put on, and how."""
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    around = [name for name, value in named.items() if _is_around_adapter(value)]
    if around:
        return (
            f"; {around[-1]} is a function around an adapter: apply kdaverify.kernel last, above"
            " torch.compile and other decorators"
        )
    own = {name: value for name, value in named.items() if _is_defined_there(value, module)}
    made = {type(value) for value in own.values()}
    own |= {
        f"{name}()": value
        for name, value in named.items()
        if _is_kernel_class(value, module) and value not in made
    }
    if not own:
        return ""
    last = [*own][-1]
    target = last.removesuffix("()").lower() if last.endswith("()") else last
    which = "write" if len(own) == 1 else "for the one to judge write, for example,"
    return f"; it defines {', '.join(own)}: {which} {target} = kdaverify.kernel(...)({last})"


def _is_around_adapter(value: Any) -> bool:
    # torch.compile hides the adapter, but copies its fields.
    compiled = getattr(value, "_is_torch_compile", False) and vars(value).keys() >= FIELDS
    return compiled or isinstance(getattr(value, "__wrapped__", None), Adapter)


def _is_kernel_class(value: Any, module: ModuleType) -> bool:
    """Whether a class that the file defines has instances that can be called."""
    return (
        isinstance(value, type)
        and value.__module__ == module.__name__
        and any("__call__" in vars(base) for base in value.__mro__)
        and not issubclass(value, Adapter)
    )


def _is_defined_there(value: Any, module: ModuleType) -> bool:
    place = getattr(value, "__module__", None) or type(value).__module__
    return callable(value) and not isinstance(value, type) and place == module.__name__


def _is_shipped(value: Any) -> bool:
    """Whether an object is an implementation that is known by name."""
    places = (place.partition(":") for place in SHIPPED.values())
    return any(value is getattr(sys.modules.get(module), name, None) for module, _, name in places)


def _is_own_class(value: Any, module: ModuleType, made: set[type]) -> bool:
    return _is_adapter_class(value) and value.__module__ == module.__name__ and value not in made


def _is_adapter_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Adapter) and not inspect.isabstract(value)


def _attribute(module: ModuleType, wanted: str, spec: str, known: list[str]) -> Any:
    value: Any = module
    for step in wanted.split("."):
        if not hasattr(value, step):
            close = difflib.get_close_matches(wanted, known, n=1)
            if close:
                hint = f"did you mean {close[0]}?"
            else:
                hint = f"its adapters: {', '.join(known) or 'none'}"
            raise AdapterError(f"{spec}: has no object {wanted!r}; {hint}")
        value = getattr(value, step)
    return value


def _as_adapter(value: Any, spec: str) -> Adapter:
    if isinstance(value, Adapter):
        return value
    if _is_adapter_class(value):
        try:
            return value()
        except Exception as error:
            raise AdapterError(
                f"{spec}: making the adapter failed: {type(error).__name__}: {error}; give __init__"
                " no arguments"
            ) from error
    advice = "decorate it with @kdaverify.kernel(...)" if callable(value) else "name an Adapter"
    raise AdapterError(f"{spec}: wanted an adapter, got {type(value).__name__}; {advice}")
