"""`kdaverify oracle` writes the exact answer of a problem, proven to the requested digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from kdaverify.problems import Problem
from oracles.recurrence import recurrence

Cli = Callable[..., tuple[int, str, str]]


def test_the_file_holds_inputs_and_certified_outputs(
    cli: Cli, problem: Problem, tmp_path: Path
) -> None:
    (tmp_path / "p.json").write_text(problem.to_json())
    code, out, err = cli("oracle", "p.json", "-o", "exact.safetensors", "--digits", 25)
    assert code == 0, err
    assert problem.id in out
    tensors = load_file("exact.safetensors")
    inputs = problem.inputs()
    assert torch.equal(tensors["q"], inputs.q)
    for name, plain in zip(("o", "final_state"), recurrence(inputs), strict=True):
        torch.testing.assert_close(tensors[f"{name}.high"], plain, rtol=1e-12, atol=1e-14)
        rows = tensors[f"{name}.high"].abs().amax(-1, keepdim=True)
        assert bool((tensors[f"{name}.radius"] <= rows * 1e-25).all())
    with safe_open("exact.safetensors", "pt") as file:
        assert Problem.from_json(file.metadata()["problem"]) == problem


def test_a_missing_folder_is_said_before_the_work(cli: Cli, problem: Problem) -> None:
    code, _, err = cli("oracle", problem.to_json(), "-o", "nowhere/exact.safetensors")
    assert (code, err) == (2, "kdaverify: --output: no folder nowhere; make it first\n")
