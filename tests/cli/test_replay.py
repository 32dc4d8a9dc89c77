"""`kdaverify replay` repeats a case from a line, a file or a record, and prints it in full."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from kdaverify.verdicts.record import RecordWriter
from kdaverify.verdicts.verdict import Verdict
from tests.rows import row

Cli = Callable[..., tuple[int, str, str]]

WRONG = """
right = port

@kv.kernel(name="wrong", contract="recurrent-fp32")
def wrong(q, k, v, g, beta, *, scale, initial_state):
    o, final = right(q, k, v, g, beta, scale=scale, initial_state=initial_state)
    return 2 * o, final
"""


@pytest.fixture
def wrong(cli: Cli) -> str:
    del cli
    port = Path("port.py")
    port.write_text(port.read_text() + WRONG)
    return "port.py:wrong"


def test_a_right_kernel_passes_and_every_figure_is_shown(cli: Cli, problem: Problem) -> None:
    code, out, _ = cli("replay", "--impl", "port.py", problem.to_json())
    assert code == 0
    assert "forward o: PASS" in out
    assert "forward final_state: PASS" in out
    assert "multiples of the tolerance: rms" in out
    assert problem.id in out


def test_what_others_would_have_said_is_reported_of_every_output(
    cli: Cli, problem: Problem
) -> None:
    _, out, _ = cli(
        "replay", "--impl", "port.py", "--benchmark", "eager", "--standards", problem.to_json()
    )
    assert "standards would have said of o" in out
    assert "standards would have said of final_state" in out
    assert "benchmark: eager;" in " ".join(out.split())
    assert all(name in out for name in ("ascend-L2", "fla-ci", "flash-attention", "tt-metal-pcc"))


def test_a_wrong_kernel_is_rejected(cli: Cli, problem: Problem, wrong: str) -> None:
    code, out, _ = cli("replay", "--impl", wrong, problem.to_json())
    assert code == 1
    assert "forward o: FAIL" in out
    assert "worst at sequence 0, token" in out


def test_the_line_of_a_verdict_runs_as_it_is(cli: Cli, problem: Problem, wrong: str) -> None:
    from kdaverify.adapters.registry import find
    from kdaverify.verdicts.judge import Judge, Rejected

    verdicts: list[Verdict] = []
    with pytest.raises(Rejected) as reported:
        Judge(find(wrong), verdicts.append, "resume", spec=wrong)(problem, cut=3, way="chunk-step")
    (line,) = {verdict.replay for verdict in verdicts}
    assert line in str(reported.value)
    command, *words = shlex.split(line)
    code, out, _ = cli(*words)
    assert (command, code) == ("kdaverify", 1)
    assert "resume o: FAIL" in out


def test_problems_of_activations_replay_and_other_properties_refuse_them(cli: Cli) -> None:
    tested = '{"HV":2,"K":4,"T":3,"dtype":"bf16","op":"gate_bounded","values":"mixed"}'
    code, out, _ = cli("replay", "--impl", "eager", "--property", "activations", tested)
    assert code == 0 and all(
        f"activations {output}: PASS" in out for output in ("g", "dz", "dA_log")
    )
    assert cli("replay", "--impl", "port.py", "--property", "activations", tested)[0] == 3
    code, _, err = cli("replay", "--impl", "eager", "--property", "forward", tested)
    assert code == 2 and err.startswith(
        "kdaverify: problem: property forward is not tested on gate_bounded"
    )


STAGED = """
from tests.checks import staged
from tests.checks.staged import Staged, tables
neumann = Staged("neumann", tables(solve=staged.truncated_neumann))
"""


def test_a_case_that_fails_runs_again_stage_by_stage(cli: Cli, problem: Problem) -> None:
    Path("staged_port.py").write_text(STAGED)
    tested = problem.replace(T=20, gate="slow", key="identical")
    code, out, _ = cli("replay", "--impl", "staged_port.py:neumann", tested.to_json())
    cells = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in out.splitlines()
        if line.startswith("│")
    ]
    by_name = {(stage, tensor): tuple(rest) for stage, tensor, *rest in cells}
    assert code == 1 and len(by_name) == 15
    wrong = [name for name, (exact, _, own, _) in by_name.items() if "FAIL" in (exact, own)]
    assert wrong == [("solve", "R"), ("solve", "R (I + Akk) = I")]
    assert by_name["cumsum", "G"][::2] == ("PASS", "PASS") and by_name["solve", "R (I + Akk) = I"][
        :2
    ] == ("-", "-")
    assert "\nfirst wrong stage: solve, on exact inputs; R: " in out


def test_a_wrong_kernel_without_stages_says_so_and_a_right_one_shows_none(
    cli: Cli, problem: Problem, wrong: str
) -> None:
    out = cli("replay", "--impl", wrong, problem.to_json())[1]
    assert out.splitlines()[-1] == "stages: none exposed" and "stage by stage" not in out
    assert "stage" not in cli("replay", "--impl", "eager", problem.to_json())[1]


def test_where_no_stage_can_be_judged_the_reason_stands_in_the_table_s_place(
    cli: Cli, problem: Problem
) -> None:
    Path("staged_port.py").write_text(STAGED)
    out = cli(
        "replay",
        "--impl",
        "staged_port.py:neumann",
        problem.replace(T=20, gate="slow", key="identical", dtype="fp64").to_json(),
    )[1]
    assert "stage by stage" not in out and out.splitlines()[-1].startswith(
        "stages: not judged; float64 is the stages' own oracle"
    )


def test_the_help_says_that_stages_run_again(cli: Cli) -> None:
    code, out, _ = cli("replay", "--help")
    assert code == 0 and "A case that fails runs again stage by stage" in out


def test_the_conventions_replay_without_a_problem(cli: Cli) -> None:
    code, out, _ = cli("replay", "--impl", "port.py", "--property", "conventions")
    assert (code, "conventions call: PASS" in out) == (0, True)


def test_a_case_is_found_in_a_record_the_failing_row_first(
    cli: Cli, problem: Problem, tmp_path: Path
) -> None:
    replay = "kdaverify replay --impl port.py --property forward x"
    given: dict[str, Any] = {"case": problem.id, "problem": problem.to_json(), "replay": replay}
    with RecordWriter(tmp_path / "r.jsonl") as writer:
        writer.append(row(Status.PASS, **given))
        writer.append(
            row(
                Status.FAIL,
                **{**given, "property": "resume", "detail": {"cut": 2, "way": "chunk-step"}},
            )
        )
    code, out, _ = cli("replay", problem.id, "--record", "r.jsonl")
    assert (code, "resume o: PASS" in out, "cut 2" in out) == (0, True, True)
    assert (
        "forward o: PASS"
        in cli("replay", problem.id, "--record", "r.jsonl", "--property", "forward")[1]
    )


def test_a_problem_the_kernel_does_not_take_is_not_judged(cli: Cli, problem: Problem) -> None:
    packed = problem.replace(lengths=(3, 4))
    assert cli("replay", "--impl", "port.py", packed.to_json())[0] == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["absent.json"], "problem: no file absent.json"),
        (['{"op":"kda"}'], "problem: "),
        (["--impl", "nonesuch", "{}"], "--impl: no implementation named 'nonesuch'"),
        (["--benchmark", "nonesuch", "{}"], "--benchmark: no implementation named 'nonesuch'"),
        (["--detail", "[1]", "{}"], "--detail: wanted a JSON object"),
        (["--detail", "{", "{}"], "--detail: wanted a JSON object"),
        (["kda-0", "--record", "absent.jsonl"], "record: no file absent.jsonl"),
        (["{}", "--record", "absent.jsonl"], "replay: with --record give a case id"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(cli: Cli, words: list[str], complaint: str) -> None:
    code, _, err = cli("replay", *words)
    assert code == 2
    assert err.startswith(f"kdaverify: {complaint}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "detail", "complaint"),
    [
        (
            "nonesuch",
            {},
            "--property: no property named 'nonesuch'; known ones are conventions, forward",
        ),
        ("resume", {}, "--detail: missing a required"),
        ("forward", {"cut": 3}, "--detail: got an unexpected keyword argument 'cut'"),
    ],
)
def test_a_property_that_does_not_fit_is_misuse(
    cli: Cli, problem: Problem, name: str, detail: dict[str, int], complaint: str
) -> None:
    code, _, err = cli(
        "replay",
        "--impl",
        "port.py",
        "--property",
        name,
        "--detail",
        json.dumps(detail),
        problem.to_json(),
    )
    assert code == 2
    assert err.startswith(f"kdaverify: {complaint}")
