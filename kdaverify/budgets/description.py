"""A contract spelled out as its pipeline: operands, sums and storage of every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kdaverify.budgets.backward import backward_members
from kdaverify.budgets.constants import SAMPLES
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.contract_checks import CHOICES, RETURNED
from kdaverify.budgets.contract_file import INPUTS
from kdaverify.budgets.contract_name import spelled
from kdaverify.budgets.ensemble import ensemble
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.tensors import StageTensors

SUMS_ALONE: Final = ("cumsum", "cumsum_bwd")
SCORES: Final = ("scores", "intra_bwd")
DIFFERENCE_STORED: Final = ("prediction", "rounded_beta", "residual")
FACTORED: Final = ("factor", "q_in", "k_in", "k_out", "k_back", "o_part")


@dataclass(frozen=True)
class DescribedStage:
    """One stage.

    Args:
        name: of the stage.
        operands: what its products take, in words; "" where it has none.
        sums: the format they are summed in.
        stores: the format of every named tensor.
        declared: those whose format is the contract's own word.
    """

    name: str
    operands: str
    sums: str
    stores: Mapping[str, str]
    declared: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """The pipeline of a contract, and what it leaves open.

    Args:
        forward, backward: the stages.
        settled: what is declared or usual of the whole, by field.
        members, backward_members: the emulated kernels of the tolerance of outputs, gradients.
        draws: how many stochastic-rounding samples there are.
    """

    forward: tuple[DescribedStage, ...]
    backward: tuple[DescribedStage, ...]
    settled: Mapping[str, str]
    members: tuple[str, ...]
    backward_members: tuple[str, ...]
    draws: int = SAMPLES

    def json(self) -> dict[str, Any]:
        """The same for other programs."""
        return {
            "forward": [_stage_json(stage) for stage in self.forward],
            "backward": [_stage_json(stage) for stage in self.backward],
            "settled": dict(self.settled),
            "family": {
                "forward": list(self.members),
                "backward": list(self.backward_members),
                "draws": self.draws,
            },
        }


def _stage_json(stage: DescribedStage) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "operands": stage.operands or None,
        "sums": stage.sums,
        "stores": dict(stage.stores),
        "declared": list(stage.declared),
    }


def describe(contract: Contract, io: Format | None = None) -> Description:
    """A contract as its pipeline.

    Args:
        contract: what is declared.
        io: format of q, k, v and o; None: not known, they are called "inputs".
    """
    pipeline, back = contract.pipeline, contract.of_gradients
    own = StageTensors("own", contract.own)
    forward = (*pipeline.forward, own) if contract.own else pipeline.forward
    known = io or (FORMATS["fp32"] if contract.operands.name == "tf32" else contract.operands)
    return Description(
        forward=tuple(_stage(stage, contract, io) for stage in forward),
        backward=tuple(_stage(stage, back, io) for stage in back.pipeline.backward),
        settled=_settled(contract),
        members=tuple(dict.fromkeys(member.name for member in ensemble(contract, known))),
        backward_members=tuple(
            dict.fromkeys(member.name for member in backward_members(back, known))
        ),
    )


def _stage(stage: StageTensors, contract: Contract, io: Format | None) -> DescribedStage:
    names = [name for name in stage.names if name in stage.every or _is_stored(name, contract)]
    return DescribedStage(
        stage.stage,
        "" if stage.stage in (*SUMS_ALONE, "own") else _operands(stage.stage, contract),
        contract.accumulate.name,
        {
            name: (
                INPUTS
                if io is None and name in RETURNED
                else contract.storage(name, io or contract.operands).name
            )
            for name in names
        },
        tuple(name for name in names if name in dict(contract.tensors)),
    )


def _is_stored(name: str, contract: Contract) -> bool:
    """Whether a tensor of some kernels alone belongs to those of this contract."""
    difference = name in DIFFERENCE_STORED and contract.difference_first
    return (
        difference
        or name in dict(contract.tensors)
        or (name in FACTORED and contract.factors is not None)
    )


def _operands(stage: str, contract: Contract) -> str:
    if contract.solve is None or stage not in (*SCORES, "solve"):
        return contract.operands.name
    if contract.anchored or stage == "solve":
        return contract.solve.name
    # Both kinds of blocks are summed alike; on the diagonal nothing is brought to another format
    # first.
    return f"{contract.solve.name}, on the diagonal {contract.accumulate.name}"


def _settled(contract: Contract) -> dict[str, str]:
    if contract.form == "recurrent":
        size = {}
    else:
        size = {"chunk": f"{contract.chunk_size} tokens", "sub-block": f"{contract.sub_block} rows"}
    factors = {} if contract.factors is None else {"factors of decays": contract.factors.name}
    anchor = {"anchor of diagonal scores": contract.anchor} if contract.anchored else {}
    gates = {"gates": "made by the kernel, as log(1 + exp x)"} if contract.makes_softplus else {}
    back = {} if contract.backward is None else {"backward": spelled(contract.backward)}
    words = {
        name.replace("_", " "): getattr(contract, name)
        for name in (*CHOICES, "gate", "qk")
        if name not in ("form", "anchor")
    }
    return {
        "form": contract.form,
        **size,
        "state carried in": contract.carry.name,
        **factors,
        **anchor,
        **gates,
        **words,
        **back,
    }
