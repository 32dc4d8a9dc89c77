"""Kernels that break one rule of calls each, by the rule, and their twins without a fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.adapters.base import Adapter, Output
from kdaverify.faults.planted import (
    between,
    callers,
    captured,
    copies,
    earlier,
    heads,
    places,
    prefixes,
    segments,
    steps,
    unlike,
    widths,
)
from kdaverify.faults.planted.broken_backwards import (
    Derived,
    cotangent_as_if_dense,
    cotangent_from_the_start,
    cotangent_of_its_memory,
    derived_added_to_unwritten,
    derived_from,
    derived_from_dense_inputs,
    derived_from_the_start_of_inputs,
    derived_in_one_buffer,
    derived_masked_by_products,
    derived_when_long,
    derived_without_writing,
    derived_wrong_at_times,
)
from kdaverify.faults.planted.broken_calls import (
    RIGHT,
    Outputs,
    adds_to_unwritten,
    as_if_dense,
    buffer_of_default_type,
    counted,
    decoding,
    demands,
    first_entry_for_all,
    freed,
    from_the_start,
    grid,
    heads_by_threads,
    int32_offsets,
    kept_for_a_server,
    last_entry_by_number,
    masks_by_products,
    one_buffer,
    one_token_in_place,
    other_for_inference,
    other_when_recorded,
    other_without_gradients,
    overwritten,
    pooled,
    port,
    remembers,
    right,
    ring_of_buffers,
    rounded_in_packs_of_a_server,
    rounded_without_gradients,
    saved_by_the_latest,
    slots_of_the_first_batch,
    tail_of_an_expanded_key,
    tiled_heads,
    variant_of_frozen_rows,
    variant_of_keys,
    when_long,
    writes_sequences_alone,
    wrong_at_first,
    wrong_at_times,
)
from kdaverify.faults.planted.exchanged import (
    derived_from_a_cotangent_by_strides,
    derived_from_a_state_by_strides,
    state_by_strides,
)
from kdaverify.faults.planted.late import (
    first_chunks_again,
    gradients_of_the_next_sequence,
    keys_of_the_first_chunks,
    ring_of_states,
    values_of_the_next_sequence,
)
from oracles.inputs import Inputs


class Tuned(Derived):
    """A kernel with two configurations, the second of which is wrong."""

    def configurations(self) -> Mapping[str, Adapter]:
        return {"warps=4": Derived(), "warps=8": port(lambda x, _: right(replace(x, g=x.g * 0.5)))}


class Optioned(Derived):
    """A kernel that drops its scale once it was called under its option."""

    def __init__(self) -> None:
        super().__init__()
        kept: dict[Any, Any] = {}

        def plain(x: Inputs, _: dict[Any, Any]) -> Outputs:
            return right(replace(x, scale=2.0) if kept else x)

        def optioned(x: Inputs, _: dict[Any, Any]) -> Outputs:
            kept["called"] = True
            return right(x)

        self._plain, self._optioned = port(plain), port(optioned)

    def forward(self, inputs: Inputs) -> Output:
        return self._plain.forward(inputs)

    def variants(self) -> Mapping[str, Adapter]:
        return {"option": self._optioned}


@kernel(name="swallows", contract="chunk64-fp32", packing="cu_seqlens", dtypes=("fp32",))
def swallows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    **rest: Any,
) -> Outputs:
    del rest
    return right(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens))


def twin(kernel: Adapter) -> Adapter:
    """The kernel of its kind without a fault."""
    return Derived() if isinstance(kernel, Derived) else RIGHT


BROKEN: dict[str, Callable[[], Adapter]] = {
    "repeated": lambda: port(wrong_at_times),
    "repeated-step": lambda: port(wrong_at_times),
    "step": lambda: decoding(tiled_heads),
    "repeated-backward": lambda: Derived(derived_wrong_at_times),
    "repeated-real": lambda: port(wrong_at_times),
    "repeated-real-backward": lambda: Derived(derived_wrong_at_times),
    "kept": lambda: port(one_buffer),
    "kept-backward": lambda: Derived(derived_in_one_buffer),
    "edited-offsets": lambda: port(remembers(lambda x: id(x.cu_seqlens), "cu_seqlens")),
    "edited-values": lambda: port(remembers(lambda x: id(x.v), "v")),
    "alternating-scale": lambda: port(remembers(lambda x: x.q.shape, "scale")),
    "alternating-state": lambda: port(remembers(lambda x: x.q.shape, "initial_state")),
    "alternating-packing": lambda: port(remembers(lambda x: x.q.shape, "cu_seqlens")),
    "alternating-shape": lambda: port(
        lambda x, kept: right(replace(x, scale=kept.setdefault("tokens", x.T) / x.T * x.factor))
    ),
    "alternating-dtype": lambda: port(
        lambda x, kept: right(
            replace(x, scale=x.factor * (1 + (kept.setdefault("q", x.q.dtype) != x.q.dtype)))
        )
    ),
    "alternating-option": Optioned,
    "alternating-scale-step": lambda: decoding(remembers(lambda x: x.q.shape, "scale")),
    "alternating-state-step": lambda: decoding(pooled),
    "alternating-batch-step": lambda: decoding(slots_of_the_first_batch),
    "recorded-forward": lambda: port(other_when_recorded),
    "inference-mode": lambda: port(other_for_inference),
    "frozen-inputs": lambda: port(freed),
    "backward-twice": lambda: port(overwritten),
    "cotangent-expanded": lambda: Derived(derived_from(cotangent_of_its_memory)),
    "two-forwards": lambda: port(saved_by_the_latest),
    "first-of-shape": lambda: port(wrong_at_first),
    "view-guarded": lambda: port(from_the_start),
    "view-shifted": lambda: port(demands(32)),
    "view-misaligned": lambda: port(demands(16)),
    "view-sliced": lambda: port(as_if_dense),
    "view-swapped": lambda: port(as_if_dense),
    "view-joined": lambda: port(as_if_dense),
    "view-joined-backward": lambda: Derived(derived_from_dense_inputs),
    "view-expanded": lambda: port(tail_of_an_expanded_key),
    "view-wide": lambda: port(int32_offsets),
    "cotangent-misaligned": lambda: Derived(derived_from(cotangent_from_the_start)),
    "cotangent-sliced": lambda: Derived(derived_from(cotangent_as_if_dense)),
    "cotangent-swapped": lambda: Derived(derived_from(cotangent_as_if_dense)),
    "view-guarded-backward": lambda: Derived(derived_from_the_start_of_inputs),
    "view-sliced-backward": lambda: Derived(derived_from_dense_inputs),
    "view-swapped-backward": lambda: Derived(derived_from_dense_inputs),
    "padding": lambda: port(masks_by_products),
    "padding-backward": lambda: Derived(derived_masked_by_products),
    "unwritten": lambda: port(writes_sequences_alone),
    "unwritten-backward": lambda: Derived(derived_without_writing),
    "view-sliced-long": lambda: port(when_long(as_if_dense)),
    "view-sliced-long-backward": lambda: Derived(derived_when_long(derived_from_dense_inputs)),
    "padding-long": lambda: port(when_long(masks_by_products)),
    "padding-long-backward": lambda: Derived(derived_when_long(derived_masked_by_products)),
    "unwritten-long": lambda: port(when_long(adds_to_unwritten)),
    "unwritten-long-backward": lambda: Derived(derived_when_long(derived_added_to_unwritten)),
    "batch-alone": lambda: port(first_entry_for_all),
    "batch-reversed": lambda: port(last_entry_by_number),
    "crowd": lambda: port(grid),
    "unknown-keyword": lambda: swallows,
    "no-grad": lambda: port(other_without_gradients),
    "no-grad-one-token": lambda: port(one_token_in_place),
    "edited-values-no-grad": lambda: port(kept_for_a_server),
    "tuned": Tuned,
    "frozen-subsets": lambda: port(variant_of_frozen_rows),
    "view-exchanged": lambda: port(state_by_strides),
    "view-exchanged-backward": lambda: Derived(derived_from_a_state_by_strides),
    "cotangent-exchanged": lambda: Derived(derived_from_a_cotangent_by_strides),
    "no-grad-chunks": lambda: port(rounded_without_gradients),
    "late": lambda: port(first_chunks_again),
    "late-backward": lambda: Derived(keys_of_the_first_chunks),
    "copies": lambda: port(copies.states_of_one_block),
    "copies-packed": lambda: port(copies.offsets_of_sixteen_bits),
    "copies-step": lambda: decoding(copies.rounds_of_a_graph),
    "copies-heads": lambda: port(copies.heads_of_a_byte),
    "copies-heads-step": lambda: decoding(copies.heads_of_a_byte),
    "copies-backward": lambda: Derived(copies.checkpoints_of_large_calls),
    "copies-packed-backward": lambda: Derived(copies.a_table_of_sequences),
    "copies-heads-backward": lambda: Derived(copies.a_table_of_heads),
    "copies-backward-twice": lambda: port(copies.saved_memory_of_large_calls),
    "view-expanded-state": lambda: port(places.laid_like_the_given_state),
    "view-expanded-step": lambda: decoding(places.laid_like_the_given_state),
    "chained-calls": lambda: port(places.detached_behind_a_graph),
    "after-refused": earlier.planned,
    "evaluated-before": lambda: port(earlier.gates_of_an_evaluation),
    "shared-forwards": lambda: port(earlier.saved_by_the_address_of_q),
    "masked-loss-backward": lambda: Derived(earlier.dk_from_the_first_chunk_of_the_loss),
    "copies-in-a-row": lambda: port(copies.launches_from_the_start),
    "one-tensor": lambda: port(places.one_buffer_of_rows),
    "one-expanded": lambda: port(places.gradient_of_a_prefix),
    "edited-outputs-backward": lambda: port(callers.kept_output),
    "cotangent-other": lambda: port(callers.loss_of_the_first_backward),
    "cotangent-scaled": lambda: Derived(derived_from(callers.in_the_range_of_fp16)),
    "view-column": lambda: port(callers.offsets_as_they_lie),
    "view-projection": lambda: port(callers.three_runs_of_heads),
    "view-step": lambda: decoding(places.rows_of_a_state_together),
    "view-exchanged-step": lambda: decoding(state_by_strides),
    "copies-after-more": lambda: port(copies.sums_left_over),
    "copies-after-more-backward": lambda: Derived(copies.partial_sums_left_over),
    "behind-long": lambda: port(copies.states_by_slots),
    "behind-long-backward": lambda: Derived(copies.derived_by_slots),
    "one-unlike": lambda: port(unlike.inverted_by_the_mean),
    "grouped-heads": lambda: port(heads.key_heads_of_a_quotient),
    "reversed-heads": lambda: port(heads.kept_by_sums_over_heads),
    "cotangent-cancelling": lambda: Derived(callers.left_out_by_a_sum),
    "zero-state-backward": lambda: port(places.zeros_not_loaded),
    "view-first-entry": lambda: port(places.one_by_address_and_shape),
    "kept-long": lambda: port(ring_of_buffers),
    "step-after-more": lambda: decoding(steps.padded(clear=False)),
    "same-prefix": lambda: port(prefixes.continued(packs=False, exact=False)),
    "same-prefix-packed": lambda: port(prefixes.continued(packs=True, exact=False)),
    "copies-short": lambda: port(copies.states_of_a_table),
    "copies-short-backward": lambda: Derived(copies.derived_by_a_table),
    "head-counts": lambda: port(heads.eight_as_two_times_four),
    "head-counts-backward": lambda: Derived(heads.derived_by_two_times_four),
    "first-neutral": lambda: port(unlike.no_decay_by_the_first_head),
    "fed-back-state": lambda: decoding(steps.state_that_came_back),
    "many-forwards-backward": lambda: port(between.ring_of_keys),
    "two-packs": lambda: port(between.offsets_of_the_latest),
    "edited-inputs-backward": lambda: port(between.kept_input),
    "cotangent-infinite": lambda: Derived(derived_from(callers.overflows_left_out)),
    "evaluated-first": lambda: port(earlier.buffer_of_the_first_call),
    "micro-batches": lambda: port(earlier.gradient_added_to_grad),
    "chunk-counts": lambda: port(segments.segments_from_the_start),
    "chunk-counts-backward": lambda: Derived(segments.derived_from_the_start),
    "no-grad-chunks-packed": lambda: port(rounded_in_packs_of_a_server),
    "after-many": lambda: port(captured.captured("cu_seqlens")),
    "after-many-step": lambda: decoding(captured.captured("scale")),
    "frozen-subsets-chunks": lambda: port(variant_of_keys),
    "threads": lambda: port(heads_by_threads),
    "cotangent-uneven": lambda: Derived(derived_from(callers.one_factor_into_fp16)),
    "sizes-in-turn": lambda: port(widths.tiles_of_48_keys),
    "sizes-in-turn-backward": lambda: Derived(widths.derived_in_tiles_of_48),
    "grouped-heads-backward": lambda: Derived(heads.derived_by_halves),
    "late-packed": lambda: port(values_of_the_next_sequence),
    "late-packed-backward": lambda: Derived(gradients_of_the_next_sequence),
    "head-counts-long": lambda: port(heads.states_of_large_calls),
    "head-counts-long-backward": lambda: Derived(heads.derived_from_saved_values),
    "copies-large-step": lambda: decoding(steps.large_states_in_place),
    "kept-step": lambda: decoding(steps.buffer_of_a_graph),
    "early-backward": lambda: Derived(ring_of_states),
    "cotangent-alone": lambda: Derived(earlier.state_gradient_left_over),
    "stretch-unlike": lambda: port(unlike.inverted_by_the_first_chunk),
    "default-dtype": lambda: port(buffer_of_default_type),
    "default-dtype-backward": lambda: port(buffer_of_default_type),
    "kept-long-step": lambda: decoding(partial(ring_of_buffers, size=128)),
    "fed-back": lambda: port(steps.state_that_came_back),
}
"""By the rule that each breaks."""


class Several(Derived):
    """Kernels in one worker process: one a broken rule, and one that is wrong at first."""

    def __init__(self) -> None:
        super().__init__()
        first = port(lambda x, kept: (right(x)[0] * (1 + (counted(kept) == 1)), right(x)[1]))
        self._made = {
            "right": RIGHT,
            "first-after-start": first,
            **{rule: make() for rule, make in BROKEN.items()},
        }

    def variants(self) -> Mapping[str, Adapter]:
        return self._made
