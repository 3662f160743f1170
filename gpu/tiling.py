"""How a matrix product is cut: which part each invocation of shaders/lib/product.wgsl computes.

Devices want opposite things. A software device emulates loads lane by lane and wants each of them
used often: wide tiles, rows traded between lanes. A GPU wants many lanes with short sums. Which
cut is best on an adapter is measured (`gpu.probe`); none changes a result but by `strands`, which
therefore depends on the matrix alone, never on how many rows a step has.
"""

from __future__ import annotations

from dataclasses import dataclass

M_SIZES = (1, 2, 4, 8, 16)
TRADING_LANES = 8


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
    """

    trade: bool
    max_m: int
    few_n: int
    many_n: int
    strands: int
    workgroup: int

    def tile(self, n_rows: int, n: int, blocks: int, *, fours: bool = False) -> Tile:
        """For a step of `n_rows` rows times a matrix of `n` rows of `blocks` blocks of 32; `fours`:
        its columns belong together in fours."""
        m = max(size for size in M_SIZES if size <= max(1, min(n_rows, self.max_m)))
        columns = max(self.few_n if m <= 2 else self.many_n, 4 if fours else 2)
        if self.trade:
            return Tile(m, _even(n, columns), 1, TRADING_LANES, trade=True)
        strands = even_strands(blocks, self.strands)
        return Tile(m, columns, strands, max(1, self.workgroup // strands), trade=False)


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
