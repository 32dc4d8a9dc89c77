"""Numerical verification of Kimi Delta Attention kernels. `@kdaverify.kernel(...)` turns one
function into an implementation under test.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter, Output
    from kdaverify.adapters.conventions import Conventions
    from kdaverify.adapters.delta_product import delta_product
    from kdaverify.adapters.kernel import kernel
    from kdaverify.adapters.registry import find
    from kdaverify.budgets.contract import Contract, contract_from_name
    from kdaverify.operators.pointwise.call import ActivationCall
    from kdaverify.problems.problem import Problem
    from kdaverify.verdicts.verdict import Verdict

__version__ = "0.2.0"

__all__ = [
    "ActivationCall", "Adapter", "Contract", "Conventions", "Output", "Problem", "Verdict",
    "contract_from_name", "delta_product", "find", "kernel", "suites_folder",
]  # fmt: skip

# Loaded at first use: pytest imports this package in every session of an environment it is
# installed in, torch takes seconds.
_PLACES: Final = {
    "ActivationCall": "kdaverify.operators.pointwise.call",
    "Adapter": "kdaverify.adapters.base",
    "Contract": "kdaverify.budgets.contract",
    "Conventions": "kdaverify.adapters.conventions",
    "Output": "kdaverify.adapters.base",
    "Problem": "kdaverify.problems.problem",
    "Verdict": "kdaverify.verdicts.verdict",
    "contract_from_name": "kdaverify.budgets.contract",
    "delta_product": "kdaverify.adapters.delta_product",
    "find": "kdaverify.adapters.registry",
    "kernel": "kdaverify.adapters.kernel",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'kdaverify' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """What completion offers: also what is loaded at first use."""
    return sorted({*globals(), *__all__})


def suites_folder() -> Path:
    """Where the shipped suites lie: inside the installed package, or beside it in a checkout.

    Raises:
        FileNotFoundError: neither is there.
    """
    package = Path(__file__).parent
    for folder in (package / "suites", package.parent / "suites"):
        if (folder / "kda").is_dir():
            return folder
    raise FileNotFoundError(
        f"suites: neither {package / 'suites'} nor {package.parent / 'suites'} exists; install the"
        " package again"
    )
