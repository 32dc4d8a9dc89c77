"""What every implementation under test looks like to the harness."""

from __future__ import annotations

import abc
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, get_args

import torch

from kdaverify.adapters.conventions import CANONICAL, Conventions
from kdaverify.adapters.stages import StageCall
from kdaverify.budgets.contract import Contract
from kdaverify.operator import DEFAULT, NO_BACKWARD, CallOperator, call_operator
from kdaverify.operators.pointwise.call import ActivationCall
from kdaverify.problems import EVERYTHING, Domain
from oracles.autograd import ForwardOnlyError, differentiate
from oracles.inputs import Inputs

NOTHING_YET = "nothing yet"
X = TypeVar("X")


Channel = Literal["memory", "objects", "results", "buffers"]
"""The bytes that an input lies in, with its strides, its gaps and its address; the tensor objects
themselves; the memory of what the kernel returned; what torch allocates while it runs."""

CHANNELS: Final[tuple[Channel, ...]] = get_args(Channel)


def all_behind(reason: str) -> dict[Channel, str]:
    """Barriers of a kernel that never sees a tensor of torch, nor returns one."""
    return dict.fromkeys(CHANNELS, reason)


class AdapterError(ValueError):
    """An adapter not found or declared wrongly; the message names option, value and remedy."""


class WrongKernelError(RuntimeError):
    """Another kernel ran, or would have run, than the one the adapter names."""


@dataclass(frozen=True)
class Output:
    """What a kernel returned, in the canonical conventions of `Inputs`.

    Args:
        o: [B, T, HV, V] if the kernel did as declared; else whatever it returned, unchanged.
        final_state: [N, HV, K, V], or None where it is not exposed; the same holds.
    """

    o: Any
    final_state: Any


