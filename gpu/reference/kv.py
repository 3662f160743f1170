"""Quantised KV caches in NumPy: the twin of shaders/quantize_kv.wgsl, shaders/round_kv.wgsl and
shaders/inverse_hadamard.wgsl, and of what attention reads back.

`gpu.kv.formats` defines the formats. The last dimension of every array is a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.reference.ops import KvArrays, apply_rope

Array = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]

LEVELS = (12, 36, 61, 88, 117, 151, 193, 255)
"""The sixteen best levels (±) for normally distributed numbers (Lloyd 1982; Max 1960), as bytes:
255 is 2.733 standard deviations."""
GREATEST_HALF = 65504.0


def quantize_kv(
    storage: str, x: Array, hadamard: Array, block: int
) -> tuple[npt.NDArray[np.int64], Array]:
    """Return codes and scales of new heads x (…, head_dim), transformed before by `hadamard` of
    `hadamard_matrix`; the identity for no transform."""
    transformed = x @ hadamard.T
    scale = scales(storage, transformed, block)
    return encode(storage, transformed, block, scale), scale


def shift_kv(
    pools: KvArrays,
    moves: Sequence[tuple[int, int, int]],
    rope_cos_sin: Array | None,
    factor: float,
) -> None:
    """Move tokens of `pools`, in place: (source, destination, shift) each, places counted over all
    blocks. Keys are rotated by `shift` positions with rope_cos_sin (context, rotary_dim / 2, 2),
    which was multiplied by `factor`; None: they are copied, as values are."""
    keys, values = pools.keys.copy(), pools.values.copy()
    n_tokens = keys.shape[2]
    for source, destination, shift in moves:
        block, at = divmod(source, n_tokens)
        to_block, to = divmod(destination, n_tokens)
        key = keys[block, :, at]
        if rope_cos_sin is not None and shift:
            rotation = rope_cos_sin[abs(shift)] / factor * (1, np.sign(shift))
            key = apply_rope(key, rotation)
        pools.keys[to_block, :, to] = key
        pools.values[to_block, :, to] = values[block, :, at]


def shift_quantized_kv(
    storage: str, key: Array, rotation: Array, hadamard: Array, block: int
) -> tuple[npt.NDArray[np.int64], Array]:
    """Return codes and scales of keys (…, head_dim), as attention reads them, rotated by `rotation`
    (rotary_dim / 2, 2) of cosine and sine. `hadamard`: the transform of the cache."""
    return quantize_kv(
        storage, apply_rope(inverse_hadamard(key, hadamard), rotation), hadamard, block
    )


def inverse_hadamard(x: Array, hadamard: Array) -> Array:
    """Return heads x (…, head_dim) transformed back."""
    return x @ hadamard


def hadamard_matrix(head_dim: int, size: int) -> Array:
    """Return the orthogonal matrix R (head_dim, head_dim) that transforms heads x to x · Rᵀ.

    For every `size` numbers (a power of two): signs, then the Hadamard matrix over √size. The signs
    are a bent function of the index (Rothaus 1976), because the Hadamard matrix alone would gather
    a constant or alternating vector in one number.
    """
    hadamard = np.ones((1, 1))
    while len(hadamard) < size:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    one = hadamard / np.sqrt(size) * signs(size)
    return np.kron(np.eye(head_dim // size), one)


def signs(n: int) -> Array:
    """Return (n,) of ±1: −1 to the number of i for which bits 2i and 2i + 1 are both set."""
    at = np.arange(n)
    pairs = at & (at >> 1) & 0x55555555
    return np.array([-1.0 if int(p).bit_count() % 2 else 1.0 for p in pairs])


def scales(storage: str, x: Array, block: int) -> Array:
    """Return (…, blocks, 1 or 2), rounded to float16: absmax; for q4 minimum and range."""
    parts = _blocks(x, block)
    if storage == "q4":
        minimum = _half(parts.min(-1))
        return np.stack([minimum, _half(parts.max(-1) - minimum)], axis=-1)
    absmax = np.abs(parts).max(-1)
    if storage == "nl4":
        level = np.array(LEVELS)[_nearest(parts, absmax)]
        absmax = 255 * (np.abs(parts) * level).sum(-1) / (level**2).sum(-1)
    return _half(absmax)[..., None]


def quantised(storage: str, x: Array, block: int, scale: Array | None = None) -> Array:
    """Return x (…, head_dim) as read back from the cache. `scale`: that of `scales` if None."""
    scale = scales(storage, x, block) if scale is None else scale
    codes = encode(storage, x, block, scale)
    return decode(storage, codes, block, scale)


def round_kv(storage: str | None, x: Array, block: int) -> Array:
    """Return keys or values x (…, head_dim) of a cache of floats, rounded to a storage and back;
    None: as they are."""
    return x if storage is None else quantised(storage, x, block)


def encode(storage: str, x: Array, block: int, scale: Array) -> npt.NDArray[np.int64]:
    """Return codes of x (…, head_dim): int8, 4 bits, or a sign bit (8) above a level's index."""
    parts = _blocks(x, block)
    first = scale[..., 0]
    if storage == "q8":
        codes = np.clip(np.rint(_over(_product(127, parts), first)), -127, 127)
    elif storage == "q4":
        above = parts.astype(np.float32) - first.astype(np.float32)[..., None]
        codes = np.clip(np.rint(_over(_product(15, above), scale[..., 1])), 0, 15)
    else:
        codes = _nearest(parts, first) + 8 * (parts < 0)
    return np.asarray(codes.reshape(x.shape), np.int64)


