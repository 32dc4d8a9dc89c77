"""Kernels split between matrix and vector cores: whatever passes between them is stored in a
mailbox, in some format.
"""

from __future__ import annotations

from kdaverify.budgets.designs.catalogue import DESIGNS, design
from kdaverify.budgets.designs.design import Design, Mailbox

__all__ = ["DESIGNS", "Design", "Mailbox", "design"]
