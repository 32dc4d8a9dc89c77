"""Contracts of operators that functions implement, for `kdaverify contracts`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdaverify.cli.complaint import Complaint

if TYPE_CHECKING:
    from kdaverify.budgets.formats import Format
    from kdaverify.budgets.sampled import StorageContract
    from kdaverify.operators.bounded import BoundedOperator

TRIED = ("bf16", "fp16", "fp32")
"""Formats of inputs that a name may be for, where none is given."""
DELTA = ("recurrent-bf16", "chunk64-bf16")
"""Names like those of the delta rule, whose own parser explains what is wrong with one."""


@dataclass(frozen=True)
class OperatorContract:
    """A contract, its name, the inputs' format that it is for, and its operators."""

    name: str
    contract: StorageContract
    dtype: str
    operators: tuple[str, ...]

    @property
    def declares(self) -> str:
        """Which tensors have which format, one after the other."""
        formats = dict.fromkeys(fmt.name for fmt in self.contract.tensors.values())
        of = {
            fmt: [name for name, one in self.contract.tensors.items() if one.name == fmt]
            for fmt in formats
        }
        stored = (f"{', '.join(names)} in {fmt}" for fmt, names in of.items())
        return "; ".join((*stored, f"sums in {self.contract.accumulate.name}"))

    @property
    def about(self) -> str:
        return f"of {', '.join(self.operators)}"

    def json(self) -> dict[str, Any]:
        keys = ("key", "value", "meaning")
        return {
            "name": self.name,
            "about": self.about,
            "dtype": self.dtype,
            "operands": self.contract.operands.name,
            "sums": self.contract.accumulate.name,
            "keys": [dict(zip(keys, one, strict=True)) for one in self.contract.described()],
            "kernels": list(self.contract.kernels()),
        }

    def show(self, console: Console) -> None:
        console.print(Text(self.name, "bold"), Text(f"for {self.dtype} inputs"))
        operands, sums = self.contract.operands.name, self.contract.accumulate.name
        console.print(Text(f"{self.about}; operands {operands}, sums {sums}"))
        rows = self.contract.described()
        shown = 3 if any(meaning for _, _, meaning in rows) else 2
        table = Table(*("key", "declared", "meaning")[:shown])
        for row in rows:
            table.add_row(*map(Text, row[:shown]))
        if rows:
            console.print(table)
        for name in self.contract.kernels():
            console.print(Text(f"  reference kernel: {name}"))


def listed() -> list[OperatorContract]:
    """The contracts that have a name of their own, as they are for the usual inputs; those with
    more in brackets are left out.
    """
    names = dict.fromkeys(name for one in _operators() for name in one.contracts(_format(TRIED[0])))
    found = (storage_contract(name, TRIED[0]) for name in names if "[" not in name)
    return [one for one in found if one is not None]


def storage_contract(name: str, dtype: str | None) -> OperatorContract | None:
    """The contract of a name; None where the nearest name is not one of these operators.

    Args:
        dtype: format of the inputs; None for the first that the name is for.
    Raises:
        ContractError: the nearest name is, and this one is wrong.
    """
    for fmt in TRIED if dtype is None else (dtype,):
        found = {one.name: _named(one, name, fmt) for one in _operators()}
        known = {op: contract for op, contract in found.items() if contract is not None}
        if known:
            return OperatorContract(name, next(iter(known.values())), fmt, tuple(known))
    near = _nearest(name)
    if near is not None:
        if dtype is not None and dtype not in near.formats:
            raise Complaint(f"--dtype: {near.name} takes {', '.join(near.formats)}, got {dtype!r}")
        near.named_contract(name, _format(dtype or TRIED[0]))
    return None


def _operators() -> list[BoundedOperator]:
    from kdaverify.operator import OPERATORS, operator_named
    from kdaverify.operators.bounded import BoundedOperator

    return [one for one in map(operator_named, OPERATORS) if isinstance(one, BoundedOperator)]


def _format(name: str) -> Format:
    from kdaverify.budgets.formats import FORMATS

    return FORMATS[name]


def _named(operator: BoundedOperator, name: str, dtype: str) -> StorageContract | None:
    from kdaverify.budgets.contract_checks import ContractError

    try:
        return operator.named_contract(name, _format(dtype)) if dtype in operator.formats else None
    except ContractError:
        return None


def _nearest(name: str) -> BoundedOperator | None:
    """The operator of the nearest name; None where that is one of the delta rule."""
    from kdaverify.budgets.presets import presets

    of = {
        each: one for one in _operators() for fmt in TRIED for each in one.contracts(_format(fmt))
    }
    base = re.split(r"[\[+]", name)[0]
    near = get_close_matches(base, (*presets(), *DELTA, *of), n=1)
    return of.get(near[0]) if near else None
