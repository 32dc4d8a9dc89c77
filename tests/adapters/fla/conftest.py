"""The adapters of flash-linear-attention, their kernels interpreted in worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from kdaverify.adapters import Adapter, find
from kdaverify.adapters.isolation import housed
from kdaverify.limits import Limits

CHUNKS: Final = ("fla", "triton_npu")
RECURRENCES: Final = ("fla-recurrent", "triton_npu-recurrent")
House = Callable[[str], Adapter]


@pytest.fixture(scope="package")
def house() -> Iterator[House]:
    """Finds an implementation and houses it,
    each in one process for all the tests of this folder.
    """
    made: dict[str, Adapter] = {}

    def get(name: str) -> Adapter:
        if name not in made:
            adapter = find(name)
            if reason := adapter.missing():
                pytest.skip(reason)
            made[name] = housed(adapter, name, limits=Limits())
        return made[name]

    yield get
    for adapter in made.values():
        adapter.end()
