"""Rows rounded to bytes in double precision: what gpu/shaders/to_bytes.wgsl leaves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BLOCK = 32
HALF = 16
"""Numbers that share a scale."""


def halves(x: Array, *, even_odd: bool) -> Array:
    """(…, k) → (…, blocks, 2, 16), k padded with zeros to blocks: the first 16 numbers of each and
    the others or, `even_odd`, the even ones and the odd ones."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % BLOCK)])
    if even_odd:
        return padded.reshape(*x.shape[:-1], -1, HALF, 2).swapaxes(-1, -2)
    return padded.reshape(*x.shape[:-1], -1, 2, HALF)


def in_order(parts: Array, k: int, *, even_odd: bool) -> Array:
    """The inverse of `halves`."""
    rows = parts.swapaxes(-1, -2) if even_odd else parts
    return rows.reshape(*parts.shape[:-3], -1)[..., :k]


def scales(parts: Array) -> Array:
    """(…, 2, 16) → (…, 2): the largest |x| / 127. number = byte · scale, as in llama.cpp's q8_1, of
    which blocks of 32 share one in float16."""
    found: Array = np.abs(parts).max(-1) / 127
    return found


def to_bytes(x: Array, *, even_odd: bool) -> tuple[Array, Array]:
    """(…, k) → the nearest whole numbers, of two as near the even one, (…, blocks, 2, 16), and
    their scales (…, blocks, 2)."""
    parts = halves(x, even_odd=even_odd)
    scale = scales(parts)
    return np.rint(parts / np.where(scale > 0, scale, 1)[..., None]), scale


def as_rounded(x: Array, *, even_odd: bool) -> Array:
    """(…, k): the numbers that products of bytes compute with."""
    whole, scale = to_bytes(x, even_odd=even_odd)
    return in_order(whole * scale[..., None], x.shape[-1], even_odd=even_odd)
