"""Certified answers on disk, found by call, options and source."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import flint
import numpy as np
import torch
from torch import Tensor

from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.file_cache import FileCache, default_folder, packed, unpacked
from oracles.gradients import GradientAnswer, Gradients, Terms
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, OUTPUTS

TERMS = "terms of "
PARTS = ("high", "low", "radius", "zero")

Kept = CertifiedOutputs | GradientAnswer
K = TypeVar("K", CertifiedOutputs, GradientAnswer)


class AnswerCache(FileCache):
    """Certified answers in such a folder."""

    def get(self, key: str) -> Kept | None:
        """The answer put under `key`; None where there is none, or the file is damaged."""
        payload = self.read(key)
        return None if payload is None else _unpack(payload)

    def put(self, key: str, answer: Kept) -> None:
        """Keep the answer; one already there is replaced."""
        self.write(key, _pack(answer))


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


def _pack(answer: Kept) -> bytes:
    arrays: dict[str, Any] = {"method": np.array(answer.method)}
    if isinstance(answer, GradientAnswer):
        arrays.update((TERMS + name, tensor.numpy()) for name, tensor in vars(answer.terms).items())
    for name, enclosure in answer.named().items():
        for part in PARTS:
            tensor: Tensor = getattr(enclosure, part)
            arrays[f"{name}.{part}"] = tensor.numpy()
    return packed(arrays)


def _unpack(payload: bytes) -> Kept:
    arrays = unpacked(payload)
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
