"""A problem is frozen, checked, and one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, seed
from pydantic import ValidationError

from kdaverify.problems import Problem, ProblemError, problems, settings_for


@seed(0)
@settings_for("acceptance")
@given(problems())
def test_json_gives_the_same_problem_back(problem: Problem) -> None:
    again = Problem.from_json(problem.to_json())
    assert again == problem
    assert again.id == problem.id


@seed(0)
@settings_for("acceptance")
@given(problems())
def test_an_id_is_a_plain_file_name(problem: Problem) -> None:
    assert set(problem.id) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
    assert len(problem.id) < 100


def test_an_id_never_moves(plain: Callable[..., Problem]) -> None:
    assert plain().id == "kda-fp32-B2T21-H2HV4-K16V24-log-sigmoid-1b775c0403"
    assert (
        plain(B=1, T=30, lengths=(0, 21, 3), scale=0.5).id
        == "kda-fp32-B1T30-pack3-H2HV4-K16V24-log-sigmoid-974a0266d2"
    )


def test_the_order_and_spacing_of_json_do_not_matter(plain: Callable[..., Problem]) -> None:
    fields = json.loads(plain().to_json())
    assert Problem.from_json(json.dumps(dict(reversed(fields.items())), indent=2)) == plain()


CHANGES: dict[str, Any] = {
    "B": 3,
    "T": 22,
    "H": 4,
    "HV": 6,
    "K": 17,
    "V": 25,
    "dtype": "fp64",
    "gate": "slow",
    "key": "tiny",
    "beta": "one",
    "state": "zero",
    "value": "large",
    "scale": 1.0,
    "seed": 8,
}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_moves_the_id(plain: Callable[..., Problem], field: str) -> None:
    assert plain(**{field: CHANGES[field]}).id != plain().id
    assert plain().replace(**{field: CHANGES[field]}) == plain(**{field: CHANGES[field]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"HV": 5}, "HV: wanted a multiple of H = 2, got 5"),
        ({"lengths": (3,)}, "B: packed sequences need B = 1, got 2; put all sequences in lengths"),
        ({"B": 1, "lengths": ()}, "lengths: wanted at least one sequence"),
        (
            {"B": 1, "lengths": (20, 2)},
            "lengths: wanted a sum of at most T = 21, got 22; raise T or shorten a sequence",
        ),
        (
            {"T": 0},
            r"T: wanted at least 1 token, got 0; only a pack may be empty, give lengths=\(0,\)",
        ),
        ({"gate": "mixd"}, "gate: no regime named 'mixd'; known ones are zero, slow, .*mixed"),
        ({"beta": "half"}, "beta: no regime named 'half'; known ones are one, zero"),
        ({"scale": float("nan")}, "scale: wanted a finite number or None"),
        ({"dtype": "fp8"}, "Input should be 'fp64', 'fp32', 'bf16' or 'fp16'"),
        ({"K": 0}, "greater than or equal to 1"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"T": 2.5}, "valid integer"),
        ({"gaits": "slow"}, "Extra inputs are not permitted"),
        ({"gates": "slow"}, "Input should be 'channel', 'head' or 'none'"),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_do(
    plain: Callable[..., Problem], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        plain(**changes)


def test_all_complaints_come_at_once(plain: Callable[..., Problem]) -> None:
    with pytest.raises(ValidationError, match=r"HV: .*; gate: .*; state: "):
        plain(HV=5, gate="no", state="no")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"B": 1'])
def test_text_that_is_no_problem_is_refused(text: str) -> None:
    with pytest.raises(
        ProblemError, match=r"^problem: .*; write it with Problem\(\.\.\.\)\.to_json\(\)$"
    ):
        Problem.from_json(text)


def test_a_problem_from_json_names_the_wrong_field(plain: Callable[..., Problem]) -> None:
    with pytest.raises(
        ProblemError, match=r"^problem: K: Input should be greater than or equal to 1 \(got 0\)"
    ):
        Problem.from_json(plain().to_json().replace('"K":16', '"K":0'))


def test_only_a_pack_may_have_no_token(plain: Callable[..., Problem]) -> None:
    inputs = plain(B=1, T=0, lengths=(0, 0)).inputs()
    assert inputs.lengths == [0, 0]
    assert inputs.T == 0


def test_a_problem_cannot_be_changed(plain: Callable[..., Problem]) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        plain().T = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_replace_checks_again(plain: Callable[..., Problem]) -> None:
    with pytest.raises(ValidationError, match="HV: wanted a multiple"):
        plain().replace(H=3)


def test_sequences_are_where_the_inputs_say(plain: Callable[..., Problem]) -> None:
    for problem in (plain(), plain(B=1, T=30, lengths=(0, 21, 3))):
        inputs = problem.inputs()
        assert problem.N == inputs.N
        assert [b * problem.T + start for b, start, _ in problem.spans] == inputs.starts
        assert [length for _, _, length in problem.spans] == inputs.lengths


def test_a_problem_describes_itself_in_one_line(plain: Callable[..., Problem]) -> None:
    packed = plain(B=1, T=65, lengths=(0, 1, 63), dtype="bf16", gate="mixed", scale=0.5)
    assert (
        packed.describe()
        == "kda B=1 T=65 H=2 HV=4 K=16 V=24 pack (0,1,63) bf16 gate=mixed key=random beta=uniform"
        " state=random value=normal scale=0.5 seed=7"
    )
    many = plain(B=1, T=200, lengths=(1,) * 200).describe()
    assert "pack (1,1,1,1,1,1,1,1,1,1,1,1,... 200 sequences)" in many
