"""Cost of a dispatch: floating-point operations and bytes, by a formula in the file of each op.

Both are those of the mathematics, whatever the kernel repeats. Every byte that is needed counts
once, read or written. A multiply-add is two operations; `exp`, a division and a comparison are one
each, an activation is four, a soft cap five. Converting between storage formats costs none.

The formulas in the docstrings of `<op>_cost` use: r rows of one sequence after c cached tokens,
K inputs, N outputs, heads of d numbers. Row i of r sees c + i + 1 keys, or the layer's window of
them. If a matrix is split into shards, the inputs that they share count with the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu.kv.formats import KV_STORAGES
from gpu.webgpu.plan import Dispatch

NORM_FLOPS = 4
"""Per number: square, add, multiply by the gain and by the scale."""
ACTIVATION_FLOPS = 4
GATE_FLOPS = 5
"""Per pair of columns: v / (1 + exp(−v)), times the other."""
CAP_FLOPS = 5
ROPE_FLOPS = 3
STATE_BYTES = 12
"""Softmax state of a head: maximum, sum, weighted sum."""


@dataclass(frozen=True, slots=True)
class Cost:
    flops: int
    n_bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.n_bytes + other.n_bytes)


@dataclass(frozen=True, slots=True)
class StepSize:
    """Size of a step: `n_rows` tokens of one sequence after `context` others, `n_samples` of which
    are sampled. `apart`: each row is of another sequence, after `context` others."""

    n_rows: int
    n_samples: int
    context: int
    apart: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.context + (1 if self.apart else self.n_rows)

    @property
    def n_keys(self) -> int:
        """Tokens whose keys are read."""
        return self.n_cached()

    def n_seen(self, window: int = 0) -> int:
        """Return the number of (row, key) pairs; rows see the last `window` keys, 0: all."""
        seen = (position + 1 for position in self._positions)
        return sum(min(n, window) if window else n for n in seen)

    def n_cached(self, window: int = 0) -> int:
        """Return the number of keys that at least one row sees."""
        if self.apart:
            return self.n_seen(window)
        return min(self.longest, self.n_rows + window - 1) if window else self.longest

    def n_splits(self, split: int) -> int:
        """Return the number of (row, split) pairs for splits of `split` keys."""
        return sum(position // split + 1 for position in self._positions)

    @property
    def _positions(self) -> list[int]:
        return [self.context + (0 if self.apart else i) for i in range(self.n_rows)]


Formula = Callable[[Dispatch, StepSize], Cost]
COSTS: dict[str, Formula] = {}
"""Formula by kernel name; `gpu.ops` registers one for each op that writes text."""


def cost_of_kernel(name: str) -> Callable[[Formula], Formula]:
    """Register the decorated formula for the kernel `name`."""

    def register(formula: Formula) -> Formula:
        COSTS[name] = formula
        return formula

    return register


def constants_of(dispatch: Dispatch) -> dict[str, int]:
    """Return the overrides of a dispatch as integers; fractions are cut off."""
    return {name: int(value) for name, value in dispatch.kernel.constants.items()}


def input_row_bytes(dispatch: Dispatch) -> int:
    """Return the bytes of one input row of a matmul: float32, or as `quantize_activations` stores
    it."""
    x = dispatch.tensors["x"]
    return 4 * (x.shape[-1] if x.dtype == "u32" else constants_of(dispatch)["K"])


def cached_head_bytes(dispatch: Dispatch) -> int:
    """Return the bytes of one token's key and value of one head in the KV cache of a dispatch."""
    pools = (dispatch.tensors["k_pool"], dispatch.tensors["v_pool"])
    return sum(KV_STORAGES[pool.dtype].head_bytes(pool.shape[-1]) for pool in pools)
