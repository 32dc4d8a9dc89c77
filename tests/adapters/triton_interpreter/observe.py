"""What an interpreting process sees, printed as JSON: processes of their own, since Triton is
switched on once.

Arguments: the observations to make in this process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch

from kdaverify.adapters.triton_interpreter import InterpreterError, TritonInterpreter, activate

Seen = dict[str, Any]


def gaps() -> Seen:
    """The toys' results, one by one."""
    interpreter = activate()
    from tests.adapters.triton_interpreter import toys

    seen: Seen = {}
    for name in ("python_loop", "language_loop", "stepped"):
        out = torch.zeros(1, dtype=torch.int64)
        _launch(getattr(toys, name), out, 10)
        seen[name] = out.item()
    out, number = torch.zeros(3, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    toys.numbered[_filling](out, number)
    seen["numbered"] = out.tolist()
    index, out = torch.arange(15, -1, -1, dtype=torch.int32), torch.empty(16)
    _launch(toys.gathered, torch.arange(16.0), index, out, N=16)
    seen["gathered"] = out.tolist()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        out = torch.empty(2)
        _launch(toys.scaled, torch.ones(1, dtype=dtype), out, 0.1, CONSTANT=0.1)
        seen[f"scaled {dtype}"] = out.tolist()
    for precision in ("ieee", "tf32", "bf16x3"):
        seen[precision] = _square(toys, precision)
    interpreter.tf32 = True
    seen["rounded"] = {
        precision: _square(toys, precision) for precision in ("ieee", "tf32", "tf32x3")
    }
    value, target = torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)
    try:
        _launch(toys.added, value, target)
    except Exception as refusal:  # noqa: BLE001 # Triton wraps what the operation raised
        seen["atomic"] = str(refusal)
    return seen


def _filling(arguments: Any) -> tuple[int]:
    return (int(arguments["number"].fill_(2)),)


def _launch(kernel: Any, *arguments: Any, **constants: Any) -> None:
    kernel[(1,)](*arguments, **constants)


def _square(toys: Any, precision: str) -> float:
    """The only element of x I, with x a third: exact unless x is rounded first."""
    out = torch.empty(16, 16)
    _launch(toys.matmul, torch.full((16, 16), 1 / 3), torch.eye(16), out, N=16, PRECISION=precision)
    return out[3, 5].item()


def tuning() -> Seen:
    """Which configuration ran for every choice, and what is remembered of it."""
    interpreter = activate()
    from tests.adapters.triton_interpreter import toys

    interpreter.forget()
    seen: Seen = {"before": interpreter.kernels_run(), "ran": {}}
    for choice in (0, 1, 2, 3, -1):
        interpreter.autotune = choice
        out = torch.zeros(1, dtype=torch.int32)
        _launch(toys.tuned, out, 0)
        seen["ran"][choice] = [out.item(), *interpreter.chosen().values()]
    seen |= {"offered": interpreter.configurations(), "kernels": interpreter.kernels_run()}
    interpreter.forget()
    return {**seen, "forgotten": interpreter.kernels_run()}


def faults() -> Seen:
    """The start-up proof, sound and under faults planted one at a time."""
    interpreter = activate()
    from tests.adapters.triton_interpreter.faults import planted

    interpreter.forget()
    seen: Seen = {"sound": _proof(interpreter), "kernels": interpreter.kernels_run()}
    for name, (owner, attribute, fault) in planted().items():
        with mock.patch.object(owner, attribute, fault):
            seen[name] = _proof(interpreter)
    return seen


def _proof(interpreter: TritonInterpreter) -> str | None:
    vars(interpreter).pop("bf16", None)
    return interpreter.bf16


def bookkeeping() -> Seen:
    """Pairs of operands for which the shortcut and Triton's own type check differ: as is, under a
    fault, and out of how many.
    """
    activate()
    from kdaverify.adapters.triton_interpreter import memo, operators

    pairs = _operands()
    seen: Seen = {
        "tried": len(pairs),
        "differing": _differing(pairs),
        "operators differing": _operators_differing(pairs),
    }
    with (
        mock.patch.object(memo, "held", return_value=True),
        mock.patch.object(operators, "held", return_value=True),
    ):
        return {
            **seen,
            "under a fault": _differing(pairs),
            "operators under a fault": _operators_differing(pairs),
        }


