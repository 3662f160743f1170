"""Checks of ops that work on rows: norms, positions, interventions, statistics, LoRA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from gpu import ops
from gpu.checks.rig import (
    ROUNDING,
    Array,
    Rig,
    check_each,
    f64,
    greedy,
    normal,
    op_config,
    plain_rows,
    rows_at,
)
from gpu.reference import ops as reference
from gpu.webgpu.buffers import Tensor, padded

EPS = 1e-5
SLOTS = [0, 3, 1, 0, 3]
POSITIONS = [0, 7, 2, 5, 6]
N_SLOTS = 4


# ---- norm ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NormCase:
    """`offset`: of x, in its own deviations."""

    width: int
    rows: int = 3
    bucket: int = 4
    centred: bool = False
    bias: bool = False
    residual: bool = False
    gather: bool = False
    scale: float = 1.0
    offset: float = 0.0


def check_norm(rig: Rig, case: NormCase) -> None:
    """Compare a norm, with what is added to it, with its twin."""
    rng, width = np.random.default_rng(case.width), case.width
    x = (normal(rng, case.rows, width) + np.float32(case.offset)) * np.float32(case.scale)
    gain, bias = rng.uniform(0.5, 1.5, width).astype(np.float32), normal(rng, width)
    gathered = rng.permutation(case.rows)[:2] if case.gather else None
    n_out = case.rows if gathered is None else len(gathered)
    before = normal(rng, n_out, width)
    samples = [] if gathered is None else [greedy(int(row)) for row in gathered]
    batch, y = (
        rig.batch(plain_rows(case.rows), samples, bucket=case.bucket),
        rig.output(n_out, width),
    )
    of = ops.Norm(
        rig.memory.upload("gain", gain), EPS, case.centred,
        rig.memory.upload("bias", bias) if case.bias else None,
    )  # fmt: skip
    residual = rig.input("residual", before) if case.residual else None
    rig.run_op(
        ops.norm, batch, "norm", of, width, rig.input("x", x), y.tensor, residual=residual,
        gather=case.gather,
    )  # fmt: skip
    x_, gain_, bias_, before_ = f64(x, gain, bias * case.bias, before * case.residual)
    normed = reference.norm(x_, gain_, EPS, centred=case.centred, rows=gathered)
    # x - mean loses as many roundings as the mean is deviations away from 0.
    off = (16 + np.sqrt(width) / 2) * (np.abs(normed) + abs(case.offset) * case.centred * 2)
    bound = ROUNDING * (off + 2 * np.abs(bias_) + 2 * np.abs(before_))
    rig.compare("norm", case, y.read(), normed + bias_ + before_, bound)


def check_position_embedding(rig: Rig, width: int) -> None:
    rng, positions = np.random.default_rng(width), [3, 0, 49, 17, 17]
    x, table = normal(rng, 5, width), normal(rng, 50, width)
    out, places = rig.in_place(x), rig.memory.upload("table", _padded(table))
    batch = rig.batch(rows_at(positions), bucket=8)
    rig.run_op(ops.position_embedding, batch, "positions", places, out.tensor)
    want = reference.position_embedding(f64(x), f64(table), np.array(positions))
    rig.compare("position_embedding", width, out.read(), want, ROUNDING * np.abs(want))


# ---- interventions ---------------------------------------------------------------------------


def check_scale_heads(rig: Rig, n_heads: int, head_dim: int) -> None:
    """Compare with the twin: a factor of 0 hides even NaN, and one of 1 changes no bit."""
    rng = np.random.default_rng(n_heads)
    x, factors = normal(rng, len(SLOTS), n_heads * head_dim), normal(rng, N_SLOTS, n_heads)
    factors[0, 0], factors[3] = 0, 1
    off = x.copy()
    off[0, :head_dim] = np.nan
    out, batch = rig.in_place(off), _batch(rig)
    config = op_config(n_heads=n_heads, head_dim=head_dim)
    rig.run_op(ops.scale_heads, batch, "heads", config, _table(rig, factors), out.tensor)
    x[0, :head_dim] = 0
    got, case = out.read(), (n_heads, head_dim)
    parts = x.reshape(-1, n_heads, head_dim)
    parts, factors = f64(parts, factors)
    want = reference.scale_heads(parts, factors, np.array(SLOTS)).reshape(x.shape)
    rig.compare("scale_heads", case, got, want, 2 * ROUNDING * np.abs(want))
    _expect_bits(rig, f"scale_heads, {case}: a factor of 1", got, x, np.array(SLOTS) == 3)


def check_scale_residual(rig: Rig, k: int, sublayer: str) -> None:
    """Compare with the twin: a factor of 0 hides even infinity, and one of 1 adds exactly."""
    rng, index = np.random.default_rng(k), ops.SUBLAYERS.index(sublayer)
    before, update = normal(rng, len(SLOTS), k), normal(rng, len(SLOTS), k)
    factors = normal(rng, N_SLOTS, len(ops.SUBLAYERS))
    factors[0], factors[1] = 1, 0
    off, on = np.array(SLOTS) == 1, np.array(SLOTS) == 0
    hidden = np.where(off[:, None], np.float32(np.inf), update)
    out, batch = rig.output(len(SLOTS), k), _batch(rig)
    given = rig.input("before", before), rig.input("update", hidden), _table(rig, factors)
    rig.run_op(ops.scale_residual, batch, "x", sublayer, *given, out.tensor)
    update[off] = 0
    got, case = out.read(), (k, sublayer)
    before_, update_, factor = f64(before, update, factors[:, index])
    want = reference.scale_residual(before_, update_, factor, np.array(SLOTS))
    size = np.abs(before) + np.abs(factors[SLOTS, index][:, None] * update)
    rig.compare("scale_residual", case, got, want, 3 * ROUNDING * size)
    _expect_bits(rig, f"scale_residual, {case}: a factor of 0", got, before, off)
    _expect_bits(rig, f"scale_residual, {case}: a factor of 1", got, before + update, on)


def check_steer(rig: Rig, k: int) -> None:
    """Compare with the twin: a replaced row hides even NaN, and zeros of a vector change no bit."""
    rng = np.random.default_rng(k)
    x, vectors = normal(rng, len(SLOTS), k), normal(rng, N_SLOTS, k)
    vectors[1], vectors[3, ::2], x[2] = 0, 0, -0.0
    keeps = np.array([[0], [1], [1], [1]], np.float32)
    replaced = np.array(SLOTS) == 0
    x[replaced] = np.nan
    out, batch = rig.in_place(x), _batch(rig)
    given = rig.memory.upload("vectors", _padded(vectors)), rig.memory.upload("keeps", keeps)
    rig.run_op(ops.steer, batch, "steer", *given, out.tensor)
    got = out.read()
    x_, vectors_, keeps_ = f64(x, vectors, keeps[:, 0])
    want = reference.steer(x_, vectors_, keeps_, np.array(SLOTS))
    rig.compare("steer", k, got, want, 2 * ROUNDING * np.abs(want))
    _expect_bits(rig, f"steer, {k}: a replaced row", got, vectors[SLOTS], replaced)
    _expect_bits(rig, f"steer, {k}: zeros of a vector", got, x, want == x)


def _expect_bits(rig: Rig, what: str, got: Array, want: Array, where: Array) -> None:
    """Raise unless there are such rows or numbers, and got has the bits of want there."""
    same = np.array_equal(got[where].view("u4"), want.astype(np.float32)[where].view("u4"))
    rig.expect(f"{what} is not exact", bool(where.any()) and same)


# ---- layer_stats -----------------------------------------------------------------------------


def check_layer_stats(rig: Rig, n_layers: int, k: int) -> None:
    """Compare lengths and cosines with the twin; the error of cosines is absolute."""
    rng, n_rows = np.random.default_rng(1000 * n_layers + k), 3
    states, mid = normal(rng, n_layers + 1, n_rows, k), normal(rng, n_layers, n_rows, k)
    got, want = layer_stats(rig, states, mid), reference.layer_stats(*f64(states, mid))
    is_cosine = np.array([False] + [False, False, False, True, True] * n_layers)
    bound = (8 + 4 * np.sqrt(k)) * ROUNDING * np.where(is_cosine, 2.0, want)
    rig.compare("layer_stats", f"{n_layers} layers of {k}", got, want, bound)


def layer_stats(rig: Rig, states: Array, mid: Array) -> Array:
    """Return the device's statistics of states (n_layers + 1, n_rows, k) and of those between
    attention and MLP (n_layers, n_rows, k)."""
    n_layers, n_rows, k = mid.shape
    config, n, bucket = op_config(n_layers=n_layers, hidden_size=k), 1 + 5 * n_layers, n_rows + 1
    stats, batch = rig.output(n_rows, n, n), rig.batch(plain_rows(n_rows), bucket=bucket)
    given = _stacked(rig, states, bucket), _stacked(rig, mid, bucket)
    rig.run_op(ops.layer_stats, batch, "stats", config, *given, stats.tensor)
    return stats.read()


# ---- lora_expand -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoraCase:
    """`n`: outputs; `ranks`: of each adapter."""

    n: int
    n_modules: int
    ranks: tuple[int, ...]
    bias: bool = True


def check_lora_expand(rig: Rig, case: LoraCase) -> None:
    """Compare with the twin. Adapters of strength 0 are not read, and change no bit."""
    n, rng, ends = case.n, np.random.default_rng(case.n), np.cumsum(case.ranks)
    strengths, b = normal(rng, N_SLOTS, len(ends)), normal(rng, int(ends[-1]), n)
    strengths[1], strengths[3, 0] = 0, 0
    first = (rng.integers(0, case.n_modules, n) * ends[-1]).astype(np.uint32)
    x = normal(rng, len(SLOTS), case.n_modules * int(ends[-1]))
    bias = normal(rng, n) if case.bias else np.zeros(n, np.float32)
    off = np.array(SLOTS) == 1
    unread = np.where(off[:, None], np.float32(np.nan), x)
    upload, out, batch = rig.memory.upload, rig.output(len(SLOTS), n, n), _batch(rig)
    tensors = (
        rig.input("x", unread), upload("b", b), upload("first", first),
        upload("ends", ends.astype(np.uint32)), upload("strengths", strengths),
        upload("bias", bias) if case.bias else None,
    )  # fmt: skip
    rig.run_op(ops.lora_expand, batch, "expand", *tensors, out.tensor)

    def twin(x: Array, b: Array, strengths: Array, bias: Array) -> Array:
        places = first.astype(int), ends, strengths, np.array(SLOTS)
        return reference.lora_expand(x, b, *places, bias)

    doubles, got = f64(x, b, strengths, bias), out.read()
    size = twin(*(np.abs(a) for a in doubles))
    bound = (max(case.ranks) + 2 * len(ends) + 2) * ROUNDING * size
    rig.compare("lora_expand", case, got, twin(*doubles), bound)
    kept = np.broadcast_to(bias, got.shape)
    _expect_bits(rig, f"lora_expand, {case}: a strength of 0", got, kept, off)


def _batch(rig: Rig) -> ops.Batch:
    return rig.batch(rows_at(POSITIONS, SLOTS), bucket=8)


def _table(rig: Rig, rows: Array) -> Tensor:
    return rig.memory.upload("table", np.ascontiguousarray(rows, np.float32))


def _padded(rows: Array) -> Array:
    """Return rows (n, width) with zeros up to whole blocks."""
    return np.pad(rows, ((0, 0), (0, padded(rows.shape[1]) - rows.shape[1])))


def _stacked(rig: Rig, states: Array, bucket: int) -> Tensor:
    """Upload states one after the other, each of `bucket` padded rows and a gap; NaN where none
    is."""
    n, n_rows, k = states.shape
    whole = np.full((n, -(-bucket * padded(k) // 64) * 64), np.nan, np.float32)
    rows = np.zeros((n, n_rows, padded(k)), np.float32)
    rows[:, :, :k] = states
    whole[:, : rows[0].size] = rows.reshape(n, -1)
    return rig.memory.upload("states", whole)


# ---- of a report -----------------------------------------------------------------------------

WIDTHS = (1, 13, 100, 576)

CHECKS: dict[str, Callable[[Rig], None]] = {
    "norm": check_each(
        check_norm,
        *(
            NormCase(width, rows=5, bucket=8, centred=centred, bias=centred, residual=True)
            for width in (7, 65, 577)
            for centred in (False, True)
        ),
    ),
    "position_embedding": check_each(check_position_embedding, 1, 33, 300),
    "scale_heads": check_each(check_scale_heads, (1, 4), (5, 12), (9, 64)),
    "scale_residual": check_each(check_scale_residual, *product(WIDTHS, ops.SUBLAYERS)),
    "steer": check_each(check_steer, *WIDTHS),
    "layer_stats": check_each(check_layer_stats, (1, 13), (5, 260)),
    "lora_expand": check_each(
        check_lora_expand,
        LoraCase(4, 1, (1,)),
        LoraCase(20, 2, (3, 0, 5)),
        LoraCase(576, 1, (2, 2, 64, 7)),
    ),
}
