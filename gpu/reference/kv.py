"""What a quantised KV cache makes of keys and values, in NumPy: the twin of
shaders/cache_heads.wgsl and shaders/unrotate_heads.wgsl, and of what attention reads back.

`gpu.kv.formats` says how numbers are stored. Heads are the last dimension of every array here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]

LEVELS = (12, 36, 61, 88, 117, 151, 193, 255)
"""The sixteen levels that are best for normal numbers (Lloyd 1982; Max 1960), ±, as bytes: 255 is
2.733 standard deviations."""
GREATEST_HALF = 65504.0


def cache_heads(
    storage: str, x: Array, turn: Array, block: int
) -> tuple[npt.NDArray[np.int64], Array]:
    """Codes and grids of new heads x (…, head_dim), turned before by the matrix `turn` of
    `rotation`, or by none: the identity."""
    turned = x @ turn.T
    grid = grids(storage, turned, block)
    return encode(storage, turned, block, grid), grid


def unrotate_heads(x: Array, turn: Array) -> Array:
    """Heads x (…, head_dim) turned back."""
    return x @ turn


def rotation(head_dim: int, span: int) -> Array:
    """The orthogonal matrix R (head_dim, head_dim) that turns heads x to x · Rᵀ: for every `span`
    numbers (a power of two) Hadamard's matrix over √span, after signs that are one everywhere or
    minus one: a bent function of the place (Rothaus 1976), because Hadamard's matrix alone gathers
    what is constant, or alternates, in one number."""
    hadamard = np.ones((1, 1))
    while len(hadamard) < span:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    one = hadamard / np.sqrt(span) * signs(span)
    return np.kron(np.eye(head_dim // span), one)


def signs(n: int) -> Array:
    """(n,) of ±1: minus one to the number of places 2i at which bits 2i and 2i + 1 are both set."""
    at = np.arange(n)
    pairs = at & (at >> 1) & 0x55555555
    return np.array([-1.0 if int(p).bit_count() % 2 else 1.0 for p in pairs])


def grids(storage: str, x: Array, block: int) -> Array:
    """(…, blocks, 1 or 2) as float16 holds them: tops, or leasts and ranges."""
    parts = _blocks(x, block)
    if storage == "q4":
        least = _half(parts.min(-1))
        return np.stack([least, _half(parts.max(-1) - least)], axis=-1)
    top = np.abs(parts).max(-1)
    if storage == "n4":
        level = np.array(LEVELS)[_nearest(parts, top)]
        top = 255 * (np.abs(parts) * level).sum(-1) / (level**2).sum(-1)
    return _half(top)[..., None]


def quantised(storage: str, x: Array, block: int, grid: Array | None = None) -> Array:
    """x (…, head_dim) as the cache gives it back. `grid`: the grids it was stored with, those of
    `grids` if left out."""
    grid = grids(storage, x, block) if grid is None else grid
    codes = encode(storage, x, block, grid)
    return decode(storage, codes, block, grid)


def encode(storage: str, x: Array, block: int, grid: Array) -> npt.NDArray[np.int64]:
    """Codes of x (…, head_dim): signed bytes, nibbles, or a sign bit (8) above a level's number."""
    parts = _blocks(x, block)
    first = grid[..., 0]
    if storage == "q8":
        codes = np.clip(np.rint(parts * _over(127, first)), -127, 127)
    elif storage == "q4":
        codes = np.clip(np.rint((parts - first[..., None]) * _over(15, grid[..., 1])), 0, 15)
    else:
        codes = _nearest(parts, first) + 8 * (parts < 0)
    return np.asarray(codes.reshape(x.shape), np.int64)


def decode(storage: str, codes: npt.NDArray[np.int64], block: int, grid: Array) -> Array:
    """What attention computes with."""
    parts = _blocks(codes, block)
    first = grid[..., 0, None]
    if storage == "q8":
        numbers = parts * (first / 127)
    elif storage == "q4":
        numbers = parts * (grid[..., 1, None] / 15) + first
    else:
        numbers = np.array(LEVELS)[parts & 7] * np.where(parts & 8, -1, 1) * (first / 255)
    return np.asarray(numbers.reshape(codes.shape), np.float64)


def pack(storage: str, codes: npt.NDArray[np.int64], grid: Array) -> U32:
    """The words (…, words) of all tokens of a KV block's head: codes (…, n_tokens, head_dim), grids
    (…, n_tokens, blocks, 1 or 2)."""
    if storage == "q8":
        data = codes.astype(np.int8).view(np.uint32)
    else:
        nibbles = codes.astype(np.uint8)
        data = (nibbles[..., ::2] | nibbles[..., 1::2] << 4).view(np.uint32)
    halves = grid.astype(np.float16).reshape(*grid.shape[:-2], -1)
    padding = [(0, 0)] * (halves.ndim - 1) + [(0, halves.shape[-1] % 2)]
    words = np.ascontiguousarray(np.pad(halves, padding)).view(np.uint32)
    parts = [part.reshape(*part.shape[:-2], -1) for part in (data, words)]
    return np.concatenate(parts, axis=-1)


def unpack(
    storage: str, words: U32, n_tokens: int, head_dim: int, block: int
) -> tuple[npt.NDArray[np.int64], Array]:
    """Codes (…, n_tokens, head_dim) and grids of the words (…, words) that hold `n_tokens` tokens
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


def _nearest(parts: Array, top: Array) -> npt.NDArray[np.int64]:
    """Which of `LEVELS` is closest to the sizes of numbers (…, block), `top` being 255."""
    levels = np.array(LEVELS)
    between = (levels[1:] + levels[:-1]) / 2
    return np.searchsorted(between, np.abs(parts) * _over(255, top))


def _over(n: float, top: Array) -> Array:
    """n / top (…,) beside a block's numbers; 0 where there is nothing but zeros."""
    return np.where(top > 0, n / np.where(top > 0, top, 1.0), 0.0)[..., None]


def _half(x: Array) -> Array:
    return np.clip(x, -GREATEST_HALF, GREATEST_HALF).astype(np.float16).astype(np.float64)
