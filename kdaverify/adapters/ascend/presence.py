"""What an NPU needs to be there, said so that it can be installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata, util
from typing import Final

import torch

from kdaverify.adapters.base import versions

INSTALL: Final[Mapping[str, str]] = {
    "torch_npu": "pip install torch-npu of the same version as torch",
    "fla_npu": (
        "build and install the wheel of flashserve/flash-linear-attention-npu for your SoC"
        " (FLA_NPU_SOC=ascend910b, ...)"
    ),
}
CANN_HOME: Final = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")


def lacking(device: str, *packages: str) -> str | None:
    """What is missing of the packages and, on an NPU, of torch_npu and CANN; None if nothing."""
    wanted = (*(("torch_npu",) if device == "npu" else ()), *packages)
    reasons = [
        f"{package} ({INSTALL.get(package, 'put it on PYTHONPATH')})"
        for package in wanted
        if not _importable(package)
    ]
    if device == "npu" and not any(os.environ.get(name) for name in CANN_HOME):
        reasons.append(
            f"CANN (install the toolkit and source its set_env.sh, which sets {CANN_HOME[0]})"
        )
    return f"not installed: {'; '.join(reasons)}" if reasons else None


def npu_environment(device: str) -> dict[str, str]:
    """Versions of what runs on an NPU, and its name; nothing of it on another device."""
    if device != "npu":
        return {"device": device}
    cann = str(getattr(torch.version, "cann", None) or "unknown")
    name = torch.get_device_module("npu").get_device_name()
    return {**versions("torch_npu"), "cann": cann, "device": f"npu ({name})"}


def version_of(package: str) -> dict[str, str]:
    """The version of the distribution that `package` comes from, where there is one."""
    try:
        return versions(package)
    except metadata.PackageNotFoundError:
        return {}


def _importable(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
