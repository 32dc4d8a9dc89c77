"""Ports of flash-linear-attention's stage functions by other authors, by module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kdaverify.adapters.base import AdapterError, Output, WatchedAdapter
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.fla.activations import port_activations
from kdaverify.adapters.fla.functions import ALL_FUNCTIONS, HEAD_FUNCTIONS
from kdaverify.adapters.fla.stages import port_stages
from kdaverify.adapters.stages import StageArguments, StageCall, StageError, chain, formats_of
from kdaverify.adapters.unconfigured import Unconfigured
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.contract_checks import ContractError
from kdaverify.budgets.declared import declared_contracts
from kdaverify.budgets.formats import FORMATS
from kdaverify.operators.pointwise.call import ActivationCall
from kdaverify.problems import TORCH, Domain
from kdaverify.problems.axes import Gates
from oracles.inputs import Inputs

NAME: Final = "fla_port"
OPTIONS: Final = ("module", "dtypes", "contract", "gate", "gates")
CONTRACTS: Final[Mapping[str, str]] = {"channel": "triton_npu", "head": "gdn64"}
"""By gates, what is declared where nothing else is."""
NEEDS: Final = (
    f"takes options: {NAME}:module=MODULE for a module that holds stage functions under FLA's"
    " names, and if need be dtypes=FORMAT+FORMAT (fp32+bf16+fp16), contract=NAME (a .toml file,"
    " chunk64-fp32, ...), gate=log2 or log, gates=channel or head (the gated delta rule)"
)
ALL_DTYPES: Final = "fp32+bf16+fp16"


class FlaPort(WatchedAdapter):
    """Stage functions chained as FLA chains them; each can be called by itself.

    Args:
        module: holds functions of `kdaverify.adapters.fla.functions`, under their names, and if it
            has them those of `kdaverify.adapters.fla.activations.FUNCTIONS`.
        contracts: what is declared in each format they take; by default what FLA's own kernels do
            where fp32 products stay in fp32.
        base_2: whether gates are summed in base 2.
        gates: channel, for KDA's functions, or head, for those of the gated delta rule.
    """

    def __init__(
        self,
        module: str,
        *,
        contracts: Mapping[str, Contract],
        base_2: bool,
        gates: Gates = "channel",
    ) -> None:
        self.name = f"{NAME}:module={module}"
        self.dtypes = tuple(contracts)
        self.conventions = Conventions(packing="cu_seqlens", gates=gates)
        self.domain = Domain(gates=gates)
        self._contracts, self._module = contracts, module
        self._activations = port_activations(module)
        known = HEAD_FUNCTIONS if gates == "head" else ALL_FUNCTIONS
        self._stages = port_stages(module, base_2=base_2, alone=not self._activations, known=known)

    def contract(self, dtype: str) -> Contract:
        return self._contracts[dtype]

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        return self._stages

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        return self._activations

    def forward(self, inputs: Inputs) -> Output:
        dtype = next(name for name in self.dtypes if TORCH[name] == inputs.q.dtype)
        contract = self.contract(dtype)
        try:
            written = chain(
                self._stages,
                StageArguments(
                    inputs, {}, contract.chunk_size, formats_of(contract, FORMATS[dtype])
                ),
            )
        except StageError as error:
            raise AdapterError(f"{self.name}: {error}") from error
        if lacking := [name for name in ("o", "final_state") if name not in written]:
            raise AdapterError(
                f"{self.name}: no stage function gives {', '.join(lacking)}; it holds those of"
                f" {', '.join(self._stages)}"
            )
        self._ran = f"{', '.join(self._stages)} of {self._module}"
        return Output(written["o"], written["final_state"])


def _port(options: Mapping[str, str]) -> FlaPort:
    """The port that options name.

    Raises:
        AdapterError: no module, no such option, or no such value of it.
    """
    if strange := [name for name in options if name not in OPTIONS]:
        raise AdapterError(f"{NAME}: no option {strange[0]!r}; it has {', '.join(OPTIONS)}")
    if "module" not in options:
        raise AdapterError(f"{NAME}: {NEEDS}")
    dtypes = tuple(options.get("dtypes", ALL_DTYPES).split("+"))
    if wrong := [name for name in dtypes if name not in TORCH]:
        raise AdapterError(
            f"{NAME}: dtypes: wanted formats of {', '.join(TORCH)} joined by +, got {wrong[0]!r}"
        )
    gate = options.get("gate", "log2")
    if gate not in ("log2", "log"):
        raise AdapterError(f"{NAME}: gate: wanted log2 or log, got {gate!r}")
    gates = options.get("gates", "channel")
    if gates != "channel" and gates != "head":  # noqa: PLR1714 # narrows its type
        raise AdapterError(f"{NAME}: gates: wanted channel or head, got {gates!r}")
    try:
        contracts = declared_contracts(options.get("contract", CONTRACTS[gates]), dtypes)
    except ContractError as error:
        raise AdapterError(f"{NAME}: contract: {error}") from error
    return FlaPort(options["module"], contracts=contracts, base_2=gate == "log2", gates=gates)


FLA_PORT: Final = Unconfigured(NAME, NEEDS, _port)
