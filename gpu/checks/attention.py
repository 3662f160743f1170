"""Checks of attention over a paged cache in every KV format, and of the merge of its splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpu import ops
from gpu.checks.kv_cache import LAYER, Heads, LayerCache, RowPlaces, heads_config
from gpu.checks.rig import (
    POISON,
    ROUNDING,
    Array,
    Rig,
    check_each,
    f64,
    normal,
    op_config,
    poisoned,
    rows_at,
)
from gpu.config import ModelConfig
from gpu.kv.formats import KV_FORMATS
from gpu.ops import Batch, KvSplits
from gpu.ops.batch import STATE_FLOATS
from gpu.reference import ops as reference
from gpu.reference.softmax import softmax
from gpu.webgpu.buffers import Tensor, padded

LOG2_E = 1 / np.log(2)
SHARE = 0.4
"""Share of the worst case that the bound allows: errors of many roundings seldom add up. Three
times the largest error on two drivers."""


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """`at`: (slot, position) of each row; `bucket`: rows of the plan, 0 for as many; `apart`: rows
    of different sequences; `splits`: least of the plan; `capture`: entropies, too; `sharpness`: how
    large scores get; `masked`: for each slot, positions first … end − 1 that are masked, but the
    last h of them not in head h; `encoder`: rows see their text up to its last row; `distances`:
    keys on each side of a row that have position biases of their own, None: no biases."""

    heads: Heads
    at: tuple[tuple[int, int], ...]
    dtype: str = "f32"
    bucket: int = 0
    apart: bool = False
    splits: int = 1
    capture: bool = True
    sharpness: float = 1.0
    window: int | None = None
    cap: float | None = None
    scale: float | None = None
    masked: tuple[tuple[int, int], ...] = ()
    encoder: bool = False
    distances: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        n_heads, n_kv_heads, head_dim = self.heads
        cut = f"{self.dtype}-{n_heads}/{n_kv_heads}x{head_dim}-{self.splits} splits"
        kind = f"{'encoder' if self.encoder else 'decoder'}-distances {self.distances}"
        hidden = f"window {self.window}-masked {self.masked}-cap {self.cap}"
        return f"{cut}-{kind}-{hidden}-{self.at[:9]}-×{self.sharpness:g}"

    @property
    def config(self) -> ModelConfig:
        return heads_config(
            self.heads,
            sliding_windows=(None, self.window),
            attn_logit_softcap=self.cap,
            attn_scale=self.scale,
        )

    @property
    def width(self) -> int:
        return self.heads[0] * self.heads[2]

    @property
    def text_ends(self) -> Array | None:
        """Last positions of the rows' texts, (n_rows,), in an encoder."""
        lengths = RowPlaces.of(*self.at).lengths
        return np.array([lengths[slot] - 1 for slot, _ in self.at]) if self.encoder else None

    @property
    def scoring(self) -> reference.AttentionScoring:
        biases = None
        if self.distances is not None:
            biases = f64(normal(np.random.default_rng(1), self.heads[0], 2 * self.distances + 1))
        masked = tuple(
            tuple((first, max(first, end - head)) for head in range(self.heads[0]))
            for first, end in self.masked
        )
        return reference.AttentionScoring(self.scale, self.cap, self.window, masked, biases)

    def filled(self, rig: Rig, seed: int, rng: np.random.Generator) -> LayerCache:
        """Return a cache of the case with random keys and values up to the last row of each slot.
        `seed`: of the assignment of blocks."""
        lengths = RowPlaces.of(*self.at).lengths
        sizes = max(lengths) + 1, max(lengths.values())
        cache = LayerCache.scattered(rig, self.config, self.dtype, *sizes, seed)
        cache.fill(rig, lengths, rng)
        return cache


def check_attention(rig: Rig, case: AttentionCase) -> None:
    """Compare attention and its entropy with their twins."""
    rng = np.random.default_rng(case.seed)
    cache = case.filled(rig, case.seed, rng)
    q = normal(rng, len(case.at), case.width) * np.float32(case.sharpness)
    got, entropy = attend(rig, case, cache, q)
    heads = f64(q).reshape(len(q), case.heads[0], -1)
    rows = replace(cache.rows(RowPlaces.of(*case.at)), text_ends=case.text_ends)
    want, want_entropy = reference.attention(heads, rows, cache.arrays(), case.scoring)
    bound, entropy_bound = _attention_bounds(case, cache, q)
    want = (want @ cache.hadamard).reshape(got.shape)
    rig.compare(f"attention.{case.dtype}", case, got, want, bound)
    if entropy is not None:
        rig.compare("attention.entropy_bits", case, entropy, want_entropy, entropy_bound)


