"""Certified answers on disk: a look-up costs a millisecond; damaged files are refused."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, cast

import flint
import numpy as np
import torch
from torch import Tensor

from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.gradients import GradientAnswer, Gradients, Terms
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, OUTPUTS

SUFFIX = ".answer"
LIMIT_BYTES = 2 * 2**30
TERMS = "terms of "
PARTS = ("high", "low", "radius", "zero")
DIGEST_BYTES = hashlib.sha256().digest_size

Kept = CertifiedOutputs | GradientAnswer
K = TypeVar("K", CertifiedOutputs, GradientAnswer)


class AnswerCache:
    """A folder of answers, safe under several processes.

    Files appear whole (written aside, then renamed) and carry a digest of their key and content. A
    folder that cannot be written holds nothing and fails nothing. Past `limit` bytes the files
    unused for longest go.

    Args:
        folder: made on the first `put`.
        limit: bytes kept, within a sixteenth.
    """

    def __init__(self, folder: Path | str, *, limit: int = LIMIT_BYTES) -> None:
        self.folder = Path(folder)
        self.limit = limit
        self._unchecked = limit  # bytes written since the folder was last measured

    def get(self, key: str) -> Kept | None:
        """The answer put under `key`; None where there is none, or the file is damaged."""
        payload = self.read(key)
        return None if payload is None else _unpack(payload)

    def put(self, key: str, answer: Kept) -> None:
        """Keep the answer; one already there is replaced."""
        self.write(key, _pack(answer))

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


def cached(
    inputs: Inputs,
    compute: Callable[[], K],
    *,
    options: Mapping[str, object],
    others: tuple[Tensor | None, ...] = (),
    accept: Callable[[K], bool] = lambda _: True,
    cache: AnswerCache | None = None,
) -> K:
    """The kept answer if `accept` takes it, otherwise the computed one, which is then kept.

    Args:
        inputs: the call.
        compute: gives the answer.
        options: all besides tensors and source that decides the answer, its kind too; JSON.
        others: tensors besides those of `inputs` that decide the answer.
        accept: whether the radii of a kept answer are small enough now; it may have been kept for a
            looser purpose.
        cache: by default that in $KDAVERIFY_CACHE, else in the user's cache folder.
    """
    cache = cache if cache is not None else cache_in(default_folder())
    key = answer_key(inputs, options, others)
    kept = cast("K | None", cache.get(key))
    if kept is not None and accept(kept):
        return kept
    answer = compute()
    cache.put(key, answer)
    return answer


@lru_cache(maxsize=8)
def cache_in(folder: Path) -> AnswerCache:
    """A folder's cache, one a process: it counts what it wrote since measuring the folder."""
    return AnswerCache(folder)


def default_folder() -> Path:
    """$KDAVERIFY_CACHE, else kdaverify in $XDG_CACHE_HOME or ~/.cache."""
    if chosen := os.environ.get("KDAVERIFY_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kdaverify"


def answer_key(
    inputs: Inputs, options: Mapping[str, object], others: tuple[Tensor | None, ...] = ()
) -> str:
    """A digest of every tensor, the scale, the options and the source of the oracles."""
    digest = hashlib.sha256(source_digest().encode())
    digest.update(json.dumps([float(inputs.factor).hex(), dict(options)], sort_keys=True).encode())
    tensors = (
        inputs.q,
        inputs.k,
        inputs.v,
        inputs.g,
        inputs.beta,
        inputs.initial_state,
        inputs.cu_seqlens,
        *others,
    )
    for tensor in tensors:
        digest.update(
            b"absent" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}".encode()
        )
        if tensor is not None:
            # Bytes need a stride of 1, which a single element that was spread has not even as a
            # copy of its own.
            elements = tensor.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
            digest.update(elements.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of this package's source files and flint's release: other code, other answers."""
    return digest_of_sources(Path(__file__).parent, flint.__version__)


def digest_of_sources(package: Path, release: str) -> str:
    """A digest of what the source files below a folder compute, and of their dependencies.

    Comments, docstrings and line breaks are no part of it: a reworded docstring emptied everybody's
    cache, minutes of ball arithmetic. To parse the files costs every process that judges 0.2 s a
    package, so that what came of the same bytes is kept beside the answers.
    """
    paths = sorted(package.rglob("*.py"))
    sources = {path.relative_to(package).as_posix(): path.read_bytes() for path in paths}
    cache = cache_in(default_folder())
    key = _digest_of(f"{sys.version} {release}", sources)
    if (known := cache.read(key)) is not None:
        return known.decode()
    digest = _digest_of(release, {name: _syntax(source) for name, source in sources.items()})
    cache.write(key, digest.encode())
    return digest


def _digest_of(release: str, contents: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(release.encode())
    for name, content in contents.items():
        digest.update(f"{name} {len(content)}".encode())
        digest.update(content)
    return digest.hexdigest()


def _syntax(source: bytes) -> bytes:
    """The syntax tree of a file without docstrings; the file where it cannot be parsed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return ast.dump(tree, annotate_fields=False).encode()


def _is_text(statement: ast.stmt) -> bool:
    """A docstring, or the line that describes a constant: nothing that runs."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _digest(key: str, payload: bytes) -> bytes:
    return hashlib.sha256(key.encode() + payload).digest()


def _pack(answer: Kept) -> bytes:
    arrays: dict[str, Any] = {"method": np.array(answer.method)}
    if isinstance(answer, GradientAnswer):
        arrays.update((TERMS + name, tensor.numpy()) for name, tensor in vars(answer.terms).items())
    for name, enclosure in answer.named().items():
        for part in PARTS:
            tensor: Tensor = getattr(enclosure, part)
            arrays[f"{name}.{part}"] = tensor.numpy()
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _unpack(payload: bytes) -> Kept:
    with np.load(BytesIO(payload), allow_pickle=False) as arrays:
        method = str(arrays["method"])
        terms = {
            x.removeprefix(TERMS): torch.as_tensor(arrays[x]) for x in arrays if x.startswith(TERMS)
        }
        enclosures = {
            name: Enclosure(*(torch.as_tensor(arrays[f"{name}.{part}"]) for part in PARTS))
            for name in (GRADIENTS if terms else OUTPUTS)
        }
        if terms:
            return GradientAnswer(Gradients(**enclosures), Terms(**terms), method)
        return CertifiedOutputs(**enclosures, method=method)
