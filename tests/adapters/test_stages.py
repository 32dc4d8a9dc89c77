"""Stages as adapters expose them: declared consistently, and chained they are the forward."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import Tensor

from kdaverify.adapters import find
from kdaverify.adapters.stages import StageArguments, StageCall, StageError, chain, formats_of
from kdaverify.budgets.formats import FORMATS
from oracles.backward_stages import BACKWARD_SIGNATURES
from oracles.stages import SIGNATURES
from tests.adapters.standins import MakeProblem


def nothing(x: StageArguments) -> Mapping[str, Tensor]:
    return {}


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
def test_the_stages_of_eager_chained_are_its_forward(make_problem: MakeProblem, dtype: str) -> None:
    adapter, inputs = find("eager"), make_problem(T=70, dtype=dtype).inputs()
    contract = adapter.contract(dtype)
    formats = formats_of(contract, FORMATS[dtype])
    written = chain(adapter.stages(dtype), StageArguments(inputs, {}, contract.chunk_size, formats))
    output = adapter.forward(inputs)
    for found, wanted in ((written["o"], output.o), (written["final_state"], output.final_state)):
        # Up to the order in which a library sums, which is another for another layout on some
        # processors.
        assert float((found - wanted).abs().max()) <= 4 * FORMATS[dtype].unit * float(
            wanted.abs().max()
        )
    assert all(tensor.dtype == formats(name).dtype for name, tensor in written.items())


def test_an_implementation_exposes_no_stages_unless_it_says_so() -> None:
    assert (
        find("eager-recurrent").stages("fp32") == {}
        and find("transformers-chunk").stages("fp32") == {}
    )
    assert list(find("eager").stages("bf16")) == [*SIGNATURES, *BACKWARD_SIGNATURES]


@pytest.mark.parametrize(
    ("covers", "takes", "gives", "reported"),
    [
        ((), (), (), "wanted stages that follow each other"),
        (("wy", "solve"), (), (), "got wy, solve"),
        (("solve",), ("Akk",), ("Aqk",), "gives: solve writes R, got Aqk"),
        (("solve",), ("w",), ("R",), "takes: solve comes after the writers of"),
    ],
)
def test_a_stage_declared_wrongly_is_refused(
    covers: tuple[str, ...], takes: tuple[str, ...], gives: tuple[str, ...], reported: str
) -> None:
    with pytest.raises(StageError, match=reported):
        StageCall(covers, takes, gives, nothing)


def test_a_chain_that_lacks_a_tensor_says_which(make_problem: MakeProblem) -> None:
    solve = {"solve": StageCall(("solve",), ("Akk",), ("R",), nothing)}
    contract = find("eager").contract("fp32")
    with pytest.raises(StageError, match="stage solve: takes Akk, which no stage before it gives"):
        chain(
            solve,
            StageArguments(
                make_problem(T=3).inputs(), {}, 64, formats_of(contract, FORMATS["fp32"])
            ),
        )