def attend(
    rig: Rig, case: AttentionCase, cache: LayerCache, q: Array, batch: Batch | None = None
) -> tuple[Array, Array | None]:
    """Return the device's attention of `q` (n_rows, width), and its entropy (n_rows, n_heads).
    `batch`: of `split_batch` if None."""
    n_heads, n_rows = case.heads[0], len(case.at)
    batch = batch or split_batch(rig, case)
    queries, out = rig.input("q", q), rig.output(n_rows, case.width)
    entropy = rig.output(n_rows, n_heads, n_heads) if case.capture else None
    rig.run_op(
        ops.attention, batch, "attention", case.config, queries, cache.pools, LAYER, out.tensor,
        entropy.tensor if entropy else None, mask_table(rig, case),
        position_biases(rig, case),
    )  # fmt: skip
    return out.read(), entropy.read() if entropy else None


def mask_table(rig: Rig, case: AttentionCase) -> Tensor | None:
    """Return the masked positions of each slot and head on the device; None if there are none."""
    masked = case.scoring.masked
    return rig.memory.upload("masked", np.array(masked, np.float32)) if masked else None


def position_biases(rig: Rig, case: AttentionCase) -> Tensor | None:
    """Return the biases of a case on the device, in bits; None if there are none."""
    biases = case.scoring.position_biases
    if biases is None:
        return None
    return rig.memory.upload("position_biases", (LOG2_E * biases).astype(np.float32))


def split_batch(rig: Rig, case: AttentionCase) -> Batch:
    """Write the step of a case and return its batch, with poisoned partial results if it has
    splits."""
    at = RowPlaces.of(*case.at)
    batch = replace(rig.batch(at.rows, bucket=case.bucket or len(case.at)), apart=case.apart)
    if (ends := case.text_ends) is not None:
        text_ends = np.full(batch.n_rows, POISON, np.uint32)
        text_ends[: len(ends)] = ends
        batch = replace(batch, text_ends=rig.memory.upload("text_ends", text_ends))
    if case.splits == 1:
        return batch
    least = int(at.positions.max()) // rig.device.policy.kv_split_size + 1
    splits = KvSplits.make(case.config, max(case.splits, least), rig.memory)
    rig.poison(splits.values)
    rig.poison(splits.states)
    splits.clear_counts(rig.memory)
    return replace(batch, splits=splits)


