"""int8 activations in double precision: the twin of shaders/quantize_activations.wgsl."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BLOCK = 32
HALF = 16
"""Numbers with one scale."""


def halves(x: Array, *, even_odd: bool) -> Array:
    """Return x (…, k) as (…, blocks, 2, 16), padded with zeros to whole blocks: the first 16
    numbers of each block and the rest or, with `even_odd`, the even ones and the odd ones."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % BLOCK)])
    if even_odd:
        return padded.reshape(*x.shape[:-1], -1, HALF, 2).swapaxes(-1, -2)
    return padded.reshape(*x.shape[:-1], -1, 2, HALF)


def in_order(parts: Array, k: int, *, even_odd: bool) -> Array:
    """Invert `halves`: (…, blocks, 2, 16) to (…, k)."""
    rows = parts.swapaxes(-1, -2) if even_odd else parts
    return rows.reshape(*parts.shape[:-3], -1)[..., :k]


def scales(parts: Array) -> Array:
    """Return the largest |x| / 127 of (…, 2, 16): (…, 2). number = byte · scale, as in llama.cpp's
    q8_1, which has one float16 scale per 32."""
    found: Array = np.abs(parts).max(-1) / 127
    return found


def quantize_activations(x: Array, *, even_odd: bool) -> tuple[Array, Array]:
    """Return the nearest integers (…, blocks, 2, 16), ties to even, and the scales (…, blocks, 2)
    of x (…, k)."""
    parts = halves(x, even_odd=even_odd)
    scale = scales(parts)
    return np.rint(parts / np.where(scale > 0, scale, 1)[..., None]), scale


def round_trip(x: Array, *, even_odd: bool) -> Array:
    """Return x (…, k) as int8 matmuls compute with it."""
    whole, scale = quantize_activations(x, even_odd=even_odd)
    return in_order(whole * scale[..., None], x.shape[-1], even_odd=even_odd)
