"""Choosing few numbers for many: blocks of weights as small integers on a grid of their own.

Each block gets a grid (a scale, or a scale and a minimum, in float16) and an integer for each
weight. Work is done in slabs that stay in the processor's cache, blocks along the last axis, so
that every sum over a block is a sum of whole vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SLAB_BLOCKS = 2048
"""Blocks worked on at a time: 256 KiB for each intermediate array."""
RANGES = (1.0, 0.94, 0.88, 0.8)
"""Parts of a block's range, about its middle, from which the search for a grid starts."""
ROUNDS = 2
"""How often a grid is refitted to the integers it gave."""

F16 = npt.NDArray[np.float16]
F32 = npt.NDArray[np.float32]
SMALLEST_NORMAL, SMALLEST = np.float32(2.0**-14), np.float32(2.0**-24)
"""Of float16; below the first, numbers are whole multiples of the second."""


def to_bytes(blocks: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], F16]:
    """weight ≈ q · scale, q in -127 … 127, scale the largest weight / 127 in float16.

    blocks (n, width) → q (n, width), scale (n,). Raises OverflowError for a scale beyond float16.
    """
    q = np.empty(blocks.shape, np.int8)
    scales = np.empty(len(blocks), np.float16)
    for slab in _slabs(len(blocks)):
        w = np.ascontiguousarray(blocks[slab].T, np.float32)
        scale = np.maximum(w.max(0), -w.min(0)) / np.float32(127)
        scale = _not_too_small(scale)
        scales[slab] = _float16(scale)
        rounded = np.rint(w * _inverse(scales[slab].astype(np.float32)))
        q[slab] = rounded.astype(np.int8).T
    return q, scales


def to_nibbles(blocks: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], F16, F16]:
    """weight ≈ q · scale + minimum, q in 0 … 15, with about the least squared error.

    Lloyd's iteration on an even grid: round the weights to it, fit scale and minimum to the
    integers by least squares, and again, from several starts; the best is kept (the search is that
    of llama.cpp's `make_qkx2_quants`, without its weighting).

    blocks (n, width) → q (n, width), scale (n,), minimum (n,). Raises OverflowError for a scale or
    minimum beyond float16.
    """
    q = np.empty(blocks.shape, np.uint8)
    scales, minima = np.empty(len(blocks), np.float16), np.empty(len(blocks), np.float16)
    for slab in _slabs(len(blocks)):
        w = np.ascontiguousarray(blocks[slab].T, np.float32)
        scale, minimum = _best_grid(w)
        scales[slab], minima[slab] = scale, minimum
        q[slab] = _round_to(w, scale, minimum, np.empty_like(w)).astype(np.uint8).T
    return q, scales, minima


def _best_grid(w: F32) -> tuple[F32, F32]:
    """Scale and minimum (n,), both float16 numbers, for blocks w (width, n)."""
    low, high = w.min(0), w.max(0)
    w_sum = w.sum(0)
    q, product = np.empty_like(w), np.empty_like(w)
    best = _rounded((high - low) / np.float32(15), low)
    least = np.full(w.shape[1], np.inf, np.float32)
    for part in RANGES:
        cut = (high - low) * np.float32((1 - part) / 2)
        scale, minimum = _rounded((high - low) * np.float32(part / 15), low + cut)
        for _ in range(ROUNDS):
            _round_to(w, scale, minimum, q)
            q_sum, q_square = q.sum(0), np.multiply(q, q, out=product).sum(0)
            q_w = np.multiply(q, w, out=product).sum(0)
            n = np.float32(len(w))
            spread = n * q_square - q_sum * q_sum
            fitted = (n * q_w - q_sum * w_sum) * _inverse(spread)
            scale, minimum = _rounded(fitted, (w_sum - fitted * q_sum) / n)
            # Σ (w - scale q - minimum)² - Σ w²
            error = scale * (scale * q_square - 2 * q_w + 2 * minimum * q_sum)
            error += minimum * (n * minimum - 2 * w_sum)
            better = error < least
            least = np.where(better, error, least)
            best = np.where(better, scale, best[0]), np.where(better, minimum, best[1])
    return best


def _round_to(w: F32, scale: F32, minimum: F32, out: F32) -> F32:
    """The integers 0 … 15 nearest to the weights."""
    np.subtract(w, minimum, out=out)
    np.multiply(out, _inverse(scale), out=out)
    np.rint(out, out=out)
    np.maximum(out, 0, out=out)
    return np.minimum(out, 15, out=out)


def _rounded(scale: F32, minimum: F32) -> tuple[F32, F32]:
    """Both as float16 numbers."""
    return (
        _float16(_not_too_small(scale)).astype(np.float32),
        _float16(minimum).astype(np.float32),
    )


def _not_too_small(scale: F32) -> F32:
    """Scales that float16 holds with few digits or none, rounded up: the grid still reaches the
    largest weight."""
    return np.where(scale < SMALLEST_NORMAL, np.ceil(scale / SMALLEST) * SMALLEST, scale)


def _float16(x: F32) -> F16:
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    if np.isinf(half).any():
        raise OverflowError(f"a block needs a scale of {np.abs(x).max():g}, float16 ends at 65504")
    return half


def _inverse(x: F32) -> F32:
    """1 / x, and 0 for 0."""
    return np.divide(1, x, out=np.zeros_like(x), where=x != 0)


def _slabs(n: int) -> list[slice]:
    return [slice(start, start + SLAB_BLOCKS) for start in range(0, n, SLAB_BLOCKS)]
