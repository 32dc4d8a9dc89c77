"""A folder of files by key, and arrays as bytes for it: a look-up costs a millisecond; damaged
files are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUFFIX = ".answer"
LIMIT_BYTES = 2 * 2**30
DIGEST_BYTES = hashlib.sha256().digest_size


Array = NDArray[Any]


def packed(arrays: Mapping[str, Array]) -> bytes:
    """A line of JSON with the name, type and shape of every array, then their elements.

    That takes a tenth of the time of NumPy's archives: those are zip files, and most arrays here
    are a number each.
    """
    head = [[name, array.dtype.str, array.shape] for name, array in arrays.items()]
    return b"\n".join(
        (json.dumps(head).encode(), b"".join(array.tobytes() for array in arrays.values()))
    )


def unpacked(payload: bytes) -> dict[str, Array]:
    """The arrays that `packed` made bytes of; each can be written to."""
    head, _, elements = payload.partition(b"\n")
    found: dict[str, Array] = {}
    first = 0
    for name, kind, shape in json.loads(head):
        array = np.empty(shape, dtype=np.dtype(kind))
        last = first + array.nbytes
        array[...] = np.frombuffer(elements[first:last], dtype=array.dtype).reshape(shape)
        found[name], first = array, last
    return found


class FileCache:
    """A folder of bytes by key, safe under several processes.

    Files appear whole (written aside, then renamed) and carry a digest of their key and content. A
    folder that cannot be written holds nothing and fails nothing. Past `limit` bytes the files
    unused for longest go.

    Args:
        folder: made on the first `write`.
        limit: bytes kept, within a sixteenth.
    """

    def __init__(self, folder: Path | str, *, limit: int = LIMIT_BYTES) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self._unchecked = limit  # bytes written since the folder was last measured

    def read(self, key: str) -> bytes | None:
        """The bytes written under `key`; None where there are none, or the file is damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if digest != _digest(key, payload):
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def write(self, key: str, payload: bytes) -> None:
        """Keep bytes; those already there are replaced."""
        with suppress(OSError):
            self._make_folder()
            self._write(self._path(key), _digest(key, payload) + payload)
            self._unchecked += len(payload)
            if self._unchecked > self.limit // 16:
                self._evict()

    def _make_folder(self) -> None:
        """A new folder is ignored by git: one inside a checkout was committed once, 190 MB."""
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / ".gitignore").write_text("*\n", encoding="utf-8")

    def _path(self, key: str) -> Path:
        return self.folder / (key + SUFFIX)

    def _write(self, path: Path, content: bytes) -> None:
        handle, name = tempfile.mkstemp(prefix=".part-", suffix=SUFFIX, dir=self.folder)
        aside = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _evict(self) -> None:
        self._unchecked = 0
        files: list[tuple[float, int, Path]] = []
        # Parts left behind by a process that died end in the suffix too; nobody else's files do.
        for path in self.folder.glob("*" + SUFFIX):
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        excess = sum(size for _, size, _ in files) - self.limit
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            with suppress(OSError):
                path.unlink()
            excess -= size


def _digest(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + payload).digest()


def default_folder() -> Path:
    """$KDAVERIFY_CACHE, else kdaverify in $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("KDAVERIFY_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kdaverify"
