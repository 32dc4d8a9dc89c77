"""Kernels split between matrix and vector cores: what passes between is in mailboxes."""

from __future__ import annotations

from kdaverify.budgets.designs.catalogue import DESIGNS, design
from kdaverify.budgets.designs.design import Design, Mailbox

__all__ = ["DESIGNS", "Design", "Mailbox", "design"]
