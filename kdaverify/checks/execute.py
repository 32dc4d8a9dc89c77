"""Running a kernel under watch: whatever it does wrong becomes a status, no traceback."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, AdapterError, values_of
from kdaverify.adapters.isolation.fault import fault_of
from kdaverify.budgets.formats import FORMATS, format_of
from kdaverify.checks.status import Status
from kdaverify.operator import CallOperator, call_operator
from oracles.autograd import ForwardOnlyError
from oracles.signature import Role, TensorCall

NO_DEVICE: Final = (
    '; its tensors lie on the CPU: declare device="cuda", and test it where there is one'
)
OF_TORCH: Final = (
    '; its tensors are of torch: declare framework="jax" if the function takes JAX arrays,'
    " else convert them"
)
_ABOUT_MEMORY: Final = re.compile(r"contiguous|\bstrides?\b|\balign(ed|ment)\b", re.IGNORECASE)
X = TypeVar("X")
Entry = Callable[[Any], Any]


class CallError(Exception):
    """A call that cannot be compared: which output, what status, and why."""

    def __init__(self, status: Status, output: str, message: str) -> None:
        super().__init__(message)
        self.status, self.output, self.message = status, output, message


@dataclass(frozen=True)
class KernelRun:
    """The checked outputs of one call, of the wanted shape and dtype, and its duration."""

    outputs: dict[str, Tensor]
    seconds: float


def execute(
    adapter: Adapter,
    inputs: TensorCall,
    exposed: tuple[str, ...],
    *,
    entry: Entry | None = None,
    copied: Callable[[Any], Any] = TensorCall.copied,
) -> KernelRun:
    """Calls the kernel on copies of its own and checks everything about the call but the numbers.

    Args:
        adapter: the implementation.
        inputs: the canonical call; handed over as copies.
        exposed: the outputs wanted, of its operator.
        entry: adapter.forward by default, or adapter.step.
        copied: makes the copies, wherever they are to lie.
    Raises:
        CallError: it raised, took its process with it, ran out of time or memory, edited an input,
            or returned None, no tensor, a wrong shape or dtype, or a view of an input.
        AdapterError: the call never came to the kernel, because of what surrounds it.
    """
    given = copied(inputs)
    started = time.perf_counter()
    output = watched(lambda: (entry or adapter.forward)(given), exposed[0])
    seconds = time.perf_counter() - started
    values = {} if output is None else values_of(output)
    if len(exposed) > 1 and all(values.get(name) is None for name in exposed):
        raise CallError(
            Status.MISSING, exposed[0], f"the kernel returned None; return ({', '.join(exposed)})"
        )
    returned: dict[str, Any] = {name: values.get(name) for name in exposed}
    _check_container(returned)
    shapes = {name: inputs.signature.shape(name, inputs) for name in exposed}
    _check_order(returned, shapes)
    for name, value in returned.items():
        _check_padding(name, value, shapes[name], inputs)
        check_kind(
            name, value, shapes[name], _wanted_dtype(name, inputs, adapter), adapter.operator
        )
    check_inputs_kept(given, inputs)
    for name, value in returned.items():
        _check_own_memory(name, value, given)
    return KernelRun({name: value.detach() for name, value in returned.items()}, seconds)


def watched(call: Callable[[], X], output: str) -> X:
    """What `call`, which runs a kernel, returns.

    Args:
        output: what to say is at fault if it raises.
    Raises:
        CallError: it raised, took its process with it, ran out of time or memory.
        AdapterError, ForwardOnlyError: there was no kernel to run, or no backward.
    """
    try:
        return call()
    except (AdapterError, ForwardOnlyError, CallError):
        raise
    except (Exception, SystemExit) as error:
        fault = fault_of(error)
        raise CallError(Status(fault.kind), output, fault.message) from error
    finally:
        # a mode of the thread that a kernel may have left: what is judged next must not feel it
        torch.set_flush_denormal(False)


def _wanted_dtype(name: str, inputs: TensorCall, adapter: Adapter) -> torch.dtype:
    dtype = dtype_name(inputs)
    return (
        call_operator(inputs.op).output_format(name, adapter.contract(dtype), FORMATS[dtype]).dtype
    )


def dtype_name(inputs: TensorCall) -> str:
    """fp64, fp32, bf16 or fp16: the format of the first tensor of a call."""
    return format_of(getattr(inputs, inputs.signature.inputs[0].name).dtype).name


def refuses_views(fault: CallError) -> bool:
    """Whether a kernel says that it takes no tensor that lies so in memory."""
    return fault.status is Status.ERROR and bool(_ABOUT_MEMORY.search(fault.message))


def mended(adapter: Adapter, fault: CallError) -> str:
    """What a call did wrong, with the mend where that is a declared device or framework."""
    if adapter.device == "cpu" and re.search(r"\bCUDA\b|\bcuda\b", str(fault)):
        return f"{fault}{NO_DEVICE}"
    # jax names the class that it was given: "einsum requires ndarray or scalar arguments, got ..."
    refused = re.search(r"TypeError: .*<class 'torch\.Tensor'>", str(fault))
    return f"{fault}{OF_TORCH}" if refused else str(fault)


def _check_container(returned: Mapping[str, Any]) -> None:
    """Refuses outputs in a container of another size or kind than a tuple of them.

    Raises:
        CallError: naming what came and what to return.
    """
    first = next(iter(returned))
    if isinstance(value := returned[first], tuple | list | dict):
        kind, names = type(value).__name__, ", ".join(returned)
        wanted = f"({names})" if len(returned) > 1 else names
        raise CallError(
            Status.TYPE,
            first,
            f"the kernel returned a {kind} of {len(value)}; return {wanted}",
        )


def _check_order(returned: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses outputs that came in another order.

    Raises:
        CallError: naming the order that came and the one wanted.
    """
    named = {shape: name for name, shape in shapes.items()}
    got = [tuple(getattr(value, "shape", ())) for value in returned.values()]
    came = [named[shape] for shape in got if shape in named]
    wanted = [*shapes]
    if came != wanted and sorted(came) == sorted(wanted):
        raise CallError(
            Status.SHAPE,
            wanted[0],
            f"the kernel returned ({', '.join(came)}); return ({', '.join(wanted)}), in this order",
        )


