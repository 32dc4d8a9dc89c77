"""Contracts of shipped implementations: NAME.toml, and NAME-DTYPE.toml for one format."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.contract_file import ContractFile, read_contract

FOLDER: Final = Path(__file__).parent


@functools.cache
def presets() -> Mapping[str, ContractFile]:
    """Every shipped contract file, by the name of its file."""
    return {
        path.stem: read_contract(path)
        for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)
    }


@functools.cache
def preset(name: str, dtype: str) -> Contract:
    """The shipped contract of that name for inputs of a format.

    Raises:
        ContractError: there is none.
    """
    found = presets().get(f"{name}-{dtype}") or presets().get(name)
    if found is None:
        raise ContractError(f"contract {name!r} is no shipped one; they are {', '.join(presets())}")
    return found.contract(dtype)
