"""What rules of calls need of an operator's calls: what one can be made of, what two can
differ in, what one may hold where nobody reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from kdaverify.problem_operator import Operator

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.checks.calls.rule import CallRule


class RuledOperator(Operator):
    """An operator whose calls are tested by rules, whatever their numbers.

    Args:
        has_keys: whether problems of one shape can differ in which keys rows see.
        has_sources: whether one tensor can be several inputs, heads or entries of a call.
        holds_nan: whether the rows of a sequence may be NaN, beside others that are not.
        has_copies: whether many copies of a small problem are one call.
        has_far_keys: whether keys of weight 0 may be before those of a call.
        equal_sizes: whether there are problems for rules of calls whose axes no size distinguishes.
        combines_sizes: whether it has problems of many sizes at once: see `combined_sizes`.
        long_sums: fields of batches of two entries with as many rows as programs share sums of
            gradients of parameters over; none of operators without parameters, or whose exact
            values take long.
        has_sizes_in_turn: whether it has small problems of single sizes: see `sizes_in_turn`.
        growing: fields of a problem whose every request has several keys: see `one_key_fewer`.
        fed_back: outputs that the next call may take, and the inputs that they are there.
        odd: sets of inputs and outputs that change sign together, exactly.
    """

    has_keys: ClassVar[bool] = False
    has_sources: ClassVar[bool] = False
    has_copies: ClassVar[bool] = False
    has_far_keys: ClassVar[bool] = False
    holds_nan: ClassVar[bool] = False
    equal_sizes: ClassVar[bool] = False
    combines_sizes: ClassVar[bool] = False
    long_sums: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    has_sizes_in_turn: ClassVar[bool] = False
    growing: ClassVar[Mapping[str, Any]] = {}
    fed_back: ClassVar[Mapping[str, str]] = {}
    odd: ClassVar[tuple[frozenset[str], ...]] = ()

    def in_other_forms(self, rule: CallRule, problem: Any) -> Mapping[str, Any]:
        """Further problems that a rule of calls is tested on, by what is other about each: those of
        other axes, where a function takes several; none by default.
        """
        return {}

    def in_other_widths(self, adapter: Adapter, rule: CallRule, problem: Any) -> Mapping[str, Any]:
        """The problem of a rule of calls in widths that have kernels of their own, by width."""
        del adapter, rule, problem
        return {}

    def combined_sizes(self, adapter: Adapter, profile: str, *, backward: bool) -> Sequence[Any]:
        """Problems with every pair, or triple, of sizes that kernels choose paths by."""
        del adapter, profile, backward
        return ()

    def sizes_in_turn(self, adapter: Adapter, dtype: str, *, backward: bool) -> Sequence[Any]:
        """Small problems that an implementation takes, each of a size that the panel lacks."""
        del adapter, dtype, backward
        return ()

    def within_bounds(
        self, adapter: Adapter, call: Any, found: Mapping[str, Any], given: Any
    ) -> frozenset[str]:
        """The outputs, or gradients, whose elements are all within a proven error bound; none where
        there is no such bound.

        Args:
            given: the cotangents of the gradients; None for outputs.
        """
        del adapter, call, found, given
        return frozenset()

    def other_offsets(self, problem: Any) -> dict[str, Any] | None:
        """Fields of a pack of the same size whose sequences begin elsewhere; None of a batch."""
        if problem.lengths is None:
            return None
        first, *rest = problem.lengths
        return {"lengths": (*rest, first)}

    def other_keys(self, problem: Any) -> Mapping[str, dict[str, Any]]:
        """Fields of problems of the same shape in which rows see other keys, by what is other."""
        del problem
        return {}

    def other_scale(self, problem: Any) -> dict[str, Any] | None:
        """Fields of the same problem under half of the default scale; None where it has none."""
        if "scale" not in type(problem).model_fields:
            return None
        return {"scale": 0.5 * problem.K**-0.5}

    def inputs_alike(self, problem: Any) -> Iterable[tuple[frozenset[str], Mapping[str, Any]]]:
        """Inputs any two of which can be one tensor, and the fields of a problem under which they
        have equal shapes.
        """
        return ()

    def expanded_axes(self) -> Iterable[tuple[str, int, tuple[str, ...]]]:
        """Axes that inputs can be expanded over: what lies there, which axis, of which inputs."""
        return ()

    def copies(self) -> Iterable[Any]:
        """What there can be many copies of in one call: see `ManyCopies`."""
        return ()

    def with_keys_before(self, problem: Any, count: int) -> dict[str, Any]:
        """Fields of a problem with so many keys more in a request, where `has_far_keys`."""
        raise NotImplementedError

    def behind_far_keys(self, call: Any, count: int) -> tuple[Any, Any]:
        """A call like this one, and the same behind so many keys of weight 0."""
        raise NotImplementedError

    def one_key_fewer(self, call: Any) -> Any:
        """The call whose next token this is, over the same memory; None where there is none."""
        del call
        return None

    def other_steps(self, adapter: Adapter, problem: Any) -> Iterable[Mapping[str, Any]]:
        """Fields of further calls that the decode entry point is tested on, beside `problem`."""
        return ()

    def unused_rows(self, call: Any) -> Mapping[str, tuple[int, int]]:
        """Of a pack's tensors with a row a token, the token axis and its sequences' rows."""
        # The command line names operators without torch, which oracles import.
        from oracles.signature import Role

        of_tokens = (
            tensor.name
            for tensor in (*self.signature.inputs, *self.signature.outputs)
            if tensor.role is Role.TOKEN
        )
        return dict.fromkeys(of_tokens, (1, sum(call.lengths)))

    def unused_number(self, adapter: Adapter) -> float:
        """What rows past the last offset, and their cotangents, may hold for an implementation."""
        return math.nan