def _operands() -> list[tuple[Any, Any, tuple[bool, ...]]]:
    import triton.language as tl
    from triton.runtime import interpreter as module

    semantic = module.interpreter_semantic
    formats = (
        tl.int1,
        tl.int32,
        tl.uint32,
        tl.int64,
        tl.float16,
        tl.bfloat16,
        tl.float32,
        tl.float64,
    )
    scalars = [semantic.scalar_constant(1, dtype) for dtype in formats]
    to_fp32 = tl.pointer_type(tl.float32)
    pointer = semantic.tensor(
        module.TensorHandle(np.array([4096], dtype=np.uint64), to_fp32), to_fp32
    )
    tensors = [
        *scalars,
        pointer,
        *(semantic.splat(value, [4]) for value in scalars),
        semantic.splat(scalars[1], [2, 4]),
    ]
    numbers = (0, 1, -1, 2**31, 2**40, 0.5, 1e300, float("inf"), True)
    return [
        (a, b, flags)
        for a in tensors
        for b in (*tensors, *numbers)
        for flags in ((), (True, True), (False, False, True, True))
    ]


def _differing(pairs: list[tuple[Any, Any, tuple[bool, ...]]]) -> list[str]:
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter as module

    own = TritonSemantic(module.interpreter_builder).binary_op_type_checking_impl
    short = module.interpreter_semantic.binary_op_type_checking_impl
    differing = [
        (a, b, flags)
        for a, b, flags in pairs
        if _outcome(short, a, b, *flags) != _outcome(own, a, b, *flags)
    ]
    return [f"{a.type} {getattr(b, 'type', b)} {flags}" for a, b, flags in differing]


def _operators_differing(pairs: list[tuple[Any, Any, tuple[bool, ...]]]) -> list[str]:
    """The same for the operators, against the methods of a semantic that knows no shortcut."""
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter as module

    own = TritonSemantic(module.interpreter_builder)

    def plain(a: Any, b: Any, name: str) -> tuple[Any]:
        arithmetic = {"add": own.add, "sub": own.sub, "mul": own.mul}
        order = {
            "lt": own.less_than,
            "le": own.less_equal,
            "gt": own.greater_than,
            "ge": own.greater_equal,
        }
        return (
            (
                arithmetic[name](a, b, sanitize_overflow=True)
                if name in arithmetic
                else order[name](a, own.to_tensor(b))
            ),
        )

    def short(a: Any, b: Any, name: str) -> tuple[Any]:
        return (getattr(type(a), f"__{name}__")(a, b),)

    names = ("add", "sub", "mul", "lt", "le", "gt", "ge")
    tried = [(a, b, name) for a, b, flags in pairs if not flags for name in names]
    return [
        f"{a.type} {name} {getattr(b, 'type', b)}"
        for a, b, name in tried
        if _outcome(short, a, b, name) != _outcome(plain, a, b, name)
    ]


def _outcome(check: Callable[..., Any], *operands: Any) -> str:
    try:
        return str(
            [
                (str(x.type), x.handle.data.tolist(), str(x.handle.data.dtype))
                for x in check(*operands)
            ]
        )
    except Exception as refusal:  # noqa: BLE001 # both must refuse alike
        return repr(refusal)


def refusals() -> Seen:
    """What a process that serves npu says to other wishes."""
    interpreter = activate(backend="npu", autotune=2)
    wishes: dict[str, dict[str, Any]] = {
        "cuda": {"backend": "cuda"},
        "tpu": {"backend": "tpu"},
        "tf32": {"backend": "npu", "tf32": True},
    }
    seen: Seen = {"same": activate(backend="npu") is interpreter, "autotune": interpreter.autotune}
    for name, wish in wishes.items():
        try:
            activate(**wish)
        except InterpreterError as refusal:
            seen[name] = str(refusal)
    return seen


def imported_before() -> Seen:
    """What activation says after Triton was imported to compile."""
    import os

    import triton  # noqa: F401 # pyright: ignore[reportUnusedImport]

    seen: Seen = {}
    for name, switch in (("without the switch", ""), ("with a late switch", "1")):
        os.environ["TRITON_INTERPRET"] = switch
        try:
            activate()
        except InterpreterError as refusal:
            seen[name] = str(refusal)
    return seen


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