class Adapter(abc.ABC):
    """An implementation under test. Final subclasses state fields and implement methods.

    Args:
        name: how people call it; part of every record.
        op: the operator that it implements.
        dtypes: the formats of q, k, v, beta and o it takes, of fp64, fp32, bf16, fp16.
        conventions: how it wants its tensors; `CANONICAL` unless it differs.
        device: type of the torch device the kernel runs on.
        widths: key and value widths of generated cases, for kernels compiled for each; () any.
        domain: the problems it takes: whatever is generated or altered stays inside.
        backward_domain: the problems that its backward takes, if fewer; None: those of `domain`.
        compiled: whether its kernel is compiled for every format, width and number of heads: random
            problems and combinations share few of them then.
        isolated: whether it runs in a worker process by default, as kernels do that can end it.
        answers: False where calls are only written down, and nothing can be judged.
        differentiable: False where there is no backward to run; otherwise a backward is looked for.
        no_backward: why gradients are not tested, where it is not differentiable.
        open_ended: False where only an export's calls can be answered: no failure is shrunk.
        deterministic: False where equal calls may give other bits; each is then judged alone.
        barriers: why a caller cannot see or touch memory of the kernel, by what it is.
        sums_gates: whether it gives the parameters of its gate gradients, which are sums.
        unjudged: what its kernel takes and no case has, one phrase each.
        takes: what a function takes of a call, for operators that functions implement.
        step_form: the signature that a declared decode entry point has to have; "" without one.
    """

    name: str
    dtypes: tuple[str, ...]
    op: str = DEFAULT
    conventions: Conventions = CANONICAL
    device: str = "cpu"
    widths: tuple[int, ...] = ()
    domain: Domain = EVERYTHING
    backward_domain: Domain | None = None
    compiled: bool = False
    isolated: bool = False
    answers: bool = True
    differentiable: bool = True
    no_backward: str = NO_BACKWARD
    open_ended: bool = True
    deterministic: bool = True
    barriers: Mapping[Channel, str] = MappingProxyType({})
    sums_gates: bool = False
    unjudged: tuple[str, ...] = ()
    takes: Any = None
    step_form: str = ""

    @property
    def operator(self) -> CallOperator:
        """The operator that it implements."""
        return call_operator(self.op)

    @abc.abstractmethod
    def contract(self, dtype: str) -> Contract:
        """The arithmetic it declares for problems in `dtype`."""

    def backward_contract(self, dtype: str) -> Contract:
        """That of its backward, forward run included, where that differs; the same by default."""
        return self.contract(dtype).of_gradients

    @abc.abstractmethod
    def forward(self, inputs: Any) -> Any:
        """Runs the kernel on a canonical call; what it returns lies where the tensors lie."""

    def returned(self, inputs: Any) -> Mapping[str, Any]:
        """What the kernel itself returned, before conversions, in own memory if possible."""
        return values_of(self.forward(inputs))

    @abc.abstractmethod
    def proof(self) -> str:
        """Names the kernel that ran, as observed at the last call; NOTHING_YET before one."""

    def step(self, inputs: Any) -> Any:
        """Runs the decode entry point on a call with T = 1."""
        return self.forward(inputs)

    def gradients(self, inputs: Any, cotangents: Any) -> Any:
        """Runs the kernel both ways; by torch's autograd of `forward` unless it has a backward.

        Raises:
            ForwardOnlyError: there is no backward.
        """
        if not self.differentiable:
            raise ForwardOnlyError(f"{self.name} has no backward")
        return differentiate(self._outputs, inputs, cotangents)

    def parameter_gradients(self, inputs: Any, cotangents: Any) -> Mapping[str, Any]:
        """Of the parameters of a gate that it activates, and of the raw one, "g", canonical axes.

        Returns:
            By name; {} of a kernel without.
        """
        del inputs, cotangents
        return {}

    def _outputs(self, inputs: Inputs) -> tuple[Any, Any]:
        output = self.forward(inputs)
        return output.o, output.final_state

    def missing(self) -> str | None:
        """Why it cannot run on this machine, with the command that helps; None if it can."""
        return None

    def supports(self, problem: Any) -> str | None:
        """Why its interface cannot take `problem`, None if it can. Wrong results are no reason."""
        return self.domain.refuses(problem)

    def exposes(self, problem: Any) -> tuple[str, ...]:
        """The outputs it returns for `problem`, of its operator's; all of them by default."""
        return self.operator.signature.returned

    def differentiates(self, problem: Any) -> tuple[str, ...]:
        """Of these outputs, those whose cotangents its backward follows; all of them by default."""
        return self.exposes(problem)

    def received(self, inputs: Any) -> Any:
        """The call the kernel effectively gets: what its conversions round is rounded here too."""
        return self.conventions.received(inputs)

    def copied(self) -> tuple[str, ...]:
        """The inputs that the kernel gets copies of: their memory layout does not reach it."""
        return self.conventions.converted()

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        """The same kernel under other conventions, to find which it follows; None if undeclared."""
        return None

    def configured(self, options: Mapping[str, str]) -> Adapter:
        """The same kernel under the options of NAME:option=value,option=value.

        Raises:
            AdapterError: no such option, or no such value of it.
        """
        raise AdapterError(
            f"{self.name}: takes no options, got {', '.join(options)}; leave out everything after"
            " the colon"
        )

    def variants(self) -> Mapping[str, Adapter]:
        """The same kernel under options that must not change results, by name; fixed ones."""
        return {}

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        """The stages that can be called alone in `dtype`, by name and in order, forward first.

        None by default.
        """
        return {}

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        """The pointwise operations that can be called alone in `dtype`; none by default."""
        return {}

    def configurations(self) -> Mapping[str, Adapter]:
        """The same kernel under each configuration of its tuner, by name; none by default."""
        return {}

    def called_with(self, inputs: Inputs, unknown: Mapping[str, Any]) -> None:
        """Calls the wrapped function with keywords more than it can know, as it stands.

        Raises:
            NotImplementedError: no function of others is wrapped as it stands; the default.
        """
        raise NotImplementedError(
            f"{self.name} is no plain function that keywords could be passed to"
        )

    def surroundings(self) -> Mapping[str, str]:
        """Environment variables that its process needs before anything is imported."""
        return {}

    def inside(self, function: Callable[[Adapter], X]) -> X:
        """What `function` returns for this adapter, in the process that the kernel runs in.

        Args:
            function: of a module, or a partial of one, so that its name reaches a worker process;
                it makes at most four calls.
        """
        return function(self)

    def begin(self, case: str) -> None:
        """Receives the next case, before the first call of the kernel for it."""
        del case

    def end(self) -> None:
        """Ends the processes it has started, if any; another call starts them again."""
        return

    def environment(self) -> dict[str, str]:
        """Versions of all that decides the result, the device, and the mode."""
        return {
            **versions("torch"),
            "python": platform.python_version(),
            "device": self.device,
            "mode": "native",
        }


class WatchedAdapter(Adapter):
    """An adapter that keeps in `_ran` which kernel ran at the last call."""

    _ran: str = NOTHING_YET

    def proof(self) -> str:
        return self._ran


def values_of(returned: Any) -> Mapping[str, Any]:
    """Outputs, gradients or cotangents by name, of an operator's dataclass or mapping."""
    return returned if isinstance(returned, Mapping) else vars(returned)


def isolated_by_default(device: str, *, declared: bool | None) -> bool:
    """Whether a kernel runs in a worker process where the command line does not say.

    A fault of a device lasts until its process ends: one misaligned access of cuDNN's attention
    made 61 later calls of 18 rules fail that pass in a process of their own.

    Args:
        device: type of the torch device that it runs on.
        declared: what the kernel says; None: nothing.
    """
    return device != "cpu" if declared is None else declared


def is_interpreted(adapter: Adapter) -> bool:
    """Whether an interpreter runs its kernel here, so that a call takes seconds."""
    return adapter.environment()["mode"] == "interpreted"


def is_slow(adapter: Adapter) -> bool:
    """Whether a case takes a second or more: interpreted, or compiled for every shape."""
    return adapter.compiled or is_interpreted(adapter)


def versions(*packages: str) -> dict[str, str]:
    """Installed versions by distribution name; torch's own, which names the build."""
    return {
        package: torch.__version__ if package == "torch" else metadata.version(package)
        for package in packages
    }


def absent(modules: tuple[str, ...], install: str) -> str | None:
    """The modules that are not installed and the remedy, or None; imports nothing."""
    lacking = [module for module in modules if util.find_spec(module) is None]
    return f"{', '.join(lacking)} not installed: {install}" if lacking else None
