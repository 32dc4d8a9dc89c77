"""`kdaverify drift` measures, draws, writes, refuses in a sentence,
and keeps what it has when interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kdaverify.checks import drift as measuring
from kdaverify.problems import Problem

Cli = Callable[..., tuple[int, str, str]]


def test_it_draws_every_output_and_writes_figures_and_picture(cli: Cli) -> None:
    code, out, err = cli(
        "drift",
        "--impl",
        "eager",
        "--tokens",
        256,
        "--seeds",
        4,
        "--json",
        "d.json",
        "--out",
        "d.svg",
    )
    assert code == 0, err
    assert "o: relative error against tokens; ● eager, ░ conforming kernels" in out
    assert out.count("PASS") == 2 and "error / tolerance" in out
    found = json.loads(Path("d.json").read_text())
    assert found["contract"] == "chunk64-bf16" and found["outputs"]["o"]["lengths"] == [
        64,
        128,
        256,
    ]
    assert Problem.from_json(found["problems"][0]).B == 4
    assert Path("d.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--probe", "echo"), "--probe: wanted one of memory, held, faint, writes, got 'echo'"),
        (("--way", "backwards"), "--way: wanted one of uncut, resumed, decoded, got 'backwards'"),
        (
            ("--tokens", "100"),
            "--tokens: drift: wanted a multiple of 64 tokens, at least 128, got 100",
        ),
        (("--out", "d.pdf"), "--out: wanted a file ending in .svg, .png, .html, got d.pdf"),
        (("--dtype", "fp64"), "--dtype: eager is measured in bf16, fp16, fp32, got 'fp64'"),
        (
            ("--device", "cuda"),
            (
                "--device: eager runs on cpu, not on cuda; leave the option out or name another"
                " implementation"
            ),
        ),
        (("--impl", "nobody"), "--impl: no implementation named 'nobody'"),
    ],
)
def test_what_cannot_be_measured_is_said_before_the_work(
    cli: Cli, words: tuple[str, ...], said: str
) -> None:
    code, _, err = cli("drift", *words)
    assert code == 2 and err.startswith(f"kdaverify: {said}")


def test_an_interrupted_measurement_keeps_what_is_done(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = list[Problem]()
    measure = measuring.measure

    def interrupted(adapter: object, problem: Problem, way: object, **options: object) -> object:
        tested.append(problem)
        if len(tested) == 2:
            raise KeyboardInterrupt
        return measure(adapter, problem, way, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(measuring, "measure", interrupted)
    code, out, _ = cli("drift", "--tokens", 128, "--seeds", 12)
    assert code == 0 and len(tested) == 2
    assert "interrupted: 1 of 3 groups of 4 sequences are kept" in out and out.count("PASS") == 2
