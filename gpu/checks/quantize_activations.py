"""Checks of int8 activations, and of a norm with a dispatch of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np

from gpu import ops
from gpu.checks.rig import ROUNDING, Array, Rig, check_each, f64, normal, plain_rows
from gpu.ops.quantize_activations import BLOCK_WORDS, EVEN_ODD, quantized_row_words
from gpu.reference import quantize_activations as reference
from gpu.reference.ops import rms_norm, rms_norm_split

EPS = 1e-5


def quantize(
    rig: Rig, x: Array, gain: Array | None = None, *, even_odd: bool = False, each: int = 1
) -> Array:
    """Return the device's quantised rows, as words."""
    n_rows, k = x.shape
    batch = rig.batch(plain_rows(n_rows // each), bucket=n_rows // each)
    n_words = quantized_row_words(k)
    given, y = rig.input("x", x), rig.output(n_rows, n_words, n_words)
    norm = None if gain is None else ops.Norm(rig.gain(gain), EPS)
    rig.run_op(
        ops.quantize_activations, batch, "int8", given, k, y.tensor, norm=norm,
        even_odd=even_odd, each=each,
    )  # fmt: skip
    return y.read().view(np.uint32)


def unpack_quantized_rows(words: Array) -> tuple[Array, Array, Array]:
    """Decode rows of gpu/shaders/quantize_activations.wgsl: bytes (n_rows, blocks, 2, 16), scales
    (n_rows, blocks, 2) and sums (n_rows, blocks), float64."""
    blocks = np.ascontiguousarray(words).reshape(len(words), -1, BLOCK_WORDS)
    q = np.ascontiguousarray(blocks[..., :8]).view(np.int8)
    rest = np.ascontiguousarray(blocks[..., 8:]).view(np.float32).astype(np.float64)
    return q.astype(np.float64).reshape(*q.shape[:2], 2, 16), rest[..., :2], rest[..., 2]


def quantized_numbers(rig: Rig, dtype: str, n_rows: int, k: int) -> Array:
    """Return the int8 rows of the last matmul with a `dtype` weight as numbers, (n_rows, k)."""
    assert rig.quantized_rows is not None
    n_words = quantized_row_words(k)
    words = rig.memory.read(rig.quantized_rows)[: n_rows * n_words].reshape(n_rows, n_words)
    q, scales, _ = unpack_quantized_rows(words)
    numbers: Array = reference.in_order(q * scales[..., None], k, even_odd=EVEN_ODD[dtype])
    return numbers


def check_quantize_activations(rig: Rig, rows: tuple[int, float, bool], even_odd: bool) -> None:
    """Compare int8 rows with what they were rounded from. `rows`: their width and scale, and
    whether they are normalised."""
    k, scale, has_norm = rows
    rng = np.random.default_rng(k)
    x = normal(rng, 6, k) * np.float32(scale)
    x[1, : k // 2] = 0  # halves of zeros
    gain = rng.uniform(0.5, 1.5, k).astype(np.float32)
    words = quantize(rig, x, gain if has_norm else None, even_odd=even_odd)
    got, scales, sums = unpack_quantized_rows(words)
    exact = rms_norm(f64(x), f64(gain), EPS) if has_norm else f64(x)
    want = reference.halves(exact, even_odd=even_odd)
    right = reference.scales(want)
    off = (8 + np.sqrt(k) * has_norm) * ROUNDING
    rig.compare("quantize_activations.scales", k, scales, right, off * right)
    near = want / np.where(right > 0, right, 1)[..., None]
    rig.compare("quantize_activations", k, got, near, 0.5 + 127 * 8 * ROUNDING)
    parts = scales * got.sum(-1)
    bound = 4 * ROUNDING * np.abs(parts).sum(-1)
    rig.compare("quantize_activations.sums", k, sums, parts.sum(-1), bound)


def check_rms_norm_split(rig: Rig, k: int) -> None:
    """Compare rows times their gain, and their scales."""
    n_rows, bucket = 5, 8
    rng = np.random.default_rng(k)
    x, gain = normal(rng, n_rows, k) * 30, rng.uniform(0.5, 1.5, k).astype(np.float32)
    x[1] = 0
    rows, scales = rig.output(n_rows, k), rig.output(1, n_rows, bucket)
    parts = ops.RmsNormSplit(rows.tensor, replace(scales.tensor, shape=(bucket,)))
    batch, given = rig.batch(plain_rows(n_rows), bucket=bucket), rig.input("x", x)
    rig.run_op(ops.rms_norm_split, batch, "norm", given, k, ops.Norm(rig.gain(gain), EPS), parts)
    want, want_scales = rms_norm_split(f64(x), f64(gain), EPS)
    rig.compare("rms_norm_split.rows", k, rows.read(), want, ROUNDING * np.abs(want))
    bound = (8 + np.sqrt(k)) * ROUNDING * want_scales
    rig.compare("rms_norm_split.scales", k, scales.read()[0], want_scales, bound)


# ---- of a report -----------------------------------------------------------------------------

CHECKS: dict[str, Callable[[Rig], None]] = {
    "quantize_activations": check_each(
        check_quantize_activations,
        *product(
            ((1, 1.0, True), (64, 1e4, False), (97, 1.0, False), (500, 30.0, True)), (False, True)
        ),
    ),
    "rms_norm_split": check_each(check_rms_norm_split, 1, 33, 576),
}
