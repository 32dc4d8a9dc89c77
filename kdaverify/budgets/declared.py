"""A contract by whatever names it: a file, a shipped preset, or a name that says it all."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.contract_file import read_contract
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.presets import preset, presets

Declared = Contract | str | Path


def declared_contract(
    given: object, dtype: str | None = None, *, beside: Path | None = None
) -> Contract:
    """The contract that is meant.

    Args:
        given: a Contract, a path that ends in .toml, a shipped preset (kdaverify contracts list),
            or a name such as chunk64-bf16.
        dtype: format of the inputs, for files and presets that request it.
        beside: folder that a relative path is looked up in before the working directory.
    Raises:
        ContractError: nothing by that name, or a file that is no contract.
    """
    if isinstance(given, Contract):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".toml")):
        there = Path() if beside is None else beside
        return read_contract(there / given if (there / given).is_file() else Path(given)).contract(
            dtype
        )
    if not isinstance(given, str):
        raise ContractError(
            "contract: wanted a preset name such as 'chunk64-bf16', a .toml file or a Contract,"
            f" got {given!r}"
        )
    if given in presets() or (dtype is not None and f"{given}-{dtype}" in presets()):
        return presets()[given].contract(dtype) if dtype is None else preset(given, dtype)
    try:
        return contract_from_name(given)
    except ContractError as error:
        near = difflib.get_close_matches(given, presets(), n=1)
        raise ContractError(
            f"{error}; or a .toml file, or a shipped"
            f" contract{f' such as {near[0]!r}' if near else ''}"
        ) from None


def declared_contracts(
    declared: Declared | Mapping[str, Declared] | None,
    dtypes: Sequence[str],
    *,
    backward: Declared | Mapping[str, Declared] | None = None,
    beside: Path | None = None,
) -> dict[str, Contract]:
    """One contract for each input format; by default the strictest, the recurrence in fp32.

    Args:
        backward: that of the backward, where it has its own.
    Raises:
        ContractError: a format that is not judged, one without a contract, or no contract.
    """
    names = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)
    judged = [name for name in FORMATS if name != "tf32"]
    if not names or any(dtype not in judged for dtype in names):
        raise ContractError(f"dtypes: wanted some of {', '.join(judged)}, got {list(names)}")
    if declared is None:
        declared = {
            dtype: "recurrent-fp64" if dtype == "fp64" else "recurrent-fp32" for dtype in names
        }
    found = _of_each(declared, names, "contract", beside)
    back = {} if backward is None else _of_each(backward, names, "backward", beside)
    return found | {dtype: replace(found[dtype], backward=own) for dtype, own in back.items()}


def _of_each(
    declared: Declared | Mapping[str, Declared],
    names: tuple[str, ...],
    option: str,
    beside: Path | None,
) -> dict[str, Contract]:
    """The contract of every format."""
    of = declared if isinstance(declared, Mapping) else dict.fromkeys(names, declared)
    if set(of) != set(names):
        raise ContractError(
            f"{option}: wanted one for each of the dtypes {', '.join(names)}, got"
            f" {', '.join(of) or 'none'}"
        )
    return {dtype: declared_contract(of[dtype], dtype, beside=beside) for dtype in names}
