"""Checks of the attention weights of a range of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpu import ops
from gpu.checks.attention import AttentionCase, mask_table, position_biases, split_batch
from gpu.checks.kv_cache import LAYER, Heads, LayerCache, RowPlaces
from gpu.checks.rig import ROUNDING, Array, Rig, check_each, f64, normal
from gpu.kv.formats import KV_FORMATS
from gpu.reference import ops as reference


@dataclass(frozen=True, slots=True)
class WeightsCase:
    """`at`: (slot, position) of each row; `keys`: first, number; `bucket`: rows of the plan, 0 for
    as many; `sharpness`: how large scores get; `encoder`: rows see keys after their own;
    `masked`, `distances`: see `AttentionCase`."""

    heads: Heads
    at: tuple[tuple[int, int], ...]
    keys: tuple[int, int]
    dtype: str = "f32"
    bucket: int = 0
    sharpness: float = 1.0
    window: int | None = None
    cap: float | None = None
    masked: tuple[tuple[int, int], ...] = ()
    encoder: bool = False
    distances: int | None = None
    seed: int = 0

    @property
    def attention(self) -> AttentionCase:
        """The attention that has these weights."""
        return AttentionCase(
            self.heads,
            self.at,
            self.dtype,
            self.bucket,
            window=self.window,
            cap=self.cap,
            masked=self.masked,
            encoder=self.encoder,
            distances=self.distances,
        )

    def filled(self, rig: Rig, seed: int, rng: np.random.Generator) -> LayerCache:
        """See `AttentionCase.filled`."""
        return self.attention.filled(rig, seed, rng)


def check_attention_weights(rig: Rig, case: WeightsCase) -> Array:
    """Compare weights with their twin; return them, (n_rows, n_heads, n)."""
    cache = case.filled(rig, case.seed, np.random.default_rng(case.seed))
    rng = np.random.default_rng(case.seed + 1)
    q = normal(rng, len(case.at), case.heads[0] * case.heads[2]) * np.float32(case.sharpness)
    got, want = attention_weights(rig, case, cache, q), _expected(case, cache, q)
    bound = _bounds(case, cache, q, want)
    rig.compare(f"attention_weights.{case.dtype}", case, got, want, bound)
    return got


def attention_weights(rig: Rig, case: WeightsCase, cache: LayerCache, q: Array) -> Array:
    """Return the device's weights of `q` (n_rows, width): (n_rows, n_heads, n)."""
    n_rows, n_heads, (first, n) = len(case.at), case.heads[0], case.keys
    attention = case.attention
    batch = split_batch(rig, attention)
    keys = rig.memory.zeros("keys", (2,), "u32", uniform=True)
    rig.memory.write(keys, np.array([first, n], np.uint32))
    queries, out = rig.input("q", q), rig.output(n_rows, n_heads * n, n_heads * n)
    rig.run_op(
        ops.attention_weights, batch, "weights", attention.config, queries, cache.pools, LAYER,
        keys, out.tensor, mask_table(rig, attention), position_biases(rig, attention),
    )  # fmt: skip
    return out.read().reshape(n_rows, n_heads, n)


def _expected(case: WeightsCase, cache: LayerCache, q: Array) -> Array:
    return reference.attention_weights(
        f64(q).reshape(len(q), case.heads[0], -1),
        replace(cache.rows(RowPlaces.of(*case.at)), text_ends=case.attention.text_ends),
        f64(cache.keys),
        *case.keys,
        case.attention.scoring,
    )


def _bounds(case: WeightsCase, cache: LayerCache, q: Array, want: Array) -> Array:
    """Return the error bounds of float32. A score is off by 8 roundings of ‖q‖‖k‖/√d, which moves
    its weight and the sum by that; exp is off by 3 + 2t roundings at distance t below the top, and
    the sum by what 12 merges leave."""
    n_heads, n_kv_heads, head_dim = case.heads
    whole = replace(case, keys=(0, max(position for _, position in case.at) + 1))
    biases, ends = case.attention.scoring.position_biases, case.attention.text_ends
    shares, bound = _expected(whole, cache, q), np.empty_like(want)
    for row, (slot, position) in enumerate(case.at):
        n_keys = position + 1 if ends is None else int(ends[row]) + 1
        keys = reference.gather(f64(cache.keys), cache.tables[slot], n_keys)
        for head in range(n_heads):
            query = f64(q[row]).reshape(n_heads, head_dim)[head] / np.sqrt(head_dim)
            longest = np.linalg.norm(keys[:, head * n_kv_heads // n_heads], axis=1).max()
            off = 8 * np.linalg.norm(query) * longest
            off += 4 * (case.cap or 0)  # 1 - e of the cap cancels where scores are small
            if biases is not None:
                off += 2 * np.abs(biases).max()
            greatest = shares[row, head].max()
            below = np.log(greatest / np.maximum(want[row, head], 1e-300))
            bound[row, head] = want[row, head] * (2 * off + 32 + 4 * below)
    return ROUNDING * bound


# ---- of a report -----------------------------------------------------------------------------

WEIGHTS = WeightsCase((6, 3, 16), ((0, 299), (1, 300), (0, 20)), (5, 290), bucket=4)

MASKED_WEIGHTS = replace(WEIGHTS, masked=((3, 280), (0, 0)))

CHECKS: dict[str, Callable[[Rig], None]] = {
    f"attention_weights {dtype}": check_each(
        check_attention_weights, *(replace(case, dtype=dtype) for case in (WEIGHTS, MASKED_WEIGHTS))
    )
    for dtype in KV_FORMATS
}
