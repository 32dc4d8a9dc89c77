"""The implementation that a command names, ready to be called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdaverify.cli.complaint import Complaint

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.limits import Limits


def implementation(spec: str, *, isolate: bool | None, limits: Limits) -> Adapter:
    """What `--impl` names, in the process it is to run in.

    Raises:
        Complaint: there is none, or it cannot run here.
    """
    from kdaverify.adapters.base import AdapterError
    from kdaverify.adapters.isolation import housed
    from kdaverify.adapters.registry import find

    try:
        adapter = housed(find(spec), spec, isolate=isolate, limits=limits)
    except AdapterError as error:
        raise Complaint(f"--impl: {error}") from None
    missing = adapter.missing()
    if missing:
        raise Complaint(f"--impl: {adapter.name} cannot run here, {missing}")
    return adapter
