"""An operator of attention whose exact values and tolerances come from `tolerance`."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from torch import Tensor

from kdaverify.adapters.base import Adapter, is_slow
from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.bounded import Counted
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.sampled import StorageContract
from kdaverify.budgets.standard import Reference
from kdaverify.operator import Choices
from kdaverify.operators.attention import tolerance
from kdaverify.operators.attention.conventions import outputs
from kdaverify.operators.attention.special_sizes import Fields
from kdaverify.operators.bounded import BoundedOperator

if TYPE_CHECKING:
    from kdaverify.checks.location import Location
    from kdaverify.diagnosis.question import PropertyCase


STAGES: Final = (
    "gather", "dequant", "scores", "partial", "combine", "sink", "lse", "delta", "dq", "dkv",
)  # fmt: skip
"""By the first tensor that is wrong: rows of q, K and V as they are read; their numbers, where they
are quantised; S under the mask; weights, P V and how they are stored; the merge of parts; the
factor of a sink, and its gradient; LSE as it is returned; <do, o>; P and dS of the backward, and
dq; dk and dv."""


LARGEST: Final = 2**22
"""Elements of o, or of its scores. A problem of 65,536 rows has more for a kernel of one width
alone: some thirty tensors of that size in float64 were several GiB. One of 4,160 queries has for a
kernel that masks squares alone, and took three minutes."""


class TolerancesOperator(BoundedOperator):
    """An operator whose exact values and tolerances come from `tolerance.tolerances`."""

    formats = ("fp32", "bf16", "fp16")
    width = "d_v"
    has_known_bugs = True
    has_keys = True
    equal_sizes = True
    native = ("past-65535",)
    hidden_stages = STAGES
    special_sizes: ClassVar[Fields]
    """Problems of the panel whose errors are those of axes and paths, whatever the format: smoke
    tests each in one format, the next in the next, and gradients under one loss. In all formats and
    under all losses they took 16 % of the time of smoke."""
    absent = {"lse": 'lse="none"'}  # noqa: RUF012 # a Final mapping

    def panels(self, adapter: Adapter, profile: str) -> list[Choices]:
        panels = super().panels(adapter, profile)
        found = [[one for one in each if self.elements(one[1]) <= LARGEST] for each in panels]
        # those of slow kernels are thinned afterwards: of what each format had left of the special
        # sizes, half was dropped then, and a merge in jax that is cut at a grid's limit accepted
        if profile != "smoke" or is_slow(adapter):
            return found
        turn = {name: at % len(found) for at, name in enumerate(self.special_sizes)}
        return [
            [one for one in each if turn.get(one[0].partition("-")[2], at) == at]
            for at, each in enumerate(found)
        ]

    @abc.abstractmethod
    def elements(self, problem: Any) -> int:
        """Those of o, or of the scores, whichever are more."""

    def has_one_loss(self, problem: Any) -> bool:
        own = {"dtype": problem.dtype, "seed": problem.seed}
        return any(self.problem(**own, **at) == problem for at in self.special_sizes.values())

    def contracts(self, io: Format) -> Mapping[str, StorageContract]:
        return tolerance.contracts(io)

    def named_contract(self, name: str, io: Format) -> StorageContract:
        return tolerance.named_contract(name, io)

    def returns(
        self, names: frozenset[str], words: Mapping[str, Any], *, final_state: bool
    ) -> tuple[str, ...]:
        return outputs(words)

    def _reference(
        self, call: Any, given: Mapping[str, Tensor] | None, contract: Any, io: Format
    ) -> Reference:
        return tolerance.tolerances(call, contract, io, given)

    def counted(
        self,
        call: Any,
        cotangents: Mapping[str, Tensor] | None,
        contract: StorageContract | None,
        io: Format,
    ) -> Counted:
        return tolerance.counted(call, cotangents, contract, io)

    def groups(self, call: Any) -> int:
        return tolerance.rows(call)

    def traced(self, case: PropertyCase, judged: Adapter, wrong: frozenset[str]) -> Location | None:
        # it compares with the catalogue's faults, whose kernels are of this operator
        from kdaverify.operators.attention.traced import traced

        return traced(case, judged, wrong)

    def output_format(self, output: str, contract: StorageContract, io: Format) -> Format:
        """What the contract stores it in; LSE is fp32 where it declares nothing else."""
        if isinstance(contract, AttentionContract):
            return contract.storage(output)
        return FORMATS["fp32"] if output == "lse" else io