def decode(storage: str, codes: npt.NDArray[np.int64], block: int, scale: Array) -> Array:
    """Return the numbers (…, head_dim) of codes: what attention computes with."""
    parts = _blocks(codes, block)
    first = scale[..., 0, None]
    if storage == "q8":
        numbers = parts * (first / 127)
    elif storage == "q4":
        numbers = parts * (scale[..., 1, None] / 15) + first
    else:
        numbers = np.array(LEVELS)[parts & 7] * np.where(parts & 8, -1, 1) * (first / 255)
    return np.asarray(numbers.reshape(codes.shape), np.float64)


def pack(storage: str, codes: npt.NDArray[np.int64], scale: Array) -> U32:
    """Return the words (…, words) of a head in a KV block, from codes (…, n_tokens, head_dim) and
    scales (…, n_tokens, blocks, 1 or 2)."""
    if storage == "q8":
        data = codes.astype(np.int8).view(np.uint32)
    else:
        nibbles = codes.astype(np.uint8)
        data = (nibbles[..., ::2] | nibbles[..., 1::2] << 4).view(np.uint32)
    halves = scale.astype(np.float16).reshape(*scale.shape[:-2], -1)
    padding = [(0, 0)] * (halves.ndim - 1) + [(0, halves.shape[-1] % 2)]
    words = np.ascontiguousarray(np.pad(halves, padding)).view(np.uint32)
    parts = [part.reshape(*part.shape[:-2], -1) for part in (data, words)]
    return np.concatenate(parts, axis=-1)


def unpack(
    storage: str, words: U32, n_tokens: int, head_dim: int, block: int
) -> tuple[npt.NDArray[np.int64], Array]:
    """Return codes (…, n_tokens, head_dim) and scales of the words (…, words) of `n_tokens` tokens
    of a head."""
    n_data = head_dim * (8 if storage == "q8" else 4) // 32
    data = words[..., : n_tokens * n_data].reshape(*words.shape[:-1], n_tokens, n_data)
    rest = words[..., n_tokens * n_data :].reshape(*words.shape[:-1], n_tokens, -1)
    shape = (*data.shape[:-1], head_dim)
    if storage == "q8":
        codes = np.ascontiguousarray(data).view(np.int8).reshape(shape).astype(np.int64)
    else:
        pairs = np.ascontiguousarray(data).view(np.uint8)
        codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(shape).astype(np.int64)
    halves = np.ascontiguousarray(rest).view(np.float16).astype(np.float64)
    n_blocks, each = head_dim // block, 2 if storage == "q4" else 1
    return codes, halves[..., : n_blocks * each].reshape(*halves.shape[:-1], n_blocks, each)


def _blocks(x: npt.NDArray[Any], block: int) -> npt.NDArray[Any]:
    return x.reshape(*x.shape[:-1], -1, block)


def _nearest(parts: Array, absmax: Array) -> npt.NDArray[np.int64]:
    """Return the index of the level nearest to |parts| (…, block), `absmax` scaled to 255."""
    levels = np.array(LEVELS)
    between = (levels[1:] + levels[:-1]) / 2
    return np.searchsorted(between, _over(_product(255, np.abs(parts)), absmax))


def _product(n: int, x: npt.NDArray[Any]) -> Array:
    """Return n · x with the one rounding of float32 that decides ties on a device."""
    return (np.float32(n) * x.astype(np.float32)).astype(np.float64)


def _over(x: Array, size: Array) -> Array:
    """Return x / size[..., None]; 0 for blocks of zeros."""
    size = size[..., None]
    return np.where(size > 0, x / np.where(size > 0, size, 1.0), 0.0)


def _half(x: Array) -> Array:
    return np.clip(x, -GREATEST_HALF, GREATEST_HALF).astype(np.float16).astype(np.float64)
