"""Exact values and tolerances of attention: those of merges are proven bounds, counted rounding by
rounding; those of attention come from reference kernels, run on the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.attention.calls import (
    as_read,
    attention_contracts,
    call_gradient_reference,
    call_reference,
)
from kdaverify.budgets.attention.contract import AttentionContract, attention_contract
from kdaverify.budgets.bounded import Counted, ResultTraits, bounded_reference, precision_of
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.budgets.standard import Reference
from oracles.attention.calls import MergeCall, RequestsCall
from oracles.attention.exact import Softmax, enclosed
from oracles.attention.sink import softmax_of
from oracles.attention.softmax_precision import EXACT, Known, SoftmaxPrecision
from oracles.attention.split import merge, merge_errors
from oracles.pointwise.rounding import FLOAT64, Precision, RoundingError

WIDE: Final = ("fp64", "fp32", "tf32")
Join = Callable[[Sequence[Tensor]], Tensor]


def tolerances(
    call: RequestsCall | MergeCall,
    contract: StorageContract,
    io: Format,
    cotangents: Mapping[str, Tensor] | None = None,
) -> Reference:
    """The exact outputs of a call, or gradients, and the largest error of a conforming kernel.

    Args:
        cotangents: of the outputs, by name; None for outputs.
    """
    exact = counted(call, cotangents, None, io)
    if isinstance(contract, AttentionContract) and not isinstance(call, MergeCall):
        known = {name: enclosed(one) for name, one in exact.items()}
        if cotangents is None:
            return call_reference(call, known, contract)
        return call_gradient_reference(call, cotangents, known, contract)
    kernel = counted(call, cotangents, contract, io)
    formats = {name: FORMATS["fp32"] if name == "lse" else io for name in exact}
    traits = ResultTraits(dict.fromkeys(exact, rows(call)))
    return bounded_reference(exact, kernel, formats, traits)


def rows(call: RequestsCall | MergeCall) -> int:
    """Rows of a result: a row has one LSE for all of its columns."""
    like = call.o_a if isinstance(call, MergeCall) else call.q
    return like[..., 0].numel()


def contracts(io: Format) -> Mapping[str, StorageContract]:
    """Those of attention; a merge has their sums, and rounds its result."""
    return attention_contracts(io)


def named_contract(name: str, io: Format) -> StorageContract:
    """Any of attention, with what is stored narrower in brackets.

    Raises:
        ContractError: the name does not parse, or its products take another 16-bit format.
    """
    found = attention_contract(name, io)
    if found.operands.name not in (io.name, *WIDE):
        raise ContractError(
            f"{name!r} has operands in {found.operands.name}, the inputs are {io.name}; declare"
            f' a contract for each dtype, contract={{"{io.name}": ...}}'
        )
    return found


def counted(
    call: RequestsCall | MergeCall,
    cotangents: Mapping[str, Tensor] | None,
    contract: StorageContract | None,
    io: Format,
) -> Counted:
    """Values and errors of a kernel under the contract, or of the oracle where there is none; LSE
    is 0 in rows without keys, where adapters check the declared value.
    """
    if isinstance(call, MergeCall):
        return _merged(call, contract, io)
    precision = EXACT if contract is None else _precision(contract, io)
    read = call if contract is None else as_read(call, contract)
    parts = [softmax_of(segment, precision) for segment in read.segments()]
    if cotangents is None:
        found = {
            "o": [part.o for part in parts],
            "lse": [_finite(part.returned_lse) for part in parts],
        }
        joined = {name: _joined(call, name, known) for name, known in found.items()}
        return joined if contract is None else joined | {"lse": _stored(joined["lse"], contract)}
    joined = _differentiated(call, parts, cotangents, precision.accumulate)
    if contract is None:
        return joined
    wide = joined.pop("dsink", None)  # as the sink, it is no tensor of 16 bits
    found = {n: (x, error.returned(x, precision_of(io))) for n, (x, error) in joined.items()}
    return found if wide is None else {**found, "dsink": wide}


def _precision(contract: StorageContract, io: Format) -> SoftmaxPrecision:
    scores = (_narrow(contract, name) for name in ("product", "S"))
    return SoftmaxPrecision(
        precision_of(contract.accumulate),
        _narrow(contract, "P"),
        precision_of(io),
        tuple(one for one in scores if one is not None),
        _narrow(contract, "q_scaled"),
        _narrow(contract, "PV"),
        _narrow(contract, "P_backward") if _rounds_weights(contract) else None,
        _narrow(contract, "P") if _may_add_rounded(contract) else None,
    )


def _may_add_rounded(contract: StorageContract) -> bool:
    return isinstance(contract, AttentionContract) and contract.row_sum != "unrounded"


def _rounds_weights(contract: StorageContract) -> bool:
    return isinstance(contract, AttentionContract) and contract.d_scores == "rounded"


def _narrow(contract: StorageContract, name: str) -> Precision | None:
    """What a tensor is rounded to where that is not the format of sums."""
    stored = contract.tensors.get(name)
    return None if stored in (None, contract.accumulate) else precision_of(stored)


def _stored(lse: Known, contract: StorageContract) -> Known:
    """LSE in the format that it is returned in, where that is narrower than its sums'."""
    (value, error), fmt = lse, contract.storage("lse")
    narrow = fmt.unit > contract.accumulate.unit
    return value, error.returned(value, precision_of(fmt)) if narrow else error


