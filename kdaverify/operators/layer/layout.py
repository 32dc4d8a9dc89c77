"""Where the tokens of a problem lie in a call: in place, beside padding, or in a pack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

ABSENT: Final = -1


@dataclass(frozen=True)
class TokenLayout:
    """Math: row [i, j] of a call is token t of sequence b, where token[i, j] = b T + t.

    Args:
        T: tokens of each sequence of the problem.
        token: [rows, columns] of the call, ABSENT where there is none.
    """

    T: int
    token: Tensor

    @classmethod
    def masked(cls, mask: Tensor, T: int) -> Self:
        """The next token of each sequence where its row of the mask is 1."""
        token = T * torch.arange(len(mask))[:, None] + mask.cumsum(1) - 1
        return cls(T, token.where(mask > 0, ABSENT))

    @classmethod
    def packed(cls, lengths: tuple[int, ...], T: int) -> Self:
        """One sequence after the other, in one row."""
        rows = [torch.arange(b * T, b * T + length) for b, length in enumerate(lengths)]
        return cls(T, torch.cat(rows)[None])

    @property
    def empty(self) -> Tensor:
        """[rows, columns, 1], whether a row of the call holds no token."""
        return (self.token == ABSENT)[..., None]

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens of each sequence the call has; at least one of each."""
        return tuple(torch.bincount(self.token[self.token >= 0] // self.T).tolist())

    def there(self, tokens: Tensor, elsewhere: Tensor | float = 0.0) -> Tensor:
        """Tokens [B, T, D] in the rows of the call, and `elsewhere` in those without one."""
        return torch.where(self.empty, elsewhere, tokens.flatten(0, 1)[self.token]).to(tokens.dtype)
