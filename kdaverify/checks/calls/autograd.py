"""How autograd calls a kernel changes nothing: recording, inference mode, inputs, repeats.

A training step calls a kernel otherwise than a test does. It records a graph, so that the kernel
takes the path that saves tensors; it freezes parameters, so that some inputs need no gradient; and
`o.sum().backward()` hands over an incoming gradient of stride 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import values_of
from kdaverify.adapters.isolation.arena import same
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import check_inputs_kept, watched
from kdaverify.checks.outcome import Outcome
from oracles.autograd import NO_GRAPH, frozen, gradients_of, leaf, within_torch
from oracles.signature import TensorCall

SECOND: Final = "in a second backward of the same call"
OF_A_SUM: Final = 0.75
"""Each element of the incoming gradient of a scaled sum. A kernel that took stride 0 for ones was
accepted where it was 1."""


@dataclass(frozen=True)
class RecordedCall:
    """One call with a graph behind it.

    Args:
        outputs: by name; those with a graph alone can be differentiated.
        leaves: the inputs that require gradients, by name.
    """

    outputs: Tensors
    leaves: Tensors

    def gradients(self, cotangents: Tensors, *, keep: bool = False) -> Tensors:
        """By the name of the input.

        Args:
            cotangents: by the name of the output.
            keep: whether the graph can be walked again.
        """
        return gradients_of(self.outputs, self.leaves, cotangents, keep=keep)


def recorded(
    case: CallRuleCase, wanted: Collection[str], inputs: Any = None, **made: Tensor
) -> RecordedCall:
    """A call of which some inputs require gradients.

    Args:
        wanted: their names.
        inputs: of the call; None for those of the case.
        made: inputs that come from elsewhere, as they are.
    Raises:
        Unreachable: no output has a graph of torch.
    """
    own: TensorCall = (case.inputs if inputs is None else inputs).copied()
    leaves = {name: leaf(tensor) for name, tensor in own.tensors().items() if name in wanted}
    # a dataclass each
    given: Any = replace(own, **{**leaves, **made})  # pyright: ignore[reportArgumentType]
    return RecordedCall(recorded_outputs(case, given), leaves)


def recorded_outputs(case: CallRuleCase, given: TensorCall) -> Tensors:
    """The outputs of a call whose inputs require gradients.

    Raises:
        Unreachable: no output has a graph of torch.
        ForwardOnlyError: the kernel leaves torch.
    """
    returned = watched(lambda: within_torch(lambda: case.adapter.forward(given)), "call")
    outputs = {name: values_of(returned)[name] for name in case.exposed}
    if not any(output.requires_grad for output in outputs.values()):
        raise Unreachable(NO_GRAPH)
    return outputs


def _recording(case: CallRuleCase) -> list[Outcome]:
    plain, call = case.run(), recorded(case, case.inputs.signature.gradients.values())
    found = {name: output.detach() for name, output in call.outputs.items()}
    return same_or_right(plain, found, case.judged, "while autograd records")


def _inference(case: CallRuleCase) -> list[Outcome]:
    plain = case.run()
    return same_or_right(plain, in_inference_mode(case), case.judged, "in inference mode")


def in_inference_mode(case: CallRuleCase) -> Tensors:
    """The outputs of a call there; only a copy made outside can be judged."""
    with torch.inference_mode():
        found = case.run()
    return {name: output.clone() for name, output in found.items()}


def _frozen(case: CallRuleCase) -> list[Outcome]:
    names = [name for name in case.inputs.signature.gradients.values() if case.inputs.holds(name)]
    if len(names) < 2:
        raise Unreachable("fewer than two of its inputs have a gradient")
    return [one for found in where_alone(case, names, parts(names)) for one in found]


def where_alone(
    case: CallRuleCase, names: Sequence[str], sets: Iterable[tuple[str, ...]]
) -> Iterator[list[Outcome]]:
    """The outcomes of the gradients where each set of inputs alone requires them.

    Args:
        names: of all inputs that have one.
    """
    recorded(case, names)
    plain = received_gradients(case, names)
    # what is judged outside the kernel's process may be of another problem: the call is named
    judge = partial(case.judged_back, given=case.cotangents, inputs=case.inputs)
    for part in sets:
        found = received_gradients(case, part)
        beside = {name: plain[name] for name in found}
        said = f"where {', '.join(part)} alone require gradients"
        yield same_or_right(beside, found, judge, said)


def parts(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All names but one, then each alone.

    Few parts that separate every two names are not enough: a gate's gradient that is left out where
    beta and q have none shows where the gate is alone.
    """
    if len(names) > 2:
        yield from (tuple(name for name in names if name != other) for other in names)
    yield from ((name,) for name in names)


