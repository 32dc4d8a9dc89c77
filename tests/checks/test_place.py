"""Where an element of an output is."""

from __future__ import annotations

import pytest
import torch

from kdaverify.checks.place import index_of


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 3, 4)])
def test_an_index_leads_to_its_element(shape: tuple[int, ...]) -> None:
    numbered = torch.arange(torch.Size(shape).numel()).view(shape)
    for flat in range(numbered.numel()):
        assert int(numbered[index_of(flat, shape)]) == flat
