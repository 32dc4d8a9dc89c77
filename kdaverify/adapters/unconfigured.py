"""A name that is an implementation only with its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from kdaverify.adapters.base import NOTHING_YET, Adapter, AdapterError
from kdaverify.budgets.contract import Contract
from oracles.inputs import Inputs


class Unconfigured(Adapter):
    """Says which options it needs; with them it is another adapter.

    Args:
        needs: the options, in a sentence.
        make: the adapter that options make.
    """

    dtypes = ()

    def __init__(self, name: str, needs: str, make: Callable[[Mapping[str, str]], Adapter]) -> None:
        self.name = name
        self._needs, self._make = needs, make

    def configured(self, options: Mapping[str, str]) -> Adapter:
        return self._make(options)

    def missing(self) -> str | None:
        return self._needs

    def contract(self, dtype: str) -> Contract:
        self._refuse()

    def forward(self, inputs: Inputs) -> NoReturn:
        self._refuse()

    def proof(self) -> str:
        return NOTHING_YET

    def _refuse(self) -> NoReturn:
        raise AdapterError(f"{self.name}: {self._needs}")
