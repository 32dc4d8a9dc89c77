"""Whether a process of another process is still there."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """A process that has ended counts as gone, waited for by its parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