def received_gradients(case: CallRuleCase, wanted: Collection[str]) -> Tensors:
    """Of what the kernel receives, by the name of the gradient.

    A leaf in front of a conversion would leave out inputs that are converted: a port with gates in
    base 2 that lost them where beta was frozen was accepted.
    """
    own, gradients = case.inputs.copied(), case.inputs.signature.gradients
    with frozen({*gradients.values()} - {*wanted}):
        found = values_of(watched(lambda: case.adapter.gradients(own, case.cotangents), "call"))
    check_inputs_kept(own, case.inputs)
    return {dx: found[dx].detach() for dx, name in gradients.items() if name in wanted}


def unconverted(case: CallRuleCase) -> tuple[str, ...]:
    """Inputs with gradients that reach the kernel unconverted: a logit's gradient differs."""
    given, received = case.inputs.tensors(), case.adapter.received(case.inputs).tensors()

    def is_kept(name: str) -> bool:
        # NaN as well: what memory that nobody reads holds
        return (
            name in given
            and received[name].dtype == given[name].dtype
            and same(received[name], given[name])
        )

    return tuple(filter(is_kept, case.inputs.signature.gradients.values()))


def gradients_of_call(case: CallRuleCase, call: RecordedCall) -> Tensors:
    """Of the case's loss, by the name of the gradient."""
    return by_gradient(case, watched(lambda: call.gradients(incoming(case)), "call"))


def by_gradient(case: CallRuleCase, found: Tensors) -> Tensors:
    """Gradients by their own names, from those by the names of inputs."""
    return {
        gradient: found[name]
        for gradient, name in case.inputs.signature.gradients.items()
        if name in found
    }


def incoming(case: CallRuleCase, loss: Any = None) -> Tensors:
    """The cotangents of a loss, or of the case's, by the name of the output."""
    given = values_of(case.cotangents if loss is None else loss)
    return {
        output: given[name]
        for name, output in case.inputs.signature.cotangents.items()
        if given.get(name) is not None
    }


def _twice(case: CallRuleCase) -> list[Outcome]:
    before, after = two_backwards(case, recorded(case, unconverted(case)))
    return same_or_right(before, after, case.judged_back, SECOND)


def two_backwards(
    case: CallRuleCase, call: RecordedCall, loss: Any = None
) -> tuple[Tensors, Tensors]:
    """The gradients of one call, and those of a second backward of it.

    Raises:
        Unreachable: its backward runs once.
    """
    given = incoming(case, loss)
    first = watched(lambda: call.gradients(given, keep=True), "call")
    before = {name: dx.clone() for name, dx in by_gradient(case, first).items()}
    return before, by_gradient(case, second_backward(call, given))


def second_backward(call: RecordedCall, given: Tensors) -> Tensors:
    """The gradients of a call that had a backward.

    Raises:
        Unreachable: its backward runs once.
    """
    try:
        return call.gradients(given)
    except RuntimeError as error:
        # Functions that free what they saved save memory, and say so: nobody gets a wrong gradient.
        raise Unreachable(
            f"its backward runs once a call: {str(error).partition(chr(10))[0]}"
        ) from None


def _expanded(case: CallRuleCase) -> list[Outcome]:
    case.reaches("memory")
    there, home = case.inputs.on(case.place), case.inputs.device
    given = case.loss_on(case.place).items()
    dense = {name: torch.full_like(tensor, OF_A_SUM) for name, tensor in given}
    views = {name: one.new_tensor(OF_A_SUM).expand(one.shape) for name, one in dense.items()}
    plain, found = (
        {name: dx.to(home) for name, dx in case.back(case.loss_of(each), there).items()}
        for each in (dense, views)
    )
    judge = partial(
        case.judged_back, given=case.loss_of({name: one.to(home) for name, one in dense.items()})
    )
    return same_or_right(plain, found, judge, "from incoming gradients of stride 0")


_rule = partial(CallRule, size="tails", backward=True, costly=True, spare=False, inside=True)
RULES: Final = (
    _rule("recorded-forward", "a call that autograd records returns what any other does",
          "a forward for training that computes otherwise than the one for inference", _recording),
    CallRule("inference-mode", "a call in torch's inference mode returns what any other does",
             "a path of its own for inference, a cache filled there with tensors that no graph"
             " takes", _inference, size="tails", spare=False, costly=True, inside=True),
    _rule("frozen-inputs", "an input has the same gradient where other inputs need none",
          "gradients computed on the way to one that is not needed, and left out with it", _frozen,
          sets=True),
    _rule("backward-twice", "a second backward of the same call gives the same gradients",
          "saved tensors that the backward overwrites, sums that it does not begin at 0", _twice),
    _rule("cotangent-expanded",
          "incoming gradients of stride 0, as those of a scaled o.sum() are, give the gradients"
          " that dense ones do",
          "strides of an incoming gradient ignored, or taken for those of another tensor, or for"
          " ones",
          _expanded, channel="memory"),
)  # fmt: skip
