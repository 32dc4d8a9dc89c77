"""Short convolution and gated norm: every planted fault is found on the panel of smoke, conforming
kernels pass, laws find theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.checks.calls import questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.operator import problem_from_json
from tests.operators import convolutions, norms

MODULES: Final[Mapping[str, Any]] = {"short_conv": convolutions, "gated_rms_norm": norms}
CALLED: Final = frozenset(
    {"CONV-strides", "CONV-bias", "CONV-sums", "NORM-views", "NORM-partials", "NORM-sums"}
)
"""Rules of calls find these; `tests.faults.other_triggers` has the rules."""
FAULTS: Final = [
    (op, name) for op, module in MODULES.items() for name in module.FAULTS if name not in CALLED
]
RIGHT_ONES: Final = [(op, name) for op, module in MODULES.items() for name in module.RIGHT_ONES]
CASES: Final = 12


def plain_outcomes(adapter: Adapter, problem: Any) -> list[Outcome]:
    losses = {"both", *adapter.differentiates(problem)}
    return [
        *check("forward", adapter, problem, {}),
        *(x for of in sorted(losses) for x in check("gradients", adapter, problem, {"of": of})),
    ]


def smoke(adapter: Adapter) -> Iterator[Outcome]:
    yield from adapter.operator.preflight(adapter)  # pyright: ignore[reportAttributeAccessIssue]
    for _, problem in adapter.operator.panel(adapter, "smoke"):
        yield from plain_outcomes(adapter, problem)


@pytest.mark.rotates
@pytest.mark.parametrize(("op", "name"), FAULTS)
def test_every_fault_is_found(op: str, name: str) -> None:
    assert any(outcome.status.rejects for outcome in smoke(MODULES[op].faulty(name)))


@pytest.mark.whole_run
@pytest.mark.rotates
@pytest.mark.parametrize(("op", "name"), RIGHT_ONES)
def test_conforming_kernels_pass_the_panel_and_all_laws(op: str, name: str) -> None:
    adapter = MODULES[op].RIGHT_ONES[name]
    assert not [str(outcome.message) for outcome in smoke(adapter) if outcome.status.rejects]
    for law, dtype in (choice for _, choice in adapter.operator.axes()["lawful"](adapter, "smoke")):
        problem = lawful(adapter, law, dtype)
        assert not [
            x.message for x in check("laws", adapter, problem, {"law": law}) if x.status.rejects
        ], law


@pytest.mark.rotates
@pytest.mark.parametrize(("op", "name"), RIGHT_ONES)
def test_conforming_kernels_pass_random_cases(op: str, name: str) -> None:
    adapter = MODULES[op].RIGHT_ONES[name]
    for dtype in adapter.dtypes:

        @seed(7)
        @settings(
            max_examples=CASES,
            database=None,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            phases=[Phase.generate],
        )
        @given(problem=adapter.operator.random(adapter, dtype, None))
        def passes(problem: Any) -> None:
            wrong = [x.message for x in plain_outcomes(adapter, problem) if x.status.rejects]
            assert not wrong, (problem.to_json(), wrong)

        passes()


def lawful(adapter: Adapter, law: str, dtype: str) -> Any:
    """A problem that a law can be tested on, beyond the smallest."""
    operator: Any = adapter.operator
    base = operator.pack(dtype) if law == "singles" else operator.probe(dtype)
    wider = {"D": 33} if adapter.op == "short_conv" else {}
    return operator.within(adapter, base.replace(**wider, **operator.laws()[law].wanted))


LAW_FAULTS: Final[dict[str, tuple[str, str]]] = {
    "impulse": ("short_conv", "taps reversed"),
    "powers-of-two": ("short_conv", "clamped"),
    "split": ("short_conv", "CONV-C6"),
    "decode": ("short_conv", "CONV-C9"),
    "singles": ("short_conv", "CONV-C23"),
    "absent-state": ("short_conv", "CONV-C15"),
    "unread": ("short_conv", "CONV-C10"),
    "channels": ("short_conv", "tail of D"),
    "later-tokens": ("short_conv", "CONV-C5"),
    "scaled-rows": ("gated_rms_norm", "eps outside the root"),
    "scaled-weight": ("gated_rms_norm", "NORM-N8"),
    "negated-rows": ("gated_rms_norm", "biased"),
    "reordered-rows": ("gated_rms_norm", "first row's root"),
    "rows-alone": ("gated_rms_norm", "first row's root"),
    "flattened": ("gated_rms_norm", "heads by the second axis"),
}


def at_most_8(z: Tensor, name: str | None) -> Tensor:
    return convolutions.activated(z.clamp(-8, 8), name)


def clamped() -> Any:
    parts = convolutions.RIGHT.replaced(act=at_most_8)
    return convolutions.adapted(parts, "clamped")


def of_rows(norm: Callable[[Tensor], Tensor]) -> Any:
    def faulty(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
        return norms.right(norm(x), z, w, eps, name)

    return norms.adapted(faulty, "of rows")


def first_root(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str) -> Tensor:
    root = norms.root(x, eps).flatten(0, -2)[:1]
    return x * root * w * norms.act(z, name)


OTHERS: Final[dict[str, Callable[[], Any]]] = {
    "clamped": clamped,
    "biased": lambda: of_rows(lambda x: x + 2.0**-6),
    "first row's root": lambda: norms.adapted(first_root, "first row's root"),
    "heads by the second axis": lambda: of_rows(lambda x: x if x.ndim < 4 else x.roll(1, 2)),
}


@pytest.mark.parametrize("law", LAW_FAULTS)
def test_every_law_finds_its_fault(law: str) -> None:
    op, fault = LAW_FAULTS[law]
    adapter = OTHERS[fault]() if fault in OTHERS else MODULES[op].faulty(fault)
    found = check("laws", adapter, lawful(adapter, law, "fp32"), {"law": law})
    assert any(outcome.status.rejects for outcome in found), [
        str(outcome.message) for outcome in found
    ]


def test_every_law_has_a_fault() -> None:
    known = {
        law
        for module in MODULES.values()
        for law in next(iter(module.RIGHT_ONES.values())).operator.laws()
    }
    assert known == {*LAW_FAULTS}


@pytest.mark.parametrize("op", MODULES)
def test_right_kernels_keep_the_rules_of_calls(op: str) -> None:
    adapter = next(iter(MODULES[op].RIGHT_ONES.values()))
    for tested in questions(adapter, "smoke"):
        wrong = [
            x.message
            for x in check("calls", adapter, tested.problem, tested.detail)
            if x.status.rejects
        ]
        assert not wrong, (tested.name, wrong)


def misfit(adapter: Any) -> str:
    return adapter.operator.misfit(adapter) or ""


def test_what_is_wrong_with_every_call_is_one_message() -> None:
    @kv.kernel(op="short_conv")
    def without_silu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolutions.RIGHT(x, weight, bias, None, None, None)[0]

    @kv.kernel(op="short_conv")
    def short_state(
        x: Tensor, weight: Tensor, bias: Tensor | None, *, initial_state: Tensor | None
    ) -> Any:
        y, final = convolutions.RIGHT(x, weight, bias, initial_state, None, "silu")
        return y, final[..., 1:]

    @kv.kernel(op="short_conv")
    def y_alone(
        x: Tensor, weight: Tensor, bias: Tensor | None, *, initial_state: Tensor | None
    ) -> Any:
        return convolutions.RIGHT(x, weight, bias, initial_state, None, "silu")[0]

    @kv.kernel(op="gated_rms_norm")
    def other_eps(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        return norms.right(x, gate, weight, 1e-5, "silu")

    assert "behaves as activation='none'" in misfit(without_silu)
    assert "conv_state='W-1'" in misfit(short_state)
    assert "declare final_state=False" in misfit(y_alone)
    assert "behaves as eps=1e-05" in misfit(other_eps)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"conv_state": "3"}, "conv_state: wanted one of W, W-1, got '3'"),
        (
            {"packing": "cu_seqlens"},
            "packing='cu_seqlens', but the signature does not name cu_seqlens",
        ),
        ({"layout": "bhtd"}, "layout: op='short_conv' has no such option"),
        ({"dtypes": ("fp64",)}, "dtypes: wanted some of fp32, bf16, fp16, got 'fp64'"),
        (
            {"contract": "fla"},
            "contract: wanted one of short-conv, short-conv-strict, short-conv-stored",
        ),
    ],
)
def test_a_wrong_declaration_is_reported(options: dict[str, Any], reported: str) -> None:
    with pytest.raises(AdapterError, match=reported.replace("(", r"\(")):

        @kv.kernel(op="short_conv", **options)
        def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            raise NotImplementedError


def test_a_function_of_other_arguments_is_refused() -> None:
    with pytest.raises(AdapterError, match="needs stride, which no call has"):

        @kv.kernel(op="short_conv")
        def _(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
            raise NotImplementedError


def test_keywords_that_a_signature_does_not_name_are_not_tested() -> None:
    adapter = convolutions.plain
    problems = [problem for _, problem in adapter.operator.panel(adapter, "smoke")]
    assert problems and not any(
        problem.bias or problem.stateful or problem.packed for problem in problems
    )
    assert {problem.activation for problem in problems} == {"none"} and adapter.exposes(
        problems[0]
    ) == ("y",)


@pytest.mark.parametrize("op", MODULES)
def test_problems_are_read_back(op: str) -> None:
    adapter = next(iter(MODULES[op].RIGHT_ONES.values()))
    for _, problem in adapter.operator.panel(adapter, "nightly"):
        assert problem_from_json(problem.to_json()) == problem
        assert len({*adapter.operator.traits(problem)}) > 5


def test_smaller_problems_are_smaller_and_valid() -> None:
    adapter = next(iter(convolutions.RIGHT_ONES.values()))
    for _, problem in adapter.operator.panel(adapter, "smoke"):
        for changes, _ in adapter.operator.smaller(problem, {}):
            assert problem.replace(**changes) != problem


def test_a_failure_is_placed_in_words() -> None:
    found = next(
        x
        for x in smoke(convolutions.faulty("taps reversed"))
        if x.status is Status.FAIL and x.output == "y"
    )
    assert "token 0 of 1, channel" in found.message and "proven error bound" in found.message


def test_statistics_beside_the_bound_find_what_it_admits() -> None:
    """Low digits dropped from a weight: no element is far off, all of them lean."""
    adapter = convolutions.faulty("a weight without its low digits")
    problem = dict(adapter.operator.panel(adapter, "smoke"))["fp32-no-activation"]
    y = next(x for x in check("forward", adapter, problem, {}) if x.output == "y")
    assert (
        y.comparison is not None
        and y.comparison.ratios["bias"] > 1
        and y.comparison.ratios["ceiling"] <= 1.5
    )


def test_smoke_tests_an_interpreted_kernel_on_every_problem_in_one_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = next(iter(convolutions.RIGHT_ONES.values()))
    panel, native = adapter.operator.panel, adapter.environment()

    def problems(profile: str) -> list[tuple[str, str]]:
        return [(name.split("-")[0], name.partition("-")[2]) for name, _ in panel(adapter, profile)]

    every, nightly = problems("smoke"), len(problems("nightly"))
    interpreted = {**native, "mode": "interpreted"}

    def environment(_: Adapter) -> dict[str, Any]:
        return interpreted

    monkeypatch.setattr(type(adapter), "environment", environment)
    found = problems("smoke")
    of_sizes = [name for _, name in every if name in adapter.operator.of_sizes]
    others = len(found) - len(of_sizes)
    assert len(every) == len(adapter.dtypes) * (others + 1) + len(of_sizes)
    assert sorted(of_sizes) == sorted(adapter.operator.of_sizes)
    assert {name for _, name in every} - {name for _, name in found} == {"past-16-bit-rows"}
    assert {dtype for dtype, _ in found} == {*adapter.dtypes}
    assert len(problems("nightly")) == nightly
