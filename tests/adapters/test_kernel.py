"""The decorator: what is declared is used, what is not has the strictest default,
and what is wrong is said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from kdaverify.adapters import AdapterError, kernel
from kdaverify.adapters.base import NOTHING_YET
from kdaverify.adapters.kernel_adapter import WITHOUT_SCALE, KernelAdapter
from kdaverify.budgets.contract import contract_from_name
from kdaverify.checks.forward import forward, options
from kdaverify.checks.status import Status
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from tests.adapters.standins import MakeProblem


def plain(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any, cu_seqlens: Any
) -> Any:
    o, final = recurrence(Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens))
    return o.to(q.dtype), final.to(g.dtype)


def five(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    return plain(q, k, v, g, beta, scale=None, initial_state=None, cu_seqlens=None)


def test_the_adapter_is_still_the_function(make_problem: MakeProblem) -> None:
    x = make_problem().inputs()
    adapter = kernel(name="port", packing="cu_seqlens")(plain)
    direct = adapter(x.q, x.k, x.v, x.g, x.beta, scale=0.5, initial_state=None, cu_seqlens=None)
    assert torch.equal(
        direct[0],
        plain(x.q, x.k, x.v, x.g, x.beta, scale=0.5, initial_state=None, cu_seqlens=None)[0],
    )


def test_undeclared_contracts_are_the_strictest() -> None:
    adapter = kernel(dtypes=("fp64", "fp32", "bf16", "fp16"))(plain)
    assert adapter.name == "plain"
    assert [adapter.contract(d).name for d in adapter.dtypes] == [
        "recurrent-fp64",
        "recurrent-fp32",
        "recurrent-fp32",
        "recurrent-fp32",
    ]
    assert kernel()(plain).dtypes == ("fp32",)


def test_contracts_are_one_for_all_or_one_each() -> None:
    one = kernel(dtypes=("bf16", "fp32"), contract="chunk64-bf16")(plain)
    assert {one.contract(d).name for d in one.dtypes} == {"chunk64-bf16"}
    each = kernel(
        dtypes=("bf16", "fp32"),
        contract={"bf16": "chunk32-bf16", "fp32": contract_from_name("chunk64-fp32")},
    )(plain)
    assert [each.contract(d).name for d in each.dtypes] == ["chunk32-bf16", "chunk64-fp32"]


def test_arguments_go_by_name_whatever_their_order(make_problem: MakeProblem) -> None:
    def shuffled(*, beta: Any, g: Any, v: Any, k: Any, q: Any, scale: float) -> Any:
        return plain(q, k, v, g, beta, scale=scale, initial_state=None, cu_seqlens=None)

    def foreign(query: Any, key: Any, value: Any, gate: Any, strength: Any, *, scale: float) -> Any:
        return plain(
            query, key, value, gate, strength, scale=scale, initial_state=None, cu_seqlens=None
        )

    problem = make_problem(state="absent", scale=0.3)
    wanted = kernel()(plain).forward(problem.inputs()).o
    for function in (shuffled, foreign):
        assert torch.equal(kernel()(function).forward(problem.inputs()).o, wanted)


def test_what_the_signature_does_not_name_is_a_reason_not_a_call(make_problem: MakeProblem) -> None:
    def bare(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        raise AssertionError

    with pytest.raises(
        AdapterError,
        match="packing='cu_seqlens', but the signature does not name cu_seqlens; add it",
    ):
        kernel(packing="cu_seqlens")(bare)
    adapter = kernel()(bare)
    assert "no initial state" in str(adapter.supports(make_problem()))
    assert "no packed sequences" in str(
        adapter.supports(make_problem(B=1, lengths=(21,), state="absent"))
    )
    assert "no scale but K^-1/2, wanted 0.5" in str(
        adapter.supports(make_problem(state="absent", scale=0.5))
    )
    assert adapter.supports(make_problem(state="absent")) is None
    assert adapter.supports(make_problem(state="absent", scale=8**-0.5)) is None


def test_every_declared_limit_is_a_reason(make_problem: MakeProblem) -> None:
    packed = make_problem(B=1, lengths=(21,))
    assert "no packed sequences" in str(kernel(packing="none")(plain).supports(packed))
    assert "beta in [0, 1] alone, wanted [2, 2]" in str(
        kernel(beta="logit")(plain).supports(make_problem(beta="two"))
    )
    assert kernel(beta="logit")(plain).supports(make_problem()) is None
    assert (
        kernel(supports=lambda problem: f"T = {problem.T}")(plain).supports(make_problem())
        == "T = 21"
    )


def test_packing_is_read_off_the_signature_and_promises_nothing_of_padding() -> None:
    def by_ids(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, segment_ids: Any = None
    ) -> Any:
        raise AssertionError(segment_ids)

    read = kernel()(plain).conventions
    assert (read.packing, read.padding) == ("cu_seqlens", "undefined")
    assert kernel()(by_ids).conventions.packing == "segment_ids"
    assert kernel()(five).conventions.packing == "none"
    assert kernel(packing="cu_seqlens")(plain).conventions.padding == "zero"
    assert kernel(packing="none")(plain).conventions.packing == "none"


def test_a_folded_scale_comes_in_q_and_the_oracle_sees_its_rounding(
    make_problem: MakeProblem,
) -> None:
    def unscaled(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        return plain(q, k, v, g, beta, scale=1.0, initial_state=None, cu_seqlens=None)

    adapter = kernel(scale="folded", dtypes=("bf16",))(unscaled)
    x = make_problem(dtype="bf16", state="absent", scale=0.3).inputs()
    received = adapter.received(x)
    assert received.factor == 1.0
    assert torch.equal(received.q, (x.q.float() * 0.3).bfloat16())
    assert torch.equal(adapter.forward(x).o, recurrence(received)[0].bfloat16())


def test_a_bare_output_exposes_o_alone(make_problem: MakeProblem) -> None:
    def alone(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        return five(q, k, v, g, beta)[0]

    problem = make_problem(state="absent")
    bare = kernel(final_state=False)(alone)
    assert bare.exposes(problem) == ("o",)
    assert bare.forward(problem.inputs()).final_state is None
    undeclared = kernel()(alone)
    assert undeclared.exposes(problem) == ("o", "final_state")
    assert undeclared.forward(problem.inputs()).final_state is None


def test_rows_past_the_last_offset_are_judged_unless_declared_undefined(
    make_problem: MakeProblem,
) -> None:
    def dirty(q: Any, k: Any, v: Any, g: Any, beta: Any, *, cu_seqlens: Any) -> Any:
        o, final = plain(q, k, v, g, beta, scale=None, initial_state=None, cu_seqlens=cu_seqlens)
        return o.index_fill(1, torch.arange(int(cu_seqlens[-1]), o.shape[1]), torch.nan), final

    x = make_problem(B=1, lengths=(5, 9), T=21, state="absent").inputs()
    assert kernel(packing="cu_seqlens")(dirty).forward(x).o[:, 14:].isnan().all()
    cleared = kernel(packing="cu_seqlens", padding="undefined")(dirty).forward(x).o
    assert (cleared[:, 14:] == 0).all() and cleared[:, :14].isfinite().all()


def test_the_step_is_its_own_entry_point_and_the_proof_names_the_last_call(
    make_problem: MakeProblem,
) -> None:
    def decode(q: Any, k: Any, v: Any, g: Any, beta: Any, *, initial_state: Any) -> Any:
        return plain(q, k, v, g, beta, scale=None, initial_state=initial_state, cu_seqlens=None)

    adapter = kernel(step=decode)(plain)
    assert adapter.proof() == NOTHING_YET
    x = make_problem(T=1).inputs()
    stepped = adapter.step(x).o
    assert "decode (test_kernel.py" in adapter.proof()
    assert torch.equal(stepped, adapter.forward(x).o)
    assert "plain (test_kernel.py" in adapter.proof()
    assert kernel(proof=lambda: "observed")(plain).proof() == "observed"
    assert (
        kernel(environment=lambda: {"mode": "interpreted"})(plain).environment()["mode"]
        == "interpreted"
    )


def test_a_scale_left_out_is_tested_as_a_variant(make_problem: MakeProblem) -> None:
    def by_values(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float | None = None) -> Any:
        wrong = v.shape[-1] ** -0.5 if scale is None else scale
        return plain(q, k, v, g, beta, scale=wrong, initial_state=None, cu_seqlens=None)

    def right(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float | None = None) -> Any:
        return plain(q, k, v, g, beta, scale=scale, initial_state=None, cu_seqlens=None)

    def required(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float | None = None) -> Any:
        return right(q * scale, k, v, g, beta, scale=1.0)  # type: ignore[operator]

    problem = make_problem(state="absent", K=16, V=4)
    for function, status in (
        (by_values, Status.FAIL),
        (right, Status.PASS),
        (required, Status.PASS),
    ):
        adapter = kernel()(function)
        assert {found.status for found in forward(adapter, problem)} == {Status.PASS}
        assert status in {
            found.status for found in options(adapter, problem, variant=WITHOUT_SCALE)
        }
    assert "scale" in (
        kernel()(right).variants()[WITHOUT_SCALE].supports(problem.replace(scale=0.5)) or ""
    )
    assert not kernel()(plain).variants(), "a scale that must be passed cannot be left out"


def test_gradients_flow_through_the_conversions(make_problem: MakeProblem) -> None:
    adapter = kernel(layout="bhtd", state="vk", gate="log2", beta="logit", dtypes=("fp64",))(_bhtd)
    x = make_problem(dtype="fp64").inputs()
    leaves = [
        tensor.requires_grad_()
        for tensor in (x.q, x.g, x.beta, x.initial_state)
        if tensor is not None
    ]
    output = adapter.forward(x)
    found = torch.autograd.grad(output.o.sum() + output.final_state.sum(), leaves)
    o, final = recurrence(x)
    for got, wanted in zip(found, torch.autograd.grad(o.sum() + final.sum(), leaves), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


def _bhtd(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float, initial_state: Any) -> Any:
    q, k, v, g, beta = (t.transpose(1, 2) for t in (q, k, v, g, beta))
    o, final = recurrence(
        Inputs(
            q,
            k,
            v,
            g * torch.log(torch.tensor(2.0, dtype=g.dtype)),
            beta.sigmoid(),
            scale,
            initial_state.mT,
        )
    )
    return o.transpose(1, 2), final.mT


def test_another_convention_can_be_tried_on_the_same_function() -> None:
    adapter = kernel(packing="none")(five)
    other = adapter.redeclared(replace(adapter.conventions, state="vk"))
    assert isinstance(other, KernelAdapter) and other.conventions.state == "vk"
    assert (
        adapter.redeclared(replace(adapter.conventions, layout="thd", packing="cu_seqlens")) is None
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"layout": "tbhd"}, "kernel 'plain': layout: wanted one of bthd, bhtd, thd, got 'tbhd'"),
        (
            {"dtypes": ("float32",)},
            "dtypes: wanted some of fp64, fp32, bf16, fp16, got ['float32']",
        ),
        ({"dtypes": ()}, "dtypes: wanted some of"),
        ({"contract": "chunk-64"}, "contract 'chunk-64' is not known"),
        ({"contract": 64}, "contract: wanted a preset name"),
        (
            {"contract": {"bf16": "chunk64-bf16"}},
            "contract: wanted one for each of the dtypes fp32, got bf16",
        ),
        ({"scale": "none"}, "scale: wanted one of argument, fixed, folded, got 'none'"),
        ({"scale": "fixed"}, "scale='fixed', but the signature names scale"),
        ({"gates_range": (-1, 0)}, "gates_range: no such option; did you mean gate_range?"),
        ({"padding": "garbage"}, "padding: wanted one of zero, undefined"),
    ],
)
def test_a_wrong_declaration_names_the_option_and_the_choices(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(AdapterError) as caught:
        kernel(**wrong)(plain)
    assert said in str(caught.value)


def test_a_method_is_refused_with_what_to_decorate() -> None:
    """Where its arguments had other names, self was passed q."""

    class Port:
        def call(
            self, query: Any, key: Any, v: Any, g: Any, beta: Any, *, scale: float
        ) -> None: ...

    with pytest.raises(AdapterError, match=r"decorate the object instead: port = kdaverify.kernel"):
        kernel()(Port.call)


def test_a_signature_that_does_not_fit_is_refused() -> None:
    def three(q: Any, k: Any, v: Any) -> None: ...

    def more(q: Any, k: Any, v: Any, g: Any, beta: Any, *, chunk_size: int) -> None: ...

    with pytest.raises(
        AdapterError, match=r"wanted a function of \(q, k, v, g, beta, \.\.\.\), got \(q, k, v\)"
    ):
        kernel()(three)
    with pytest.raises(AdapterError, match="nothing to pass for chunk_size"):
        kernel()(more)
    with pytest.raises(
        AdapterError, match="scale='argument', but the signature does not name scale"
    ):
        kernel(scale="argument")(five)
    with pytest.raises(AdapterError, match="layout thd always passes cu_seqlens"):
        kernel(layout="thd", packing="cu_seqlens")(five)
    with pytest.raises(AdapterError, match="no readable signature"):
        kernel(name="builtin")(dict)
    with pytest.raises(AdapterError, match="takes fp32, got 'bf16'"):
        kernel()(plain).contract("bf16")


class Module(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: float) -> None: ...


def positional(  # noqa: PLR0917
    q: Any, k: Any, v: Any, g: Any, beta: Any, scale: Any, /
) -> None: ...


def rest(q: Any, k: Any, v: Any, g: Any, beta: Any, **options: Any) -> None: ...
async def later(q: Any, k: Any, v: Any, g: Any, beta: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (positional, "scale: passed by name, but positional-only in the signature; move the /"),
        (rest, r"\*\*options gets nothing.*; name those that the kernel takes \(scale, "),
        (later, r"is an async function; decorate one that waits for it, such as with asyncio\.run"),
        (Module, r"is a class; decorate an instance: kdaverify\.kernel\(\.\.\.\)\(Module\(\)\)"),
        (kernel(five), "'five': decorated twice; remove one @kdaverify.kernel"),
    ],
    ids=("positional-only", "keywords", "async", "class", "twice"),
)
def test_a_function_that_no_call_fits_is_refused_with_its_mend(function: Any, said: str) -> None:
    with pytest.raises(AdapterError, match=said):
        kernel()(function)


def test_a_module_of_torch_is_called_as_its_forward_declares() -> None:
    assert kernel()(Module()).conventions.scale == "argument"


@pytest.mark.parametrize(("device", "isolate", "isolated"), [
    ("cpu", None, False),
    ("cpu", True, True),
    ("cuda", None, True),
    ("npu", None, True),
    ("cuda", False, False),
])  # fmt: skip
def test_a_kernel_of_a_device_has_a_process_of_its_own(
    device: str, isolate: bool | None, isolated: bool
) -> None:
    """A device answers no further call of a process in which a kernel has faulted."""
    adapter = kernel(device=device, isolate=isolate)(plain)
    norm = kernel(op="gated_rms_norm", device=device, isolate=isolate)(_norm)
    assert (adapter.isolated, norm.isolated) == (isolated, isolated)


def _norm(x: Any, gate: Any, weight: Any, *, eps: float, activation: str) -> Any:
    raise NotImplementedError


def test_formats_are_named() -> None:
    with pytest.raises(AdapterError, match=r"wanted names such as 'bf16'.*, got torch\.bfloat16"):
        kernel(dtypes=cast("Any", torch.bfloat16))(five)
