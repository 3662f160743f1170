"""Tiling of a matmul: the part that each invocation of shaders/lib/matmul_tile.wgsl computes.

A software device emulates loads lane by lane, so each load should be used often: wide tiles, rows
shuffled between lanes. On a GPU neighbouring lanes should load neighbouring bytes: few rows take
many lanes a column with many loads under way, many rows share blocks in workgroup memory.
`gpu.tuning` measures which tiling is best on an adapter. The order of a sum depends on `split_k`
and the kind of tiling alone, and these on the adapter and the matrix, never on the rows of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

M_SIZES = (1, 2, 4, 8, 16)
SHUFFLE_LANES = 8
BLOCK_VEC4S = 8
"""Vec4s of a block, as in shaders/lib/weights.wgsl."""
QUAD = 4
"""Lanes that share a block in shaders/lib/matmul_tile_coalesced.wgsl."""
SHARED_LANES = 16
"""Lanes in each direction of shaders/lib/matmul_tile_shared.wgsl."""
SHARED_N = 4
"""Columns of a lane there."""
EXPERT_SHARED_N = 8
"""Columns of a lane in shared tiles of a mixture, whose rows end with those of an expert. Four rows
and eight columns read workgroup memory as seldom as eight rows and four."""
SHARED_M_SIZES = (8, 4)
"""Rows of a lane there. Eight read workgroup memory a quarter less for each multiply-add."""
MIN_SHARED_WORKGROUPS = 128
"""Fewest workgroups for the larger of these tiles: as many as a large GPU has multiprocessors."""
MIN_SHARED_ROWS = 32
"""Fewest rows that share blocks in workgroup memory: half of a workgroup's rows."""

MAX_WORKGROUPS = 65_535
"""Most workgroups in one direction on every WebGPU device."""

Loads = Literal["own", "shuffle", "coalesced", "shared"]

TILE_LIBS: dict[Loads, dict[str, str]] = {
    "own": {"x_tile": "x_tile_load"},
    "shuffle": {"x_tile": "x_tile_shuffle"},
    "coalesced": {"matmul_tile": "matmul_tile_coalesced", "tile_lanes": "tile_lanes_coalesced"},
    "shared": {"matmul_tile": "matmul_tile_shared", "tile_lanes": "tile_lanes_shared"},
}
Q8_TILE_LIBS: dict[Loads, dict[str, str]] = {
    "own": {"matmul_tile": "matmul_tile_int8"},
    "shuffle": {"matmul_tile": "matmul_tile_int8"},
    "coalesced": {"matmul_tile": "matmul_tile_int8_coalesced"},
    "shared": {"matmul_tile": "matmul_tile_int8_shared", "tile_lanes": "tile_lanes_shared"},
}
"""The same for int8 rows."""


LOAD_QUARTERS = {"q4": 4, "q8": 2}
"""Quarters of a block in a load of sixteen bytes; 1 for other formats."""
MAX_SLOTS = 8
"""Most loads of a column under way in a lane of shaders/lib/matmul_tile_coalesced.wgsl."""
X_BYTES = 16 << 10
"""Workgroup memory for x there, if one round of the blocks does not take more."""
QUARTER_BYTES = 32
"""A quarter of a block of x."""


@dataclass(frozen=True, slots=True)
class FewRows:
    """A tile of few float rows on a GPU.

    n       columns
    chains  most chains of an output that a lane has
    loads   loads of weights under way in a lane
    lanes   approximate lanes of a workgroup
    """

    n: int
    chains: int
    loads: int
    lanes: int

    def __str__(self) -> str:
        return f"n {self.n}, chains {self.chains}, loads {self.loads}, lanes {self.lanes}"