def _attention_bounds(case: AttentionCase, cache: LayerCache, q: Array) -> tuple[Array, Array]:
    """Return the error bounds of float32. A score is off by 8 roundings of ‖q‖‖k‖/√d, which moves
    its weight p by that and by the error of exp (3 + 2t roundings at distance t below the top)."""
    n_heads, n_kv_heads, head_dim = case.heads
    scale = head_dim**-0.5 if case.scale is None else case.scale
    scoring, ends = case.scoring, case.text_ends
    out, entropy = np.empty((len(q), n_heads, head_dim)), np.empty((len(q), n_heads))
    pools = f64(cache.keys, cache.values)
    for row, (slot, position) in enumerate(case.at):
        n_keys = (position if ends is None else ends[row]) + 1
        k, v = (reference.gather(pool, cache.tables[slot], n_keys) for pool in pools)
        for head in range(n_heads):
            query = f64(q[row]).reshape(n_heads, head_dim)[head]
            keys, values = (x[:, head * n_kv_heads // n_heads] for x in (k, v))
            found = reference.scores(query, keys, scoring, position, head, slot)
            is_seen = np.isfinite(found)
            scores, keys, values = found[is_seen], keys[is_seen], values[is_seen]
            off = 8 * scale * np.linalg.norm(query) * np.linalg.norm(keys, axis=1).max()
            off += 4 * (case.cap or 0)  # 1 - e of the cap cancels where scores are small
            if scoring.position_biases is not None:
                off += 2 * np.abs(scoring.position_biases).max()
            p, below = softmax(scores), scores.max() - scores
            weight = p * (2 * off + 8 + 4 * below)
            size = np.abs(values)
            if cache.pools.format.values.name == "q4":  # a minimum is added to each number
                size = size + size.max(axis=0)
            out[row, head] = (weight + 8 * p) @ size
            spread = np.log(len(p)) + p @ below
            entropy[row, head] = LOG2_E * ((2 * off + 16) * (1 + spread) + (weight @ below))
    if cache.pools.format.hadamard:  # every number of a head is a sum of those transformed with it
        out = 2 * np.sqrt(np.square(out) @ np.square(cache.hadamard))
    return (SHARE * ROUNDING * out).reshape(len(q), -1), SHARE * ROUNDING * entropy


# ---- attention_merge -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MergeCase:
    """`split`: keys of a split; `capture`: entropies, too."""

    n_splits: int
    n_heads: int
    head_dim: int
    split: int = 16
    capture: bool = True


def check_attention_merge(rig: Rig, case: MergeCase) -> bytes:
    """Compare a merge of random splits with its twin; return its bits."""
    n_splits, n_heads, head_dim = case.n_splits, case.n_heads, case.head_dim
    rng, width = np.random.default_rng(n_splits), n_heads * head_dim
    n_rows, most = 3, rig.device.policy.split_rows
    shape, config = (n_splits, most, n_heads), op_config(n_heads=n_heads, head_dim=head_dim)
    states = np.empty((*shape, STATE_FLOATS), np.float32)
    states[..., 0] = rng.normal(size=shape) * 10
    states[..., 1] = rng.uniform(1, case.split, shape)
    states[..., 2] = -rng.uniform(0, 3, shape) * states[..., 1]
    values = normal(rng, *shape, head_dim)
    whole = poisoned(n_splits, most, padded(width))
    whole[..., :width] = values.reshape(n_splits, most, width)
    flat = replace(rig.memory.upload("values", whole), shape=(n_splits * most, padded(width)))
    splits = KvSplits(n_splits, flat, rig.memory.upload("states", states))
    out, bits = rig.output(n_rows, width), rig.output(n_rows, n_heads, n_heads)
    batch = rig.batch(rows_at([n_splits * case.split - 1] * n_rows))
    rig.run_op(
        ops.attention_merge, batch, "merge", config, splits, case.split, out.tensor,
        bits.tensor if case.capture else None,
    )  # fmt: skip
    exact, exact_states = f64(values[:, :n_rows], states[:, :n_rows])
    want, entropy = reference.attention_merge(exact, exact_states)
    # The error of a power of two is about the rounding of its exponent, at most 60 bits here;
    # that of the largest, which counts most, is 0.
    error = (n_splits + 4) * ROUNDING
    largest = np.abs(values).max() * n_splits / exact_states[..., 1].min()
    rig.compare("attention_merge", case, out.read(), want.reshape(n_rows, -1), error * largest)
    if not case.capture:
        return out.read().tobytes()
    rig.compare("attention_merge.entropy", case, bits.read(), entropy, error * 10)
    return out.read().tobytes() + bits.read().tobytes()


# ---- of a report -----------------------------------------------------------------------------

SOME_ROWS = ((0, 70), (0, 71), (0, 72), (1, 3), (2, 32), (3, 15), (3, 16))
ATTENTIONS = (
    AttentionCase((9, 3, 64), SOME_ROWS, bucket=8),
    AttentionCase((9, 3, 64), SOME_ROWS, bucket=64),
    AttentionCase((13, 1, 8), tuple((0, i) for i in range(60)), bucket=64),
    AttentionCase(
        (2, 1, 64), ((0, 600), (1, 255), (2, 256)), bucket=8, splits=8, window=300, cap=30.0
    ),
    AttentionCase((6, 2, 128), ((0, 1022),), splits=8),
    AttentionCase(
        (6, 2, 16), SOME_ROWS, bucket=8, masked=((3, 65), (0, 0), (0, 32), (15, 16)), window=60
    ),
)
ENCODER_ROWS = tuple((slot, i) for slot, n in enumerate((1, 33, 2)) for i in range(n))
ENCODER_ATTENTIONS = (
    AttentionCase((3, 3, 12), ENCODER_ROWS, bucket=64, encoder=True),
    AttentionCase((5, 5, 64), ENCODER_ROWS, bucket=64, encoder=True, window=7),
    AttentionCase((3, 3, 20), ENCODER_ROWS, bucket=64, encoder=True, distances=5),
)

CHECKS: dict[str, Callable[[Rig], None]] = {
    **{
        f"attention {dtype}": check_each(
            check_attention, *(replace(case, dtype=dtype) for case in ATTENTIONS)
        )
        for dtype in KV_FORMATS
    },
    "attention encoder": check_each(check_attention, *ENCODER_ATTENTIONS),
    "attention_merge": check_each(
        check_attention_merge, MergeCase(1, 1, 4), MergeCase(2, 3, 20), MergeCase(5, 9, 64)
    ),
}
