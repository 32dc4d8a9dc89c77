"""Contracts under which a failing case conforms: a kernel that means to compute so declares one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast, final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.checks.outcome import Outcome, rejected

if TYPE_CHECKING:
    from kdaverify.diagnosis.question import PropertyCase
    from kdaverify.operators.function import FunctionOperator


SHOWN: Final = 2


@final
@dataclass(frozen=True)
class UnderContract:
    """A kernel as it is, but for what it declares."""

    judged: Adapter
    declared: Any

    def contract(self, dtype: str) -> Any:
        del dtype
        return self.declared

    def backward_contract(self, dtype: str) -> Any:
        return self.contract(dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.judged, name)


def admitted(
    operator: FunctionOperator, case: PropertyCase, judged: Adapter, *, until: float
) -> str:
    """The wider contracts under which a case passes, as a sentence; "" if it passes as declared, or
    under none.

    Args:
        until: of the monotonic clock; what is begun is ended.
    """
    if not fails(case, judged):
        return ""
    dtype = case.problem.dtype
    io, own = FORMATS[dtype], cast("StorageContract", judged.contract(dtype))
    found = [
        f"{name} (it also admits {_roundings(contract, own)})"
        for name, contract in _contracts(operator, own, io)
        if time.monotonic() < until and passes(case, under(judged, contract))
    ]
    if not found:
        return ""
    return f"within the tolerance of {' or '.join(found[:SHOWN])}: mend it, or declare a contract"


def _contracts(
    operator: FunctionOperator, own: StorageContract, io: Format
) -> Iterator[tuple[str, StorageContract]]:
    """What is declared with one word more, the words that admit least first; then other names."""
    base = own.name.removesuffix(f"-{io.name}")
    names = [
        f"{base}+{word}"
        for word in reversed([*operator.freedoms(io)])
        if word not in base.split("+")
    ]
    for name in (*names, *operator.contracts(io)):
        try:
            found = operator.named_contract(name, io)
        except ContractError:  # a contract of the kernel's own has no name
            continue
        if {*found.tensors} > {*own.tensors}:
            yield name, found


def under(judged: Adapter, contract: Any) -> Adapter:
    """The kernel, as if it declared this contract."""
    return cast("Adapter", UnderContract(judged, contract))


def _roundings(contract: StorageContract, own: StorageContract) -> str:
    return " and ".join(
        f"{name} in {fmt.name}" for name, fmt in contract.tensors.items() if name not in own.tensors
    )


def fails(case: PropertyCase, adapter: Adapter) -> bool:
    """Whether a case is rejected."""
    return rejected(_outcomes(case, adapter))


def passes(case: PropertyCase, adapter: Adapter) -> bool:
    """Whether a case passes, where zeros, say, would not: under a contract that rounds logits near
    -1,000 to bf16 any output passes.
    """
    found = _outcomes(case, adapter)
    compared = [one.comparison for one in found if one.comparison is not None]
    return not rejected(found) and not any(one.vacuous for one in compared)


def _outcomes(case: PropertyCase, adapter: Adapter) -> list[Outcome]:
    from kdaverify.checks.properties import check  # it needs this module first

    return check(case.property, adapter, case.problem, case.detail)