ONE_ROW = FewRows(n=1, chains=4, loads=8, lanes=64)
ONE_ROW_QUANTISED = FewRows(n=1, chains=4, loads=8, lanes=128)
FEW_ROWS = FewRows(n=2, chains=2, loads=8, lanes=128)
"""The fastest on an H100 for one row of f16 and f32, of q8 and q4, and for 2 to 16 rows."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of a matmul.

    m, n       rows and columns of a tile
    split_k    lanes that share a tile, each summing a part of k
    columns    tiles of a workgroup
    quads      quads of chains that a lane has parts of, if tiles of float rows are coalesced
    quarters   chains that it has of each
    rounds     rounds of the blocks whose x is in workgroup memory
    sums_n     columns that a lane has when they are summed
    loads      how lanes get rows and weights:
               own        each lane loads all it needs
               shuffle    each lane loads a part of x and shares it with the others
               coalesced  four lanes share a block (two if rows are int8), and neighbours load
                          neighbouring bytes
               shared     a workgroup loads blocks into workgroup memory
    """

    m: int
    n: int
    split_k: int
    columns: int
    loads: Loads
    quads: int = 1
    quarters: int = 1
    rounds: int = 1
    sums_n: int = 0

    @property
    def prelude(self) -> dict[str, str]:
        constants = {
            "TILE_M": self.m,
            "TILE_N": self.n,
            "SPLIT_K": self.split_k,
            "COLUMNS": self.columns,
            "LANE_QUARTERS": self.quarters,
        }
        if self.sums_n:
            constants |= {
                "LANE_QUADS": self.quads,
                "ROUNDS": self.rounds,
                "SUMS_N": self.sums_n,
                "TAIL_ROWS": self.tail_rows,
            }
        return {f"const {name}": f"{value}u" for name, value in constants.items()}

    @property
    def lanes(self) -> int:
        """Lanes of a workgroup."""
        if self.loads == "shared":
            return SHARED_LANES**2
        return self.columns * self.split_k // (self.quads * self.quarters)

    @property
    def x_bytes(self) -> int:
        """Workgroup memory for x in a coalesced tile of float rows."""
        return self.m * self.rounds * self.split_k * QUARTER_BYTES

    @property
    def tail_rows(self) -> int:
        """Rows whose sums such a tile adds at a time: the most for which workgroup memory is."""
        most = max(self.x_bytes, X_BYTES)
        return max(m for m in M_SIZES if m <= self.m and (m == 1 or self._tail_bytes(m) <= most))

    @property
    def workgroup_bytes(self) -> int:
        """Workgroup memory of a coalesced tile."""
        if not self.sums_n:
            return 4 * self.lanes * (self.n + 1)
        return max(self.x_bytes, self._tail_bytes(self.tail_rows))

    def _tail_bytes(self, m: int) -> int:
        return 16 * -(-m * self.n * self.quads // 4) * (self.lanes + self.lanes // 8)

    def lib(self, *, q8: bool) -> dict[str, str]:
        """Return the files of shaders/lib of this kind of tile, by the name they replace. `q8`: for
        int8 rows."""
        return (Q8_TILE_LIBS if q8 else TILE_LIBS)[self.loads]

    @property
    def group(self) -> tuple[int, int]:
        """Rows and columns of a workgroup."""
        if self.loads == "shared":
            return SHARED_LANES * self.m, SHARED_LANES * self.n
        return self.m, self.n * self.columns


@dataclass(frozen=True, slots=True)
class Tuning:
    """Best matmul settings on one adapter.

    subgroup_shuffle  lanes share parts of x; needs subgroups of at least `SHUFFLE_LANES`
    max_m             rows of the largest tile
    few_n             columns of a tile of one or two rows
    many_n            columns of a tile of more rows
    split_k           most quads of lanes that share one tile; 1: a lane has a tile of its own
    workgroup         approximate lanes of a workgroup
    shared_m          most rows of a lane in shared tiles; 4 also keeps those of experts narrow
    q8_activations    matmuls with q8 and q4 weights take int8 rows
    unrolls_loops     loops of all shaders that are marked for it are unrolled in the source
                      (`gpu.webgpu.unroll`), as NVIDIA's compiler keeps some, and in memory the
                      arrays that they index. Software devices unroll loops themselves

    On a GPU `few_n`, `many_n` and `workgroup` are for int8 rows. For float rows there are

    one_row            tiles of one row with f16 or f32 weights
    one_row_quantised  with q8 or q4 weights
    few_rows           tiles of more rows
    """

    subgroup_shuffle: bool
    max_m: int
    few_n: int
    many_n: int
    split_k: int
    workgroup: int
    shared_m: int
    q8_activations: bool = False
    unrolls_loops: bool = False
    one_row: FewRows = ONE_ROW
    one_row_quantised: FewRows = ONE_ROW_QUANTISED
    few_rows: FewRows = FEW_ROWS

    @property
    def coalesced(self) -> bool:
        """Whether few rows take coalesced tiles and many rows shared ones."""
        return self.split_k > 1

    def __str__(self) -> str:
        """Describe the tiles: rows × columns of the smallest and the largest, and how lanes share
        them. Without `q8_activations`."""
        if self.coalesced:
            one, few = self.one_row, self.few_rows
            tiles = f"1×{one.n}, {self.max_m}×{few.n}"
            lanes = f"split_k {QUAD * self.split_k}, lanes {one.lanes}, {few.lanes}"
            loops = ", loops unrolled" if self.unrolls_loops else ""
            return f"{tiles}, {lanes}, shared {self.shared_m}×{SHARED_N}{loops}"
        lanes = f"split_k {self.split_k}, lanes {self.workgroup}"
        if self.subgroup_shuffle:
            lanes = "subgroup shuffle"
        return f"1×{self.few_n}, {self.max_m}×{self.many_n}, {lanes}"

    def tile(
        self,
        n_rows: int,
        n: int,
        blocks: int,
        *,
        in_quads: bool = False,
        may_share: bool = False,
        of_expert: bool = False,
        dtype: str = "f16",
        q8: bool = False,
    ) -> Tile:
        """Return the tile of the product (n_rows, k) · (n, k)ᵀ with k = 32 · blocks.

        dtype      format of the weights
        q8         rows are int8
        in_quads   the columns of a tile must be a multiple of 4
        may_share  no norm is folded into the product, so that a shared tile is possible
        of_expert  `n_rows` is the average of an expert
        """
        if self.coalesced and may_share and n_rows >= MIN_SHARED_ROWS:
            split_k = QUAD * even_split_k(blocks, self.split_k)
            if of_expert:
                wide = self.shared_m > SHARED_M_SIZES[-1] and n > SHARED_LANES * SHARED_N
                columns = EXPERT_SHARED_N if wide else SHARED_N
                return Tile(SHARED_M_SIZES[-1], columns, split_k, 1, "shared")
            return Tile(self._shared_rows(n_rows, n), SHARED_N, split_k, 1, "shared")
        m = max(size for size in M_SIZES if size <= max(1, min(n_rows, self.max_m)))
        if self.coalesced and not q8:
            return self._few_rows(m, n, blocks, 4 if in_quads else 2, LOAD_QUARTERS.get(dtype, 1))
        tile_n = max(self.few_n if m <= 2 else self.many_n, 4 if in_quads else 2)
        if self.subgroup_shuffle:
            return Tile(m, _even(n, tile_n), 1, SHUFFLE_LANES, "shuffle")
        split_k = even_split_k(blocks, self.split_k) * (QUAD if self.coalesced else 1)
        loads: Loads = "coalesced" if self.coalesced else "own"
        least = -(-n // (tile_n * MAX_WORKGROUPS))
        return Tile(m, tile_n, split_k, max(least, self.workgroup // split_k, 1), loads)

    def _few_rows(self, m: int, n: int, blocks: int, sums_n: int, quarters: int) -> Tile:
        """Return the coalesced tile of `m` float rows. `quarters`: of a block in a load."""
        one_row = self.one_row if quarters == 1 else self.one_row_quantised
        few = one_row if m == 1 else self.few_rows
        quads = even_split_k(blocks, self.split_k)
        sums_n = max(sums_n, few.n)
        chains = few.chains
        while m * few.n > sums_n * (QUAD * quads // chains):  # more sums than lanes
            chains //= 2
        quarters = min(quarters, chains)
        lane_quads = max(c for c in range(1, chains // quarters + 1) if quads % c == 0)
        lanes = QUAD * quads // (quarters * lane_quads)
        most = min(few.loads // few.n, MAX_SLOTS) // lane_quads
        most = max(1, min(most, X_BYTES // (m * QUAD * quads * QUARTER_BYTES)))
        n_rounds = -(-blocks // quads)
        together = sums_n // few.n  # tiles whose sums a lane may have
        least = -(-n // (few.n * MAX_WORKGROUPS))
        columns = max(together, few.lanes // lanes // together * together)
        return Tile(
            m,
            few.n,
            QUAD * quads,
            max(columns, -(-least // together) * together),
            "coalesced",
            lane_quads,
            quarters,
            -(-n_rounds // -(-n_rounds // most)),
            sums_n,
        )

    def _shared_rows(self, n_rows: int, n: int) -> int:
        """Return the rows of a lane in a shared tile: the most that leave enough workgroups."""
        for m in SHARED_M_SIZES:
            n_groups = n_rows // (SHARED_LANES * m) * -(-n // (SHARED_LANES * SHARED_N))
            if m <= self.shared_m and n_groups >= MIN_SHARED_WORKGROUPS:
                return m
        return SHARED_M_SIZES[-1]

    def norm_chains(self, blocks: int) -> tuple[int, int]:
        """Return the chains that sum a row's squares in a matmul with rows of `blocks` blocks, and
        the consecutive vec4s of one chain."""
        if self.subgroup_shuffle:
            return SHUFFLE_LANES, 1
        chains = even_split_k(blocks, self.split_k)
        return (QUAD * chains, BLOCK_VEC4S // QUAD) if self.coalesced else (chains, BLOCK_VEC4S)


def even_split_k(blocks: int, most: int) -> int:
    """Return the split k, at most `most`, that leaves the fewest lanes idle in the last round; the
    largest among equals."""
    return max(
        range(max(1, most // 2), most + 1), key=lambda s: (blocks / (-(-blocks // s) * s), s)
    )


def _even(n: int, columns: int) -> int:
    """Return half of the columns if all of them would give a small, odd number of workgroups: a
    software device divides them among its threads beforehand, and one would have less to do."""
    groups = -(-n // (columns * SHUFFLE_LANES))
    return columns // 2 if groups % 2 and groups < 16 and columns > 4 else columns


SOFTWARE = Tuning(
    subgroup_shuffle=True, max_m=16, few_n=8, many_n=4, split_k=1, workgroup=8, shared_m=4
)
SOFTWARE_LOADS = replace(SOFTWARE, subgroup_shuffle=False, max_m=8, many_n=8)
GPU = Tuning(
    subgroup_shuffle=False, max_m=16, few_n=4, many_n=4, split_k=16, workgroup=64, shared_m=8
)