def _check_padding(name: str, value: object, shape: tuple[int, ...], inputs: TensorCall) -> None:
    """Refuses an output of a pack that ends at the last offset, where rows of nobody follow.

    Raises:
        CallError: saying that those rows are returned, too.
    """
    got, signature = tuple(getattr(value, "shape", ())), inputs.signature
    if signature[name].role is not Role.TOKEN or len(got) != len(shape):
        return
    differing = [(m, n) for m, n in zip(shape, got, strict=True) if m != n]
    if len(differing) != 1:
        return
    rows, end = differing[0]
    if end in [int(x[-1]) for x in signature.tensors(inputs, Role.OFFSETS).values()]:
        raise CallError(
            Status.SHAPE,
            name,
            f"{name}: wanted {rows} rows, one for each of the input, got the {end} in front of the"
            " last offset; return the rows past it, too",
        )


def check_kind(
    name: str,
    value: object,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    operator: CallOperator | None = None,
) -> None:
    """Refuses what is no tensor of the wanted shape and dtype.

    Args:
        operator: that it is an output of, whose declarations may be what is wrong.
    Raises:
        CallError: naming the output, what was wanted and what came.
    """
    if value is None:
        raise CallError(
            Status.MISSING,
            name,
            f"{name}: wanted a tensor of shape {list(shape)}, got None; return it"
            f"{_or_declare(operator.absent.get(name, '') if operator else '')}",
        )
    if not isinstance(value, Tensor):
        raise CallError(
            Status.TYPE, name, f"{name}: wanted a torch tensor, got {_kind_and_mend(value)}"
        )
    if tuple(value.shape) != shape:
        said = (
            f"{name}: wanted shape {list(shape)}, got {list(value.shape)};"
            f" {_reordering(shape, tuple(value.shape), operator.orders if operator else '')}"
        )
        raise CallError(Status.SHAPE, name, said)
    if value.dtype != dtype:
        raise CallError(
            Status.DTYPE,
            name,
            f"{name}: wanted {dtype}, by the declared formats and contract, got {value.dtype}; cast"
            " it, or correct the declaration",
        )


def _kind_and_mend(value: object) -> str:
    """What came in place of a tensor, and how it is made one."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    known = {
        "numpy.": f"{kind}; return torch.from_numpy(...) of it",
        "jax": 'a JAX array; declare framework="jax", and the function gets and returns JAX arrays',
        "generator": "a generator; return the tensors where the function yields them",
        "coroutine": "a coroutine; wait for it in the kernel, such as with asyncio.run(...)",
    }
    return next(
        (said for start, said in known.items() if kind.startswith(start)),
        f"{kind}; convert it with torch.as_tensor(...)",
    )


def _or_declare(option: str) -> str:
    """The other mend of an output that is missing."""
    return f" or declare {option}" if option else ""


def _reordering(wanted: tuple[int, ...], got: tuple[int, ...], orders: str) -> str:
    """Which two axes are swapped, where that is all and no other two would do.

    Args:
        orders: what declares the order of axes; "" where nothing does.
    """
    if len(wanted) == len(got):
        swapped = [axis for axis in range(len(wanted)) if wanted[axis] != got[axis]]
        # a pair
        if (
            len(swapped) == 2
            and wanted[swapped[0]] == got[swapped[1]]
            and wanted[swapped[1]] == got[swapped[0]]
        ):
            declared = f", or correct the declared {orders}" if orders else ""
            return f"axes {swapped[0]} and {swapped[1]} are swapped: transpose them back{declared}"
    declared = f", or correct the declared {orders}" if orders else ""
    return f"return it in the wanted shape{declared}"


def check_inputs_kept(given: TensorCall, inputs: TensorCall) -> None:
    """Refuses a kernel that edited its inputs.

    Raises:
        CallError: naming the first input that changed.
    """
    for name in inputs.signature.names():
        after, before = getattr(given, name), getattr(inputs, name)
        if before is None or torch.equal(after, before):
            continue
        count = int(((after != before) & ~(torch.isnan(after) & torch.isnan(before))).sum())
        if count:
            raise CallError(
                Status.MUTATED_INPUT,
                inputs.signature.returned[0],
                f"{name}: the kernel changed {count} of {before.numel()} elements of its input in"
                " place; compute on a copy of it",
            )


def _check_own_memory(name: str, value: Tensor, given: TensorCall) -> None:
    for source in given.signature.names():
        tensor = getattr(given, source)
        if (
            tensor is not None
            and value.numel()
            and value.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        ):
            raise CallError(
                Status.ALIASED_OUTPUT,
                name,
                f"{name}: shares the memory of the input {source}; return a copy of it: the next"
                " call would overwrite the result",
            )
