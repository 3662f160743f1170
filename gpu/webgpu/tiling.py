"""How a matrix product is cut: which part each invocation of shaders/lib/product.wgsl computes.

Devices want opposite things. A software device emulates loads lane by lane and wants each of them
used often: wide tiles, rows traded between lanes. A GPU wants many lanes with short sums. Which
cut is best on an adapter is measured (`gpu.tuning.probe`). The order of a sum depends on `strands`
and `trade` alone, and these on the adapter and the matrix, never on how many rows a step has.
"""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass

M_SIZES = (1, 2, 4, 8, 16)
TRADING_LANES = 8
BLOCK_FOURS = 8
"""Of a row's numbers, as in shaders/lib/weights.wgsl."""


@dataclass(frozen=True, slots=True)
class Tile:
    """`m` rows × `n` columns for each group of `strands` lanes, which share the sums between them;
    `columns` such groups in a workgroup. `trade`: lanes load parts of x and trade them."""

    m: int
    n: int
    strands: int
    columns: int
    trade: bool

    @property
    def prelude(self) -> dict[str, str]:
        return {
            "const TILE_M": f"{self.m}u",
            "const TILE_N": f"{self.n}u",
            "const STRANDS": f"{self.strands}u",
            "const COLUMNS": f"{self.columns}u",
        }

    @property
    def x_tile(self) -> str:
        return "x_tile_lanes" if self.trade else "x_tile_loads"


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is best on one adapter.

    trade      lanes trade parts of x, which needs subgroups of at least `TRADING_LANES`
    max_m      rows of the largest tile
    few_n      columns of a tile of one or two rows
    many_n     columns of a tile of more rows
    strands    most lanes that share one tile
    workgroup  about how many lanes a workgroup has
    bytes      products with q8 and q4 weights take x rounded to bytes
    """

    trade: bool
    max_m: int
    few_n: int
    many_n: int
    strands: int
    workgroup: int
    bytes: bool = False

    def __str__(self) -> str:
        """For people: rows × columns of small tiles and of the largest, and how lanes share; not
        what products take."""
        lanes = "trading" if self.trade else f"strands {self.strands}, lanes {self.workgroup}"
        return f"1×{self.few_n}, {self.max_m}×{self.many_n}, {lanes}"

    def tile(self, n_rows: int, n: int, blocks: int, *, fours: bool = False) -> Tile:
        """For a step of `n_rows` rows times a matrix of `n` rows of `blocks` blocks of 32; `fours`:
        its columns belong together in fours."""
        m = max(size for size in M_SIZES if size <= max(1, min(n_rows, self.max_m)))
        columns = max(self.few_n if m <= 2 else self.many_n, 4 if fours else 2)
        if self.trade:
            return Tile(m, _even(n, columns), 1, TRADING_LANES, trade=True)
        strands = even_strands(blocks, self.strands)
        return Tile(m, columns, strands, max(1, self.workgroup // strands), trade=False)

    def norm_chains(self, blocks: int) -> tuple[int, int]:
        """Into how many sums a row's mean of squares is cut by a product with rows of `blocks`
        blocks, and how many fours in a row go to one of them."""
        if self.trade:
            return TRADING_LANES, 1
        return even_strands(blocks, self.strands), BLOCK_FOURS

    def changes(self, other: Tuning) -> int:
        """How many of the settings differ."""
        return sum(a != b for a, b in zip(astuple(self), astuple(other), strict=True))


def even_strands(blocks: int, most: int) -> int:
    """The number of strands, at most `most`, that leaves the fewest lanes idle in the last round;
    the larger of two."""
    return max(
        range(max(1, most // 2), most + 1), key=lambda s: (blocks / (-(-blocks // s) * s), s)
    )


def _even(n: int, columns: int) -> int:
    """Half the columns where a software device would have an odd and small number of workgroups:
    it shares them out between its threads once."""
    groups = -(-n // (columns * TRADING_LANES))
    return columns // 2 if groups % 2 and groups < 16 and columns > 4 else columns


SOFTWARE = Tuning(trade=True, max_m=16, few_n=8, many_n=4, strands=1, workgroup=8)
SOFTWARE_LOADS = Tuning(trade=False, max_m=8, few_n=8, many_n=8, strands=1, workgroup=8)
GPU = Tuning(trade=False, max_m=8, few_n=2, many_n=4, strands=16, workgroup=64)


def candidates(default: Tuning) -> tuple[Tuning, ...]:
    """What may be best on an adapter for which `default` (one of the above) is likely to be: that
    first, then by how many settings differ."""
    if default == GPU:
        grid = itertools.product((4, 8), (2, 4), (4, 8), (8, 16, 32), (64, 128, 256))
        found = [Tuning(False, *cut) for cut in grid]
    else:
        found = [
            Tuning(trade, max_m, few_n, many_n, strands=1, workgroup=8)
            for trade in ((True, False) if default.trade else (False,))
            for max_m, many_n in _SOFTWARE_TILES[trade]
            for few_n in (4, 8)
        ]
    return tuple(sorted(found, key=default.changes))


_SOFTWARE_TILES = {True: ((16, 4), (8, 4), (8, 8)), False: ((8, 4), (8, 8))}
"""By `trade`: the largest tiles that may be best. Compiling larger ones takes Mesa's software
device from 4 seconds (16 × 4 without trading) to minutes (16 × 8)."""
