"""The AscendC adapter over stand-ins:
every revision is driven as its contract says, and says what ran.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from kdaverify.adapters import AdapterError, WrongKernelError, find
from kdaverify.adapters.ascend.ascendc import ASCENDC
from kdaverify.adapters.ascend.layouts import LAYOUTS
from kdaverify.adapters.eager import EAGER
from kdaverify.checks.conventions import conventions
from kdaverify.checks.status import Status
from oracles.tensors import FLOATING
from tests.adapters.ascend.conftest import Plant, right
from tests.adapters.standins import MakeProblem, distance

REVISIONS = {"early": 16, "mid": 16, "v26_9_1": 64, "main": 64}
LATER = [name for name in REVISIONS if name != "early"]
NAMES = {"early": "early", "mid": "mid", "v26_9_1": "v26.9.1", "main": "September main"}
PRECISION = {"bf16": 8e-3, "fp16": 9e-4}
PACK = (0, 5, 70, 0, 4)
CALLS: dict[str, dict[str, Any]] = {
    "dense": {"T": 70},
    "pack": {"B": 1, "lengths": PACK, "T": sum(PACK)},
    "grouped heads": {"H": 1, "HV": 2},
    "no state": {"state": "absent", "scale": 0.3},
}


@pytest.mark.parametrize(("revision", "layout", "call"), list(product(LATER, LAYOUTS, CALLS)))
def test_later_revisions_get_the_very_call_and_return_it(
    make_problem: MakeProblem, revision: str, layout: str, call: str
) -> None:
    width = REVISIONS[revision]
    problem = make_problem(
        **{"H": 2, "HV": 2, "K": width, "V": width, "dtype": "bf16", **CALLS[call]}
    )
    for state in ("kv", "vk"):
        adapter, x = right(revision, layout=layout, state=state), problem.inputs()
        assert adapter.supports(problem) is None
        output, plain = adapter.forward(x), EAGER.forward(problem.inputs())
        assert torch.equal(output.o, plain.o) and torch.equal(output.final_state, plain.final_state)
        assert (
            f"revision {NAMES[revision]} (" in adapter.proof()
            and "two-token self-test fits, aclnnChunkKdaFwd (" in adapter.proof()
        )


@pytest.mark.parametrize(("layout", "call"), list(product(LAYOUTS, CALLS)))
def test_the_early_revision_gets_gates_summed_over_the_chunk(
    make_problem: MakeProblem, layout: str, call: str
) -> None:
    heads = {"H": 1, "HV": 2} if layout == "TND" else {"H": 2, "HV": 2}
    problem = make_problem(**{**heads, "K": 16, "V": 32, "dtype": "bf16", "T": 70, **CALLS[call]})
    adapter = right("early", layout=layout)
    assert adapter.supports(problem) is None
    assert max(distance(adapter, problem).values()) < PRECISION["bf16"]
    assert "revision early (o in the layout of the inputs, gates in log2, summed" in adapter.proof()
    assert "two-token self-test fits, " in adapter.proof()


@pytest.mark.parametrize("revision", REVISIONS)
def test_fp16_goes_with_betas_in_fp32_and_chunks_of_128(
    make_problem: MakeProblem, revision: str
) -> None:
    width = REVISIONS[revision]
    problem = make_problem(K=width, V=width, dtype="fp16")
    adapter = right(revision, chunk_size="128")
    assert adapter.contract("fp16").name == "chunk128-fp16"
    if revision == "early":  # a stand-in that undoes sums over 64 tokens
        problem = problem.replace(T=20)
    assert max(distance(adapter, problem).values()) < PRECISION["fp16"]


@pytest.mark.parametrize("revision", REVISIONS)
def test_the_declared_conventions_of_every_stand_in_fit(revision: str) -> None:
    for layout in LAYOUTS:
        outcome = conventions(right(revision, layout=layout))
        assert outcome.status is Status.PASS, outcome.message


def test_variants_are_every_layout_and_state_order_that_the_revision_has(
    make_problem: MakeProblem,
) -> None:
    assert set(right("early").variants()) == {"BNSD-kv", "TND-kv", "NTD-kv"}
    problem, adapter = (
        make_problem(K=16, V=16, dtype="bf16"),
        right("mid", layout="NTD", state="vk"),
    )
    variants, own = adapter.variants(), adapter.forward(problem.inputs())
    assert set(variants) == {
        f"{layout}-{state}" for layout, state in product(LAYOUTS, ("kv", "vk"))
    } - {"NTD-vk"}
    for variant in variants.values():
        output = variant.forward(problem.inputs())
        assert torch.equal(output.o, own.o) and torch.equal(output.final_state, own.final_state)


LIMITS: list[tuple[str, dict[str, str], dict[str, Any], str]] = [
    ("mid", {}, {"lengths": (20,), "T": 30}, "no tokens past the last offset"),
    ("mid", {}, {"lengths": (0,), "T": 0}, "at least one token"),
    ("mid", {}, {"lengths": (1,) * 1025, "T": 1025}, "at most 1024 sequences, wanted 1025"),
    ("mid", {"layout": "TND"}, {"B": 1025, "T": 1}, "at most 1024 sequences, wanted 1025"),
    ("mid", {}, {"H": 129, "HV": 129, "T": 1}, "at most 128 value heads, wanted 129"),
    ("mid", {}, {"K": 24}, "multiples of 16 from 16 to 256, wanted K = 24"),
    ("mid", {}, {"V": 272}, "multiples of 16 from 16 to 256"),
    (
        "mid",
        {"widths": "square"},
        {},
        (
            "in revision mid or v26.9.1, wanted K = 16, V = 16; if it is known to be mid, say"
            " widths=any"
        ),
    ),
    (
        "v26_9_1",
        {},
        {"K": 64, "V": 128},
        "K = V = 64 or K = V = 128 in revision mid or v26.9.1, wanted K = 64, V = 128",
    ),
    ("main", {}, {"K": 32, "V": 32}, "K = V = 64 or K = V = 128 in revision September main"),
    (
        "early",
        {"layout": "TND"},
        {"H": 2, "HV": 2},
        "TND takes one key head in revision early, wanted 2; use layout=NTD",
    ),
    ("early", {"state": "vk"}, {}, "states are [K, V] only in revision early"),
    ("early", {}, {"gate": "hard-reset"}, "no hard resets"),
]


@pytest.mark.parametrize(("revision", "options", "changes", "said"), LIMITS)
def test_limits_of_a_revision_are_reasons(
    make_problem: MakeProblem,
    revision: str,
    options: dict[str, str],
    changes: dict[str, Any],
    said: str,
) -> None:
    plain = {"B": 1, "H": 1, "HV": 1, "K": 16, "V": 16, "dtype": "bf16", **changes}
    assert said in str(right(revision, **options).supports(make_problem(**plain)))


def test_nothing_is_run_to_say_what_is_supported(make_problem: MakeProblem, plant: Any) -> None:
    def chunk_kda_fwd(
        q: Any, k: Any, v: Any, g: Any, beta: Any, *, state_v_first: bool = False
    ) -> None:
        raise SystemExit

    adapter, problem = (
        plant.host({"chunk_kda_fwd": chunk_kda_fwd}),
        make_problem(K=64, V=64, dtype="bf16"),
    )
    assert adapter.supports(problem) is None and adapter.supports(problem.replace(K=32)) is not None
    assert adapter.received(problem.inputs()) is not None and adapter.exposes(problem) == (
        "o",
        "final_state",
    )
    assert len(adapter.variants()) == 7 and adapter.redeclared(adapter.conventions) is not None
    assert (adapter.widths, right("mid").widths) == ((64, 128), (16, 32, 64, 128))


def test_what_is_missing_is_said_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    said = str(ASCENDC.missing())
    for part in (
        "torch_npu (pip install torch-npu",
        "fla_npu (build and install the wheel of flashserve",
        "CANN (install the toolkit",
    ):
        assert part in said
    assert "no_such_module (put it on PYTHONPATH)" in str(
        ASCENDC.configured({"module": "no_such_module.ops", "device": "cpu"}).missing()
    )
    assert right("mid").missing() is None
    assert right("mid").environment()["device"] == "cpu"


def test_options_that_do_not_exist_name_those_that_do() -> None:
    with pytest.raises(
        AdapterError,
        match=("no option 'layouts'; it has layout, state, chunk_size, widths, module, device"),
    ):
        ASCENDC.configured({"layouts": "BSND"})
    with pytest.raises(
        AdapterError, match="option layout: wanted one of BSND, BNSD, TND, NTD, got 'bsnd'"
    ):
        ASCENDC.configured({"layout": "bsnd"})


def _unknown(q: Any, k: Any, v: Any, w: Any) -> None:
    """An operator of no revision."""


def test_a_module_without_the_operator_or_of_no_known_revision_is_refused(
    make_problem: MakeProblem, plant: Any
) -> None:
    x = make_problem(dtype="bf16", K=16, V=16)
    nothing, unknown = plant.host({}), plant.host({"chunk_kda_fwd": _unknown})
    for adapter in (nothing, unknown):
        assert adapter.supports(x) is None
    with pytest.raises(AdapterError, match="has no chunk_kda_fwd; name the module"):
        nothing.forward(x.inputs())
    with pytest.raises(
        WrongKernelError, match=r"wanted the signature of a known revision .* got \(q, k, v, w\)"
    ):
        unknown.forward(x.inputs())
    with pytest.raises(AdapterError, match="could not be imported: ModuleNotFoundError"):
        ASCENDC.configured({"module": "no_such_module", "device": "cpu"}).forward(x.inputs())


def test_an_operator_of_torch_shows_its_signature_too(
    make_problem: MakeProblem, plant: Any
) -> None:
    from tests.adapters.ascend.standins import mid

    library = torch.library.Library("kdaverify_standin", "DEF")
    library.define(
        "chunk_kda_fwd(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float scale, int"
        " chunk_size, *, str layout, Tensor? initial_state, bool output_final_state, int[]?"
        " cu_seqlens, int[]? chunk_indices, bool state_v_first) -> (Tensor, Tensor)"
    )

    def run(*tensors: Any, cu_seqlens: Any, chunk_indices: Any, **said: Any) -> Any:
        host = {
            "cu_seqlens": None if cu_seqlens is None else tuple(cu_seqlens),
            "chunk_indices": chunk_indices,
        }
        return mid.chunk_operator(mid.BEHAVIOUR)(*tensors, **host, **said)[:2]

    library.impl("chunk_kda_fwd", run, "CompositeExplicitAutograd")
    adapter = plant.host({"chunk_kda_fwd": torch.ops.kdaverify_standin.chunk_kda_fwd}, widths="any")
    for changes in ({}, {"B": 1, "lengths": PACK, "T": sum(PACK)}):
        problem = make_problem(dtype="bf16", K=16, V=16, **changes)
        assert torch.equal(adapter.forward(problem.inputs()).o, EAGER.forward(problem.inputs()).o)
    assert "revision mid" in adapter.proof()


@pytest.mark.parametrize("edited", ["q", "k", "v", "g", "beta"])
@pytest.mark.parametrize(
    ("revision", "layout", "dtype"),
    [("mid", "BSND", "bf16"), ("mid", "NTD", "fp16"), ("early", "BNSD", "fp16")],
)
def test_an_edit_in_place_is_the_callers(
    make_problem: MakeProblem, plant: Plant, *, revision: str, layout: str, dtype: str, edited: str
) -> None:
    problem = make_problem(K=16, V=16, dtype=dtype)
    x, before = problem.inputs(), problem.inputs()
    plant(revision, options={"layout": layout}, edits=edited).forward(x)
    for name in FLOATING:
        assert torch.equal(getattr(x, name), getattr(before, name)) is (name != edited)


@pytest.mark.parametrize("layout", ["BSND", "TND"])
def test_an_output_written_over_v_is_the_callers_v(
    make_problem: MakeProblem, plant: Plant, layout: str
) -> None:
    x = make_problem(K=16, V=16, dtype="bf16").inputs()
    output = plant("mid", options={"layout": layout}, o="over v").forward(x)
    assert output.o.untyped_storage().data_ptr() == x.v.untyped_storage().data_ptr()


def test_it_is_found_by_name_with_its_options() -> None:
    assert find("ascendc:layout=NTD,state=vk").conventions.state == "vk"
