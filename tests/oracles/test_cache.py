"""A kept answer comes back bit for bit, or not at all."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import cache as module
from oracles import certified
from oracles.cache import AnswerCache, Kept, answer_key, cache_in, cached
from oracles.enclosure import CertifiedOutputs
from oracles.file_cache import SUFFIX, default_folder
from oracles.gradients import Cotangents, GradientAnswer
from oracles.inputs import Inputs
from oracles.tensors import FLOATING

Call = Callable[..., Inputs]
KEY = "k" * 64


@pytest.fixture
def answer(call: Call) -> CertifiedOutputs:
    return certified.chunk(call(T=5, gate="mixture per token", offsets=[0, 2, 4]), bits=128)


def same(a: Kept, b: Kept | None) -> bool:
    if b is None or a.method != b.method:
        return False
    pairs = zip(tensors(a), tensors(b), strict=True)
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in pairs)


def tensors(answer: Kept) -> list[Tensor]:
    parts = [tensor for enclosure in answer.named().values() for tensor in vars(enclosure).values()]
    return [*parts, *vars(answer.terms).values()] if isinstance(answer, GradientAnswer) else parts


def counted(
    compute: Callable[[], CertifiedOutputs],
) -> tuple[Callable[[], CertifiedOutputs], list[int]]:
    calls: list[int] = []

    def run() -> CertifiedOutputs:
        calls.append(1)
        return compute()

    return run, calls


def test_an_answer_comes_back_bit_for_bit(answer: CertifiedOutputs, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on demand"
    assert AnswerCache(folder).get(KEY) is None
    AnswerCache(folder).put(KEY, answer)
    assert same(answer, AnswerCache(folder).get(KEY))
    assert sorted(path.name for path in folder.iterdir()) == [".gitignore", KEY + SUFFIX]
    assert (folder / ".gitignore").read_text() == "*\n"


def test_gradients_come_back_bit_for_bit_and_for_their_own_cotangents_only(
    call: Call, tmp_path: Path
) -> None:
    inputs, cache = call(T=4, offsets=[0, 2, 4]), AnswerCache(tmp_path)
    do = torch.ones_like(inputs.v)
    found = [
        certified.certify_gradients(inputs, Cotangents(x), accept=lambda _: True, cache=cache)
        for x in (do, do, 2 * do)
    ]
    assert same(found[0], found[1])
    assert torch.equal(2 * found[0].gradients.dv.high, found[2].gradients.dv.high)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_second_call_computes_nothing_and_a_changed_one_does(call: Call, tmp_path: Path) -> None:
    inputs, cache = call(T=3), AnswerCache(tmp_path)
    compute, calls = counted(lambda: certified.chunk(inputs, bits=96))
    first = cached(inputs, compute, options={"form": "chunk"}, cache=cache)
    assert same(first, cached(inputs, compute, options={"form": "chunk"}, cache=cache))
    assert len(calls) == 1
    cached(inputs, compute, options={"form": "recurrence"}, cache=cache)
    assert len(calls) == 2
    cached(inputs, compute, options={"form": "chunk"}, accept=lambda _: False, cache=cache)
    assert len(calls) == 3


def changes(inputs: Inputs) -> Iterator[Inputs]:
    for name in FLOATING:
        tensor = getattr(inputs, name)
        changed = tensor.clone()
        changed.view(-1)[-1] = torch.nextafter(changed.view(-1)[-1], torch.tensor(-torch.inf))
        yield replace(inputs, **{name: changed})
    yield replace(inputs, scale=0.25)
    yield replace(inputs, initial_state=None)
    yield replace(inputs, cu_seqlens=torch.tensor([0, 1, 4]))
    yield replace(inputs, cu_seqlens=torch.tensor([0, 2, 4], dtype=torch.int32))
    yield inputs.to(torch.float64)


def test_every_bit_of_the_inputs_is_in_the_key(call: Call) -> None:
    inputs = call(T=4, offsets=[0, 2, 4])
    keys = [answer_key(x, {}) for x in (inputs, *changes(inputs))]
    assert len(set(keys)) == len(keys)
    transposed = replace(inputs, v=inputs.v.transpose(1, 3).contiguous().transpose(1, 3))
    assert answer_key(transposed, {}) == keys[0]


def test_a_single_element_that_was_spread_has_a_key(call: Call) -> None:
    inputs = call(T=1, B=1, H=1, HV=1)
    beta = inputs.beta.bfloat16()
    spread = beta.reshape(()).expand(1, 1, 1)
    assert spread.stride() == (0, 0, 0)
    assert answer_key(replace(inputs, beta=spread), {}) == answer_key(
        replace(inputs, beta=beta), {}
    )


def test_other_source_is_not_found_in_the_cache(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = call(T=2)
    before = answer_key(inputs, {})
    monkeypatch.setattr(module, "source_digest", lambda: "other")
    assert answer_key(inputs, {}) != before


def test_the_source_digest_sees_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "certified").mkdir()
    monkeypatch.setattr(module, "__file__", str(tmp_path / "cache.py"))
    found: list[str] = []
    for text in ("a = 1", "a = 2"):
        (tmp_path / "certified" / "form.py").write_text(text)
        module.source_digest.cache_clear()
        found.append(module.source_digest())
    module.source_digest.cache_clear()
    assert found[0] != found[1]


def test_only_what_runs_is_part_of_the_digest(tmp_path: Path) -> None:
    def digest(text: str) -> str:
        (tmp_path / "form.py").write_text(text)
        return module.digest_of_sources(tmp_path, "1.0")

    plain = digest("def f(x):\n    return x + 1\n\nA = 1\n")
    reworded = (
        '"""File."""\n# why\ndef f(x):\n    """Adds."""\n    return (\n        x + 1  # one\n   '
        ' )\n\nA = 1\n"""A constant."""\n'
    )
    assert digest(reworded) == plain
    assert digest("def f(x):\n    return x + 2\n\nA = 1\n") != plain and digest("def f(x)") != plain


def test_the_same_sources_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path / "cache"))
    parsed = list[bytes]()

    def parse(source: bytes) -> bytes:
        parsed.append(source)
        return source

    monkeypatch.setattr(module, "_syntax", parse)
    package = tmp_path / "package"
    package.mkdir()
    found = list[str]()
    for text in ("a = 1", "a = 1", "a = 2"):
        (package / "form.py").write_text(text)
        found.append(module.digest_of_sources(package, "1.0"))
    assert parsed == [b"a = 1", b"a = 2"]
    assert found[0] == found[1] != found[2] != module.digest_of_sources(package, "2.0")


@pytest.mark.parametrize("damage", ["truncated", "one bit", "empty", "another key", "garbage"])
def test_a_damaged_file_is_computed_again(damage: str, call: Call, tmp_path: Path) -> None:
    inputs, cache = call(T=3), AnswerCache(tmp_path)
    compute, calls = counted(lambda: certified.chunk(inputs, bits=96))
    first = cached(inputs, compute, options={}, cache=cache)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    elsewhere = AnswerCache(tmp_path / "elsewhere")
    elsewhere.put(KEY, first)
    foreign = (elsewhere.folder / (KEY + SUFFIX)).read_bytes()
    damaged = {
        "truncated": content[:-7],
        "one bit": bytes(flipped),
        "empty": b"",
        "another key": foreign,
        "garbage": b"x" * 99,
    }
    path.write_bytes(damaged[damage])
    assert same(first, cached(inputs, compute, options={}, cache=cache))
    assert len(calls) == 2
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["a file in the way", "an unreadable entry"])
def test_a_folder_that_cannot_be_used_is_no_cache_and_no_failure(
    kind: str, call: Call, tmp_path: Path
) -> None:
    inputs = call(T=2)
    if kind == "a file in the way":
        (tmp_path / "file").write_text("in the way")
        cache = AnswerCache(tmp_path / "file" / "folder")
    else:
        cache = AnswerCache(tmp_path)
        (tmp_path / (answer_key(inputs, {}) + SUFFIX)).mkdir()
    compute, calls = counted(lambda: certified.chunk(inputs, bits=96))
    for _ in range(2):
        cached(inputs, compute, options={}, cache=cache)
    assert len(calls) == 2
    assert not list(tmp_path.glob(".part*"))


def test_the_oldest_unused_answers_go_first_and_other_files_stay(
    answer: CertifiedOutputs, tmp_path: Path
) -> None:
    AnswerCache(tmp_path).put("0", answer)
    size = (tmp_path / ("0" + SUFFIX)).stat().st_size
    other = tmp_path / "thesis.txt"
    other.write_text("x" * 10 * size)
    cache = AnswerCache(tmp_path, limit=4 * size + size // 2)
    for i in range(1, 4):
        cache.put(str(i), answer)
    for i in range(4):
        os.utime(tmp_path / f"{i}{SUFFIX}", (i, i))
    assert cache.get("0") is not None
    for i in range(4, 6):
        cache.put(str(i), answer)
    assert sorted(path.stem for path in tmp_path.glob("*" + SUFFIX)) == ["0", "3", "4", "5"]
    assert other.exists()


def _hammer(folder: Path, answer: CertifiedOutputs, wrong: Any) -> None:
    cache = AnswerCache(folder)
    for _ in range(40):
        cache.put(KEY, answer)
        if not same(answer, cache.get(KEY)):
            wrong.value += 1


def test_processes_writing_at_once_never_show_half_a_file(
    answer: CertifiedOutputs, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    wrong = context.Value("i", 0)
    workers = [context.Process(target=_hammer, args=(tmp_path, answer, wrong)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert wrong.value == 0
    assert [path.name for path in tmp_path.iterdir()] == [KEY + SUFFIX]


def test_the_folder_is_the_one_tested_for_else_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path / "chosen"))
    assert default_folder() == tmp_path / "chosen"
    monkeypatch.delenv("KDAVERIFY_CACHE")
    assert default_folder() == tmp_path / "xdg" / "kdaverify"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "kdaverify"


def test_a_folder_has_one_cache_in_a_process(tmp_path: Path) -> None:
    assert cache_in(tmp_path) is cache_in(Path(str(tmp_path)))
    assert cache_in(tmp_path / "other") is not cache_in(tmp_path)


def test_the_default_folder_is_used_where_no_cache_is_given(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path))
    inputs = call(T=2)
    compute, calls = counted(lambda: certified.chunk(inputs, bits=96))
    for _ in range(2):
        cached(inputs, compute, options={})
    assert len(calls) == 1
