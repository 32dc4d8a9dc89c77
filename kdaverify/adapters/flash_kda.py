"""FlashKDA: the CUTLASS forward kernel, from the library inside a vLLM wheel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter, AdapterError, Output, WatchedAdapter
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import Handover
from kdaverify.adapters.placement import on_device
from kdaverify.adapters.raw_gate import RawGate
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import Domain
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

LIBRARY: Final = "_flashkda_C"
WIDTH: Final = 128
GATES: Final = (-5.0 * (1 - 2.0**-12), -5.0 * 2.0**-20)
"""Inside (-5, 0), which a bounded sigmoid reaches at infinite logits alone."""
OPTION: Final = f"--impl flash_kda:library=/path/to/{LIBRARY}.abi3.so (it lies in a vLLM wheel)"


class FlashKda(WatchedAdapter):
    """fwd of the library: raw bounded gate, beta logits in bf16, q, k normalised inside, C = 16.

    What it leaves in the rows past the last offset means nothing. The state is taken and returned
    in fp32 tensors, value-first, but rounded to bf16 when read, and carried from chunk to chunk in
    bf16 (vLLM 0.29.0) or fp32 (0.33.0), so bf16 is what is judged. Decays are products of
    exponentials rounded to bf16.
    Source: torch.ops._flashkda_C.fwd, vLLM 0.29.0 and 0.33.0; the arithmetic:
    reports/findings/flash_kda_inverse.md.

    Args:
        library: the shared object; None until the option gives it.
    """

    name = "flash_kda"
    dtypes = ("bf16",)
    conventions = Conventions(state="vk", beta="logit", packing="cu_seqlens", qk="l2norm-stored")
    device = "cuda"
    domain = Domain(widths=(WIDTH,), head_ratios=(1,), gate_range=GATES, beta_range=(0.0, 1.0))
    isolated = True
    differentiable = False

    def __init__(self, library: Path | None = None) -> None:
        self._library = library
        self._gate = RawGate("bounded", torch.bfloat16)

    def configured(self, options: Mapping[str, str]) -> Adapter:
        if set(options) != {"library"}:
            raise AdapterError(
                f"flash_kda: wanted the option library alone, got {', '.join(options)}; say"
                f" {OPTION}"
            )
        library = Path(options["library"])
        if not library.is_file():
            raise AdapterError(f"flash_kda: library: no file {library}; say {OPTION}")
        return FlashKda(library.resolve())

    def missing(self) -> str | None:
        if self._library is None:
            return f"no library given: {OPTION}"
        return None if torch.cuda.is_available() else "no NVIDIA GPU here"

    def contract(self, dtype: str) -> Contract:
        return replace(preset("flash_kda", dtype), qk=self.conventions.rows_form)

    def received(self, inputs: Inputs) -> Inputs:
        received = self.conventions.received(self._gate.received(inputs))
        state = received.initial_state
        if state is None:
            return received
        return replace(received, initial_state=state.to(torch.bfloat16).to(state.dtype))

    def forward(self, inputs: Inputs) -> Output:
        return on_device(self.device, self._run, inputs)

    def environment(self) -> dict[str, str]:
        library = "" if self._library is None else self._library.name
        return {**super().environment(), "library": library, "device": torch.cuda.get_device_name()}

    def _run(self, inputs: Inputs) -> Output:
        library = _loaded(self._library)
        x = self._handed(inputs)
        handover = Handover(self.conventions, inputs, x, padding_undefined=True)
        A_log, dt_bias = self._gate.parameters(inputs)
        o = torch.full_like(x["v"], torch.nan)
        final_state = x["initial_state"].new_full((inputs.N, inputs.HV, WIDTH, WIDTH), torch.nan)
        size = int(library.get_workspace_size(inputs.B * inputs.T, inputs.H, inputs.N))
        workspace = torch.empty(size, dtype=torch.uint8, device=o.device)
        tokens = (x[name] for name in TOKENS)
        bound = self._gate.lower_bound
        library.fwd(
            *tokens,
            x["scale"],
            o,
            workspace,
            A_log,
            dt_bias,
            bound,
            x["initial_state"],
            final_state,
            x["cu_seqlens"],
            None,
            None,
        )
        self._ran = f"torch.ops.{LIBRARY}.fwd"
        output = handover.output(o, final_state)
        return replace(output, final_state=output.final_state.to(torch.bfloat16))

    def _handed(self, inputs: Inputs) -> dict[str, Any]:
        """The arguments; an absent state goes in as zeros, so that all calls are made alike."""
        x = self.conventions.arguments(replace(inputs, initial_state=inputs.state.float()))
        x |= {"g": self._gate.raw(inputs)}
        if x["cu_seqlens"] is not None:
            x["cu_seqlens"] = x["cu_seqlens"].long()
        return x


def _loaded(library: Path | None) -> Any:
    assert library is not None  # missing() has said so
    torch.ops.load_library(str(library))
    return getattr(torch.ops, LIBRARY)


FLASH_KDA: Final = FlashKda()
