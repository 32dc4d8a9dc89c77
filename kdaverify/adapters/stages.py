"""The stages that an implementation lets one call by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from kdaverify.budgets.stage_forms import CHANNEL, StageForm, form_of
from oracles.arithmetic import Arithmetic
from oracles.inputs import Inputs
from oracles.stages import Named
from oracles.tensors import COTANGENTS, FLOATING


class StageError(ValueError):
    """A stage that was declared wrongly; the message has what was wanted and what came."""


@dataclass(frozen=True)
class StageArguments:
    """What a stage is called with.

    Args:
        inputs: the call that the stage is a part of: tensors, scale and packing.
        tensors: what earlier stages wrote, of what the stage takes; layout and names of
            `oracles.stages` and, in the backward, of `oracles.backward_stages`, the cotangents do
            and d_final_state among them; natural logarithms.
        chunk_size: C.
        formats: the format in which the contract stores each named tensor.
    """

    inputs: Inputs
    tensors: Named
    chunk_size: int
    formats: Callable[[str], Format]

    def __getitem__(self, name: str) -> Tensor | None:
        """A tensor of the call or of an earlier stage; None for an absent state or offsets."""
        return self.tensors[name] if name in self.tensors else getattr(self.inputs, name)

    def beside(self, tensors: Named) -> StageArguments:
        """The same with other tensors of earlier stages."""
        return replace(self, tensors=tensors)


def _as_stored(_: str, tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class StageCall:
    """One stage function of an implementation, or several stages fused into one.

    Args:
        covers: the stages it computes, consecutive, of the forward or of the backward of `form`.
        takes: names of the tensors it reads: of the call, earlier stages, or the cotangents.
        gives: names of the tensors it returns, of those that the covered stages write.
        call: the function.
        received: (name, tensor) -> what the function gets of it where conversions round.
        resets: whether it can be tested on hard resets, whose G sums the finite gates only.
        form: how the pipeline is cut, of which these stages are.
    Raises:
        StageError: an unknown stage or tensor, or stages that do not follow each other.
    """

    covers: tuple[str, ...]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    call: Callable[[StageArguments], Named]
    received: Callable[[str, Tensor], Tensor] = _as_stored
    resets: bool = False
    form: StageForm = CHANNEL

    def __post_init__(self) -> None:
        signatures = self.form.backward if self.backward else self.form.forward
        order = tuple(signatures)
        first = order.index(self.covers[0]) if self.covers and self.covers[0] in order else 0
        if not self.covers or self.covers != order[first : first + len(self.covers)]:
            raise StageError(
                f"covers: wanted stages that follow each other in {', '.join(order)}, got"
                f" {', '.join(self.covers) or 'none'}"
            )
        written = [name for stage in self.covers for name in signatures[stage].writes]
        if strange := [name for name in self.gives if name not in written]:
            raise StageError(
                f"gives: {', '.join(self.covers)} writes {', '.join(written)}, got"
                f" {', '.join(strange)}"
            )
        forward = [name for stage in self.form.forward.values() for name in stage.writes]
        before = {*FLOATING, *COTANGENTS, *forward} if self.backward else {*FLOATING}
        known = {*before, *(name for stage in order[:first] for name in signatures[stage].writes)}
        if strange := [name for name in self.takes if name not in known]:
            raise StageError(
                f"takes: {self.covers[0]} comes after the writers of {', '.join(sorted(known))},"
                f" got {', '.join(strange)}"
            )

    @property
    def backward(self) -> bool:
        """Whether its stages are those of the backward."""
        return bool(self.covers) and self.covers[0] in self.form.backward

    @property
    def takes_of_earlier(self) -> tuple[str, ...]:
        """What it reads beside the call: what earlier stages wrote, and cotangents."""
        return tuple(name for name in self.takes if name not in FLOATING)


def chain(calls: Mapping[str, StageCall], arguments: StageArguments) -> dict[str, Tensor]:
    """Runs stages on each other's outputs, in order, except those whose output is there.

    Args:
        arguments: those of the backward run only where do is among the tensors.
    Returns:
        Every tensor written.
    Raises:
        StageError: a stage takes a tensor that none before it gives.
    """
    there, written = arguments.tensors, dict[str, Tensor]()
    for name, stage in calls.items():
        if (stage.backward and "do" not in there) or all(given in written for given in stage.gives):
            continue
        tensors = {**there, **written}
        if lacking := [taken for taken in stage.takes_of_earlier if taken not in tensors]:
            raise StageError(
                f"stage {name}: takes {', '.join(lacking)}, which no stage before it gives; expose"
                " one that does"
            )
        written |= stage.call(
            arguments.beside({taken: tensors[taken] for taken in stage.takes_of_earlier})
        )
    return written


def formats_of(contract: Contract, io: Format) -> Callable[[str], Format]:
    """A contract's storage formats for a problem in `io`; S_T as the state is carried."""
    return lambda name: contract.storage(_STORED_AS.get(name, name), io)


_STORED_AS: Final = {
    "final_state": "S",
    "d_initial_state": "dS",
    "d_final_state": "dS",
    "do": "o",
    "dG_part": "dG",
}


def stored(name: str, tensor: Tensor, formats: Callable[[str], Format]) -> Tensor:
    """`tensor` rounded into the format it is stored in, and in its type."""
    return formats(name).round(tensor).to(formats(name).dtype)


Run = Callable[..., dict[str, Tensor]]


def torch_stages(contract: Contract, io: Format, run: Run | None = None) -> dict[str, StageCall]:
    """The six forward stages in torch under a contract's roundings, a function each.

    Args:
        contract: of the chunk form.
        io: format of q, k, v and o.
        run: as `StageForm.run`, with options bound.
    """
    return {name: _torch_stage(name, contract, io, run) for name in form_of(contract).forward}


def torch_backward_stages(
    contract: Contract, io: Format, run: Run | None = None
) -> dict[str, StageCall]:
    """Those of the backward likewise."""
    return {name: _torch_stage(name, contract, io, run) for name in form_of(contract).backward}


def _torch_stage(name: str, contract: Contract, io: Format, run: Run | None) -> StageCall:
    formats, form = formats_of(contract, io), form_of(contract)
    signature = {**form.forward, **form.backward}[name]
    arithmetic = Arithmetic(
        store=lambda name, tensor: formats(name).round(tensor), sub_block=contract.sub_block
    )

    def call(x: StageArguments) -> Named:
        written = (run or form.run)(
            x.inputs,
            x.tensors,
            covers=(name,),
            chunk_size=x.chunk_size,
            dtype=contract.work,
            arithmetic=arithmetic,
        )
        return {output: tensor.to(formats(output).dtype) for output, tensor in written.items()}

    return StageCall(
        (name,), signature.reads, signature.writes, call, resets=form is CHANNEL, form=form
    )
