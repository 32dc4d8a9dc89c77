"""Where the tokens of a problem lie in a call: in place, beside padding, or in a pack."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

import torch
from torch import Tensor

ABSENT: Final = -1


@dataclass(frozen=True)
class TokenLayout:
    """Math: token t of sequence b is row at[b, t] of the flattened call, and absent where that is
    -1.

    Args:
        shape: rows and columns of the call.
        at: [B, T].
    """

    shape: tuple[int, int]
    at: Tensor

    @classmethod
    def in_place(cls, B: int, T: int, *, until: int | None = None) -> Self:
        """As the problem has them, of which the first `until` of each sequence are compared."""
        at = torch.arange(B * T).view(B, T)
        at[:, T if until is None else until :] = ABSENT
        return cls((B, T), at)

    @classmethod
    def beside_padding(cls, mask: Tensor, T: int) -> Self:
        """The next tokens of each sequence where a row of the mask is 1."""
        at = torch.full((len(mask), T), ABSENT)
        for b, row in enumerate(mask):
            columns = row.nonzero()[:, 0]
            at[b, : len(columns)] = b * mask.shape[1] + columns
        return cls((mask.shape[0], mask.shape[1]), at)

    @classmethod
    def packed(cls, lengths: tuple[int, ...], T: int) -> Self:
        """One sequence after the other, in one row."""
        at = torch.full((len(lengths), T), ABSENT)
        for b, (first, length) in enumerate(zip(offsets(lengths), lengths, strict=False)):
            at[b, :length] = torch.arange(first, first + length)
        return cls((1, sum(lengths)), at)

    @property
    def used(self) -> Tensor:
        """[B, T], whether a token is in the call."""
        return self.at >= 0

    def there(self, tokens: Tensor, elsewhere: Tensor | None = None) -> Tensor:
        """Tokens [B, T, D] in the rows of the call.

        Args:
            elsewhere: what the other rows hold; 0 by default.
        """
        D = tokens.shape[-1]
        rows = (
            tokens.new_zeros(*self.shape, D) if elsewhere is None else elsewhere.clone()
        ).flatten(0, 1)
        rows[self.at[self.used]] = tokens[self.used]
        return rows.view(*self.shape, D)

    def back(self, rows: Tensor) -> Tensor:
        """Rows of the call at their tokens; 0 where a token is absent."""
        tokens = rows.new_zeros(*self.at.shape, rows.shape[-1])
        tokens[self.used] = rows.flatten(0, 1)[self.at[self.used]]
        return tokens

    def padding(self, rows: Tensor) -> Tensor:
        """The rows of the call that hold no token of the problem."""
        own = torch.ones(self.shape[0] * self.shape[1], dtype=torch.bool)
        own[self.at[self.used]] = False
        return rows.flatten(0, 1)[own]


def offsets(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Where the sequences of a pack begin, and where the last one ends."""
    return (0, *accumulate(lengths))