def _finite(known: Known) -> Known:
    value, error = known
    return value.masked_fill(torch.isneginf(value), 0.0), error


def _joined(call: RequestsCall, name: str, parts: Sequence[Known]) -> Known:
    return _together(parts, lambda found: call.joined(name, found))


def _together(parts: Sequence[Known], join: Join) -> Known:
    error = RoundingError.joined([error for _, error in parts], join)
    return join([value for value, _ in parts]), error


def _differentiated(
    call: RequestsCall,
    parts: Sequence[Softmax],
    cotangents: Mapping[str, Tensor],
    accumulate: Precision,
) -> dict[str, Known]:
    """Gradients by name; where they are sums over requests, in any order."""
    losses = call.losses(cotangents)
    found = [part.backward(*loss) for part, loss in zip(parts, losses, strict=True)]

    def joined(pick: Callable[[Tensor, RoundingError], Tensor]) -> dict[str, Tensor]:
        return call.joined_gradients([[pick(*one) for one in part] for part in found])

    bound, variance, lean = (
        joined(lambda _, error, name=name: getattr(error, name))
        for name in ("bound", "variance", "lean")
    )
    overflows = any(error.overflows for part in found for _, error in part)
    moduli = joined(lambda x, error: x.abs() + error.bound)
    terms = joined(lambda x, _: torch.ones_like(x))
    return {
        name: (
            value,
            RoundingError(bound[name], variance[name], lean[name], overflows)
            + RoundingError.rounding(moduli[name], _sums(terms[name]), accumulate),
        )
        for name, value in joined(lambda x, _: x).items()
    }


def _sums(terms: Tensor) -> float:
    """Additions in the longest sum."""
    return max(float(terms.max()) - 1, 0.0) if terms.numel() else 0.0


def _merged(call: MergeCall, contract: StorageContract | None, io: Format) -> Counted:
    # The function takes LSE as [H, T] and o as [T, H, d_v].
    states = (call.o_a, call.lse_a.mT), (call.o_b, call.lse_b.mT)
    o, lse = merge(*states[0], *states[1])
    precision = FLOAT64 if contract is None else precision_of(contract.accumulate)
    by_lse = isinstance(contract, AttentionContract) and contract.weights == "lse"
    o_error, lse_error = merge_errors(*states, precision, relative_to_lse=by_lse)
    if contract is not None:
        o_error = o_error.returned(o, precision_of(io))
    of_lse = lse.mT, lse_error.mapped(lambda x: x.mT)
    return {"o": (o, o_error), "lse": _finite(of_lse)}
