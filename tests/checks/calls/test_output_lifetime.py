"""Outputs that share memory are seen; parts of one buffer that alternate are none."""

from __future__ import annotations

import torch

from kdaverify.checks.calls.lifetimes import share_a_byte


def test_parts_of_one_buffer_that_alternate_share_nothing() -> None:
    whole = torch.zeros(2, 8, 13, dtype=torch.bfloat16)
    state, x = whole[..., :4], whole[..., 4:]
    assert not share_a_byte(state, x)
    assert not share_a_byte(x.mT, state)
    assert not share_a_byte(whole[:0], whole)


def test_one_common_element_or_byte_is_enough() -> None:
    whole = torch.zeros(2, 8, 13, dtype=torch.bfloat16)
    assert share_a_byte(whole[..., :5], whole[..., 4:].mT)
    assert share_a_byte(whole, whole.view(torch.int8)[..., 25:])
    assert share_a_byte(whole[:1, :1, :1].expand(1, 1, 5), whole)
