"""The folder of an export: inputs, room for outputs, a manifest and the runner."""

from __future__ import annotations

import shutil
from pathlib import Path

from kdaverify.adapters.exchange.manifest import INPUTS, OUTPUTS, ExchangeError, Manifest
from kdaverify.adapters.exchange.recorder import Recorder

RUNNER = Path(__file__).parent / "standalone" / "run.py"


def prepare(folder: Path, draft: Manifest) -> None:
    """Makes the folder, with a manifest that has no cases yet.

    Raises:
        ExchangeError: there is something in the folder already, or it cannot be made.
        AdapterError: the declaration contradicts itself.
    """
    Recorder(folder, draft)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ExchangeError(f"{folder}: is not empty; name a new folder")
        for name in (INPUTS, OUTPUTS):
            (folder / name).mkdir()
        shutil.copyfile(RUNNER, folder / RUNNER.name)
        draft.write(folder)
    except OSError as error:
        raise ExchangeError(f"{folder}: {error}; name a folder that can be written") from None
