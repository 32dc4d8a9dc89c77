"""The implementation `offline`: a folder that is being exported, or one that is scored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.exchange.audit import audit
from kdaverify.adapters.exchange.manifest import read
from kdaverify.adapters.exchange.playback import Playback
from kdaverify.adapters.exchange.recorder import Recorder
from kdaverify.adapters.unconfigured import Unconfigured

NEEDS: Final = "it needs a folder: kdaverify export DIR, then kdaverify score DIR"


def _open(options: Mapping[str, str]) -> Adapter:
    """export=DIR or score=DIR.

    Raises:
        AdapterError: neither of them, or nothing can be judged by the folder.
    """
    (way, place), *others = options.items()
    if others or way not in ("export", "score"):
        raise AdapterError(
            f"offline: wanted export=DIR or score=DIR, got {', '.join(options)}; {NEEDS}"
        )
    folder = Path(place)
    manifest = read(folder)
    if way == "export":
        return Recorder(folder, manifest)
    audit(folder, manifest)
    return Playback(folder, manifest)


OFFLINE: Final = Unconfigured("offline", NEEDS, _open)
