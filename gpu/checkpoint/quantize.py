"""Quantisation of blocks of weights to small integers with a scale, or a scale and a minimum.

Scales and minimums are float16. Work is done in slabs that fit in the processor's cache, blocks
along the last axis, so that every sum over a block is a sum of whole vectors. With smaller slabs,
call overhead dominates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SLAB_BLOCKS = 8192
"""Blocks per slab: 1 MiB per intermediate array."""
RANGES = (1.0, 0.88)
"""Shares of a block's range, about its middle, from which the search for a scale starts."""
ROUNDS = 3
"""Refits of scale and minimum per start."""

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
LARGEST, OVERFLOWS = np.float32(65504), np.float32(65520)
SMALLEST_NORMAL, SMALLEST = np.float32(2.0**-14), np.float32(2.0**-24)
"""float16 limits. From 65520 on, numbers round to infinity. Below the smallest normal number,
numbers are multiples of the smallest."""


def quantize_q8(blocks: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], F16]:
    """Quantise so that weight ≈ q · scale, q in -127 … 127, scale = largest |weight| / 127 in
    float16.

    blocks (n, width) → q (n, width), scale (n,). Raises OverflowError for a scale beyond float16.
    """
    q = np.empty(blocks.shape, np.int8)
    scales = np.empty(len(blocks), np.float16)
    for slab in _slabs(len(blocks)):
        w = _columns(blocks[slab])
        # + 0: of a block of zeros some processors make -0.
        largest = np.maximum(w.max(0), -w.min(0)) + np.float32(0)
        scale = _float16(_not_too_small(largest / np.float32(127)))
        w *= _inverse(scale.astype(np.float32))
        n = len(q[slab])
        q[slab], scales[slab] = np.rint(w, out=w).astype(np.int8).T[:n], scale[:n]
    return q, scales


def quantize_q4(blocks: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], F16, F16]:
    """Quantise so that weight ≈ q · scale + minimum, q in 0 … 15, with nearly the least squared
    error.

    Rounds the weights, fits scale and minimum to the integers by least squares, and repeats
    (Lloyd's iteration, restricted to evenly spaced levels), from several starts, and keeps the
    best. llama.cpp's `make_qkx2_quants` fits once from more starts, and weights the errors.

    blocks (n, width) → q (n, width), scale (n,), minimum (n,). Raises OverflowError for weights
    beyond float16.
    """
    q = np.empty(blocks.shape, np.uint8)
    scales, mins = np.empty(len(blocks), np.float16), np.empty(len(blocks), np.float16)
    for slab in _slabs(len(blocks)):
        w = _columns(blocks[slab])
        low, high = w.min(0), w.max(0)
        _float16(np.maximum(high, -low))
        # Relative to the middle, all digits of a weight express its difference to the others.
        middle = (low + high) / 2
        w -= middle
        scale, minimum = _best_scale_min(w, middle, (high - low) / 2)
        integers = _integers(w, scale, minimum, np.empty_like(w)).astype(np.uint8)
        n = len(q[slab])
        q[slab], scales[slab], mins[slab] = integers.T[:n], scale[:n], (minimum + middle)[:n]
    return q, scales, mins


def _best_scale_min(w: F32, middle: F32, half_range: F32) -> tuple[F32, F32]:
    """Return scale and minimum (n,) for w (width, n), which is within ± half_range (n,).

    Scale and middle + minimum are float16 numbers.
    """
    n, w_sum = np.float32(len(w)), w.sum(0)
    q, product = np.empty_like(w), np.empty_like(w)
    least, best = np.full_like(middle, np.inf), np.zeros((2, len(middle)), np.float32)
    for part in RANGES:
        scale = _not_too_small(half_range * np.float32(part / 7.5))
        minimum = half_range * np.float32(-part)
        for _ in range(ROUNDS):
            _integers(w, scale, minimum, q)
            q_sum, q_square = q.sum(0), np.einsum("ij,ij->j", q, q)
            q_w = np.multiply(q, w, out=product).sum(0)
            slope = (n * q_w - q_sum * w_sum) * _inverse(n * q_square - q_sum * q_sum)
            start = (w_sum - slope * q_sum) / n
            scale = _float16(_not_too_small(slope)).astype(np.float32)
            minimum = _nearest_float16(start + middle) - middle
            # Σ (q scale + minimum - w)² - Σ w²
            error = scale * (scale * q_square + 2 * (minimum * q_sum - q_w))
            error += minimum * (n * minimum - 2 * w_sum)
            np.copyto(best, (scale, minimum), where=error < least)
            np.minimum(least, error, out=least)
    return best[0], best[1]


def _integers(w: F32, scale: F32, minimum: F32, out: F32) -> F32:
    """Return the q in 0 … 15 for which q · scale + minimum is nearest to the weights."""
    np.subtract(w, minimum, out=out)
    np.multiply(out, _inverse(scale), out=out)
    np.rint(out, out=out)
    return np.clip(out, 0, 15, out=out)


def _nearest_float16(x: F32) -> F32:
    """Round to float16; numbers slightly beyond its range are clipped."""
    return np.clip(x, -LARGEST, LARGEST).astype(np.float16).astype(np.float32)


def _not_too_small(scale: F32) -> F32:
    """Round subnormal scales up, so that the levels still reach the largest weight."""
    digits = np.ceil(np.minimum(scale, SMALLEST_NORMAL) / SMALLEST)
    return np.maximum(scale, digits * SMALLEST)


def _float16(x: F32) -> F16:
    if (x >= OVERFLOWS).any():  # on the result, NumPy's isinf would take as long as a whole pass
        raise OverflowError(f"a block needs {x.max():g} in float16, which ends at 65504")
    return x.astype(np.float16)


def _inverse(x: F32) -> F32:
    """Return 1 / x, and 0 for 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def _columns(blocks: npt.NDArray[Any]) -> F32:
    """Return blocks (n, width) transposed to (width, n), with at least two columns: NumPy sums a
    single column in another order, so a block's result would depend on the number of blocks."""
    n, width = blocks.shape
    w = np.zeros((width, max(2, n)), np.float32)
    w[:, :n] = blocks.T
    return w


def _slabs(n: int) -> list[slice]:
    return [slice(start, start + SLAB_BLOCKS) for start in range(0, n, SLAB_BLOCKS)]
