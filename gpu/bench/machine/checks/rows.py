"""Checks of ops that work on rows: norms, positions, interventions, statistics, LoRA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gpu import ops
from gpu.bench.machine.rig import (
    ROUNDING,
    Array,
    Output,
    Rig,
    f64,
    normal,
    op_config,
    plain_rows,
    recording,
    rows_at,
)
from gpu.reference import ops as reference
from gpu.webgpu.buffers import Tensor, padded

EPS = 1e-5
SLOTS = [0, 3, 1, 0, 3]
POSITIONS = [0, 7, 2, 5, 6]
N_SLOTS = 4
WIDTHS = (1, 13, 100, 576)


def check_norm(rig: Rig) -> None:
    for width in (7, 65, 577):
        for centred in (False, True):
            rng = np.random.default_rng(width)
            x, before = normal(rng, 5, width), normal(rng, 5, width)
            gain = rng.uniform(0.5, 1.5, width).astype(np.float32)
            bias = normal(rng, width) * centred
            upload = rig.memory.upload
            of = ops.Norm(upload("g", gain), EPS, centred, upload("b", bias) if centred else None)
            y, batch = rig.output(5, width), rig.batch(plain_rows(5), bucket=8)
            given, residual = rig.input("x", x), rig.input("residual", before)
            rig.run(
                recording(
                    ops.norm, batch, "norm", of, width, given, y.tensor, residual=residual
                )
            )  # fmt: skip
            x_, gain_, bias_, before_ = f64(x, gain, bias, before)
            normed = reference.norm(x_, gain_, EPS, centred=centred)
            off = (16 + np.sqrt(width) / 2) * (np.abs(normed) + centred)
            bound = ROUNDING * (off + 2 * np.abs(bias_) + 2 * np.abs(before_))
            rig.compare(f"{width}, centred {centred}", y.read(), normed + bias_ + before_, bound)


def check_position_embedding(rig: Rig) -> None:
    for width in (1, 33, 300):
        rng = np.random.default_rng(width)
        positions, x, table = [3, 0, 49, 17, 17], normal(rng, 5, width), normal(rng, 50, width)
        out = _in_place(rig, x)
        whole = np.zeros((50, padded(width)), np.float32)
        whole[:, :width] = table
        batch, places = rig.batch(rows_at(positions), bucket=8), rig.memory.upload("table", whole)
        rig.run(recording(ops.position_embedding, batch, "positions", places, out.tensor))
        want = reference.position_embedding(f64(x), f64(table), np.array(positions))
        rig.compare(f"{width}", out.read(), want, ROUNDING * np.abs(want))


def check_scale_heads(rig: Rig) -> None:
    for n_heads, head_dim in ((1, 4), (5, 12), (9, 64)):
        rng = np.random.default_rng(n_heads)
        x, factors = normal(rng, len(SLOTS), n_heads * head_dim), normal(rng, N_SLOTS, n_heads)
        factors[0, 0] = 0
        out, batch = _in_place(rig, x), _batch(rig)
        config, table = op_config(n_heads=n_heads, head_dim=head_dim), _table(rig, factors)
        rig.run(recording(ops.scale_heads, batch, "heads", config, table, out.tensor))
        parts = x.reshape(-1, n_heads, head_dim)
        want = reference.scale_heads(f64(parts), f64(factors), np.array(SLOTS)).reshape(x.shape)
        rig.compare(f"{n_heads}x{head_dim}", out.read(), want, 2 * ROUNDING * np.abs(want))


def check_scale_residual(rig: Rig) -> None:
    for k in WIDTHS:
        for i, sublayer in enumerate(ops.SUBLAYERS):
            rng = np.random.default_rng(k)
            before, update = normal(rng, len(SLOTS), k), normal(rng, len(SLOTS), k)
            factors = normal(rng, N_SLOTS, len(ops.SUBLAYERS))
            factors[1] = 0
            out, batch = rig.output(len(SLOTS), k), _batch(rig)
            given = rig.input("before", before), rig.input("update", update), _table(rig, factors)
            rig.run(recording(ops.scale_residual, batch, "x", sublayer, *given, out.tensor))
            before_, update_, factor = f64(before, update, factors[:, i])
            want = reference.scale_residual(before_, update_, factor, np.array(SLOTS))
            size = np.abs(before) + np.abs(factors[SLOTS, i][:, None] * update)
            rig.compare(f"{sublayer}, {k}", out.read(), want, 3 * ROUNDING * size)


def check_steer(rig: Rig) -> None:
    for k in WIDTHS:
        rng = np.random.default_rng(k)
        x, vectors = normal(rng, len(SLOTS), k), normal(rng, N_SLOTS, k)
        keeps = np.array([[0], [1], [1], [1]], np.float32)
        whole = np.zeros((N_SLOTS, padded(k)), np.float32)
        whole[:, :k] = vectors
        out, batch = _in_place(rig, x), _batch(rig)
        given = rig.memory.upload("vectors", whole), rig.memory.upload("keeps", keeps)
        rig.run(recording(ops.steer, batch, "steer", *given, out.tensor))
        x_, vectors_, keeps_ = f64(x, vectors, keeps[:, 0])
        want = reference.steer(x_, vectors_, keeps_, np.array(SLOTS))
        rig.compare(f"{k}", out.read(), want, 2 * ROUNDING * np.abs(want))


def check_layer_stats(rig: Rig) -> None:
    for n_layers, k in ((1, 13), (5, 260)):
        rng = np.random.default_rng(k)
        states, mid = normal(rng, n_layers + 1, 3, k), normal(rng, n_layers, 3, k)
        config, n = op_config(n_layers=n_layers, hidden_size=k), 1 + 5 * n_layers
        stats, batch = rig.output(3, n, n), rig.batch(plain_rows(3), bucket=4)
        given = _stacked(rig, states, 4), _stacked(rig, mid, 4)
        rig.run(recording(ops.layer_stats, batch, "stats", config, *given, stats.tensor))
        want = reference.layer_stats(*f64(states, mid))
        is_cosine = np.array([False] + [False, False, False, True, True] * n_layers)
        bound = (8 + 4 * np.sqrt(k)) * ROUNDING * np.where(is_cosine, 2.0, want)
        rig.compare(f"{n_layers} layers of {k}", stats.read(), want, bound)


def check_lora_expand(rig: Rig) -> None:
    for n, n_modules, ranks in ((4, 1, [1]), (20, 2, [3, 0, 5]), (576, 1, [2, 2, 64, 7])):
        rng, ends = np.random.default_rng(n), np.cumsum(ranks)
        strengths, b = normal(rng, N_SLOTS, len(ranks)), normal(rng, int(ends[-1]), n)
        first = (rng.integers(0, n_modules, n) * ends[-1]).astype(np.uint32)
        x, bias = normal(rng, len(SLOTS), n_modules * int(ends[-1])), normal(rng, n)
        upload, out, batch = rig.memory.upload, rig.output(len(SLOTS), n, n), _batch(rig)
        tensors = (
            rig.input("x", x), upload("b", b), upload("first", first),
            upload("ends", ends.astype(np.uint32)), upload("strengths", strengths),
            upload("bias", bias),
        )  # fmt: skip
        rig.run(recording(ops.lora_expand, batch, "expand", *tensors, out.tensor))

        def twin(x: Array, b: Array, strengths: Array, bias: Array) -> Array:
            places = first.astype(int), ends, strengths, np.array(SLOTS)  # noqa: B023
            return reference.lora_expand(x, b, *places, bias)

        doubles = f64(x, b, strengths, bias)
        size = twin(*(np.abs(a) for a in doubles))
        bound = (max(ranks) + 2 * len(ranks) + 2) * ROUNDING * size
        rig.compare(f"{n}, ranks {ranks}", out.read(), twin(*doubles), bound)


def _batch(rig: Rig) -> ops.Batch:
    return rig.batch(rows_at(POSITIONS, SLOTS), bucket=8)


def _table(rig: Rig, rows: Array) -> Tensor:
    return rig.memory.upload("table", np.ascontiguousarray(rows, np.float32))


def _in_place(rig: Rig, x: Array) -> Output:
    """Return an input that is also the result; nothing around it may change."""
    out = rig.output(*x.shape)
    start = out.before.copy()
    start[: len(x), : x.shape[1]] = x
    rig.memory.write(out.tensor, start)
    return replace(out, before=start)


def _stacked(rig: Rig, states: Array, bucket: int) -> Tensor:
    """Upload states one after the other, each of `bucket` padded rows and a gap; NaN where none
    is."""
    n, n_rows, k = states.shape
    whole = np.full((n, -(-bucket * padded(k) // 64) * 64), np.nan, np.float32)
    rows = np.zeros((n, n_rows, padded(k)), np.float32)
    rows[:, :, :k] = states
    whole[:, : rows[0].size] = rows.reshape(n, -1)
    return rig.memory.upload("states", whole)


CHECKS: dict[str, Callable[[Rig], None]] = {
    "norm": check_norm,
    "position_embedding": check_position_embedding,
    "scale_heads": check_scale_heads,
    "scale_residual": check_scale_residual,
    "steer": check_steer,
    "layer_stats": check_layer_stats,
    "lora_expand": check_lora_expand,
}
