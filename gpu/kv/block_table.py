"""Block table of one sequence in one group of layers. Host logic only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class BlockTable:
    """KV blocks of a sequence, in order. The first `n_freed` entries have left the sliding window,
    and their blocks were freed: they name a block that the sequence still has instead, because a
    kernel may load keys before the window, with weight 0, and must not find another text's."""

    blocks: list[int] = field(default_factory=list)
    n_freed: int = 0

    @classmethod
    def of(cls, n_freed: int, owned: list[int]) -> BlockTable:
        """Return the table of `owned` blocks after `n_freed` that have left the window."""
        return cls(owned[:1] * n_freed + owned, n_freed)

    @property
    def owned(self) -> list[int]:
        """Blocks without those that were freed."""
        return self.blocks[self.n_freed :]

    def drop(self, n: int) -> list[int]:
        """Give up the blocks before number `n`; return them."""
        dropped = self.blocks[self.n_freed : n]
        self.blocks[:n] = [self.blocks[n]] * n
        self.n_freed = n
        return dropped
