"""Checks of the ops of mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from gpu import ops
from gpu.bench.machine.rig import (
    GUARD_ROWS,
    POISON,
    ROUNDING,
    Array,
    Arrays,
    Rig,
    f64,
    normal,
    plain_rows,
    recording,
)
from gpu.checkpoint.matrix import ExpertStack
from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.checkpoint.weights import WeightLoader
from gpu.config import MoeConfig
from gpu.ops.moe_routing import max_tiles, tile_assignments
from gpu.reference import moe as reference
from gpu.reference.ops import Epilogue, Norm, moe_expert_norms, rms_norm
from gpu.webgpu.plan import Recorder

EPS = 1e-5


def check_moe_topk(rig: Rig) -> None:
    for n, each in ((1, 1), (5, 5), (60, 4), (1024, 32)):
        for norm_topk_prob in (False, True):
            moe = MoeConfig(n, each, 8, norm_topk_prob)
            logits = normal(np.random.default_rng(n), 7, n) * 3
            batch = rig.batch(plain_rows(7), bucket=8)
            given = np.concatenate([logits, np.full((7, 2), np.nan, np.float32)], axis=1)
            ids, gates = rig.output(7, each, each), rig.output(7, each, each)
            routing = ops.ExpertRouting(replace(ids.tensor, dtype="u32"), gates.tensor)
            rig.run(
                recording(ops.moe_topk, batch, "topk", moe, rig.input("logits", given), routing)
            )
            want_ids, want = reference.moe_topk(logits.astype(np.float64), each, norm_topk_prob)
            rig.expect(f"the experts of {moe}", np.array_equal(ids.read().view("u4"), want_ids))
            bound = (np.abs(logits).max() + n) * 4 * ROUNDING * want
            rig.compare(f"gates of {moe}", gates.read(), want, bound)


def check_moe_permute(rig: Rig) -> None:
    for rows, bucket, n, each in ((3, 4, 2, 1), (77, 128, 60, 4), (128, 128, 300, 8)):
        moe = MoeConfig(n, each, 8, norm_topk_prob=True)
        chosen = _choices(np.random.default_rng(rows), rows, moe)
        tile = tile_assignments(rig.device.tuning, moe, bucket)
        n_tiles, batch = max_tiles(moe, bucket, tile), rig.batch(plain_rows(rows), bucket=bucket)
        order, tiles = rig.output(rows * each, 1, 1), rig.output(n_tiles, 4, 4)
        found = (replace(out.tensor, dtype="u32") for out in (order, tiles))
        permutation = ops.ExpertPermutation(*found)
        routing = _routing(rig, chosen)
        rig.run(recording(ops.moe_permute, batch, "permute", moe, routing, permutation))
        want_order, want_tiles = reference.moe_permute(chosen.astype(np.int64), tile)
        got, got_tiles = order.read().view("u4")[:, 0], tiles.read().view("u4")
        case = f"{rows} rows, {n} experts"
        rig.expect(f"the order of {case}", np.array_equal(got, want_order))
        rig.expect(
            f"the tiles of {case}", np.array_equal(got_tiles[: len(want_tiles), :3], want_tiles)
        )
        rig.expect(f"empty tiles of {case}", not got_tiles[len(want_tiles) :].any())


def check_moe_matmul(rig: Rig, dtype: str) -> None:
    """Check few rows, whose assignments are computed one by one, and many, which are grouped by
    expert; both matrices of an expert."""
    moe = MoeConfig(6, 2, 8, norm_topk_prob=True)
    for rows, bucket in ((1, 1), (61, 64)):
        for k, n, gated in ((70, 38, True), (33, 19, False)):
            _check_experts(rig, dtype, moe, (rows, bucket), (k, n), gated)


def _check_experts(
    rig: Rig,
    dtype: str,
    moe: MoeConfig,
    rows_of: tuple[int, int],
    size: tuple[int, int],
    gated: bool,
) -> None:
    """Check a gate and up with its norm, or a down, which takes rows of assignments."""
    (rows, bucket), (k, n), rng = rows_of, size, np.random.default_rng(5)
    n_x = rows if gated else rows * moe.experts_per_token
    weights = normal(rng, moe.n_experts, n, k) / np.float32(np.sqrt(k))
    x, gain = normal(rng, n_x, k), rng.uniform(0.5, 1.5, k).astype(np.float32)
    chosen, stack = _choices(rng, rows, moe), _stack(rig, weights, dtype, gated)
    batch, routing = rig.batch(plain_rows(rows), bucket=bucket), _routing(rig, chosen)
    slots = rig.memory.upload("slots", np.arange(moe.n_experts, dtype=np.uint32))
    permutation, given = ops.ExpertPermutation.make(moe, rig.memory), rig.input("x", x)
    y = rig.output(rows * moe.experts_per_token, n // 2 if gated else n)
    norm = ops.Norm(rig.gain(gain), EPS) if gated else None

    def record(rec: Recorder) -> None:
        if ops.is_permuted(moe, batch.n_rows):
            ops.moe_permute(rec, batch, "permute", moe, routing, permutation)
        ops.moe_matmul(
            rec, batch, "experts", moe, given, stack, slots, routing, permutation, y.tensor,
            norm=norm, activation="silu" if gated else None, gated=gated, per_assignment=not gated,
        )  # fmt: skip

    rig.run(record)
    stored = unpack(dtype, pack(dtype, weights.reshape(-1, k)), k).reshape(weights.shape)
    want, bound = _expected(x, stored, gain, chosen, gated)
    rig.compare(f"{dtype}, {rows} rows, {k}x{n}", y.read(), want, bound)


def _expected(
    x: Array, stored: Array, gain: Array, chosen: Array, gated: bool
) -> tuple[Array, Array]:
    """Return the result and the bound of float32, as for `matmul`."""
    x, stored, gain = f64(x, stored, gain)
    ids = chosen.astype(np.int64)
    norm, epilogue = Norm(gain, EPS) if gated else None, Epilogue("silu", gated=True)
    before = reference.moe_matmul(x, stored, ids, norm=norm, per_assignment=not gated)
    rows = np.repeat(rms_norm(x, gain, EPS), chosen.shape[1], axis=0) if gated else x
    sizes = np.linalg.norm(stored, axis=2)[ids.reshape(-1)]
    bound = 8 * ROUNDING * np.linalg.norm(rows, axis=1)[:, None] * sizes
    if not gated:
        return before, bound
    bound += (8 + np.sqrt(x.shape[1])) * ROUNDING * np.abs(before)
    gate, up = before[:, 0::2], before[:, 1::2]
    act = np.abs(gate / (1 + np.exp(-gate)))
    bound = bound[:, 0::2] * 1.2 * np.abs(up) + bound[:, 1::2] * act
    bound += (16 + 4 * np.abs(gate)) * ROUNDING * act * np.abs(up)
    return reference.moe_matmul(x, stored, ids, epilogue, norm=norm), bound


def check_moe_combine(rig: Rig) -> None:
    moe, rows = MoeConfig(7, 3, 8, norm_topk_prob=False), 5
    for width in (32, 70, 300):
        rng = np.random.default_rng(width)
        parts, shared, residual = (normal(rng, n, width) for n in (rows * 3, rows, rows))
        gates = rng.uniform(0, 1, (rows, 3)).astype(np.float32)
        logits = np.full((rows, 8), np.nan, np.float32)
        logits[:, 7] = [-90.0, -2.0, 0.0, 3.0, 90.0]
        batch = rig.batch(plain_rows(rows), bucket=8)
        routing, y = _routing(rig, np.zeros((rows, 3), np.uint32), gates), rig.output(rows, width)
        rig.run(
            recording(
                ops.moe_combine, batch, "combine", moe, rig.input("parts", parts), routing,
                y.tensor, shared=(rig.input("shared", shared), rig.input("logits", logits)),
                residual=rig.input("residual", residual),
            )
        )  # fmt: skip
        parts_, gates_, shared_, logit, before = f64(parts, gates, shared, logits[:, 7], residual)
        want = reference.moe_combine(parts_, gates_, shared=shared_, logit=logit, residual=before)
        size = np.einsum("rk,rkn->rn", gates_, np.abs(parts_).reshape(rows, 3, -1))
        bound = ROUNDING * (8 * size + 8 * np.abs(shared_) + 2 * np.abs(before))
        rig.compare(f"{width}", y.read(), want, bound)


def check_moe_expert_norms(rig: Rig) -> None:
    for rows, bucket, each, k in ((1, 1, 1, 37), (7, 8, 3, 1000)):
        parts = normal(np.random.default_rng(k), rows * each, k)
        moe = MoeConfig(9, each, 8, norm_topk_prob=True)
        norms, batch = rig.output(rows, each, each), rig.batch(plain_rows(rows), bucket=bucket)
        given = rig.input("parts", parts)
        rig.run(recording(ops.moe_expert_norms, batch, "norms", moe, given, norms.tensor))
        want = moe_expert_norms(parts.astype(np.float64)).reshape(rows, each)
        rig.compare(f"{rows} rows of {k}", norms.read(), want, (4 + np.sqrt(k)) * ROUNDING * want)


def _choices(rng: np.random.Generator, rows: int, moe: MoeConfig) -> Array:
    """Return random choices; some experts are chosen often, some never."""
    liking = rng.permutation(np.geomspace(1, 0.01, moe.n_experts))
    noise = rng.gumbel(size=(rows, moe.n_experts)) + np.log(liking)
    chosen: Array = np.argsort(-noise, axis=1)[:, : moe.experts_per_token].astype(np.uint32)
    return chosen


def _routing(rig: Rig, chosen: Array, gates: Array | None = None) -> ops.ExpertRouting:
    """Upload a routing as `moe_topk` writes it; rows past the last are poisoned."""
    ids = np.full((len(chosen) + GUARD_ROWS, chosen.shape[1]), POISON, np.uint32)
    ids[: len(chosen)] = chosen
    found = ids.view(np.float32).copy()
    if gates is not None:
        found[: len(chosen)] = gates
    return ops.ExpertRouting(rig.memory.upload("ids", ids), rig.memory.upload("gates", found))


def _stack(rig: Rig, weights: Array, dtype: str, gated: bool) -> ExpertStack:
    """Upload experts (n_experts, n, k) as a loader does, gate and up from tensors of their own."""
    _, n, k = weights.shape
    each = 2 if gated else 1
    arrays = {f"{e}.{i}": w[i::each] for e, w in enumerate(weights) for i in range(each)}
    names = [[f"{e}.{i}" for i in range(each)] for e in range(len(weights))]
    return WeightLoader(Arrays(arrays), rig.memory, dtype).experts("w", names, n // each, k)


CHECKS: dict[str, Callable[[Rig], None]] = {
    "moe_topk": check_moe_topk,
    "moe_permute": check_moe_permute,
    **{f"moe_matmul {dtype}": partial(check_moe_matmul, dtype=dtype) for dtype in FORMATS},
    "moe_combine": check_moe_combine,
    "moe_expert_norms": check_moe_expert_norms,
}
