"""How weights lie in memory: f32, f16, q8 and q4, each row of a matrix as whole 32-bit words.

A row is cut into blocks of 32 weights, the last one padded with zeros. Its blocks come first, then,
for q8 and q4, the grids of all blocks: float16 numbers, in groups of four words, so that everything
can be read 16 bytes at a time. B blocks make

    f32   32 B words, a weight in each
    f16   16 B words, two weights in each, the first in the low half
    q8     8 B words, four signed bytes in each, the first lowest: weight = q · scale;
           then the scales of eight blocks in every four words, the first in a low half
    q4     4 B words, eight nibbles in each, the first lowest: weight = q · scale + minimum;
           then four blocks in every four words, the scale in the low half, the minimum in the high
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.quantise import to_bytes, to_nibbles
from gpu.errors import ModelError

BLOCK = 32
"""Weights in a block."""
GROUP_WORDS = 4
"""Words of grids come in groups of so many."""

_NUMBERS: dict[str, npt.DTypeLike] = {"f32": np.float32, "f16": np.float16}

U32 = npt.NDArray[np.uint32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Format:
    """How a block is stored, and what goes with it.

    block_words  words of its weights
    grid_bytes   bytes of its scale and minimum, where it has them
    vocabulary   the format of the embedding and output matrices of such a model: four bits are too
                 few there, where a token has one row to itself and errors go straight to its logit
    kv           the type of the keys and values of such a model
    """

    name: str
    block_words: int
    grid_bytes: int
    vocabulary: str
    kv: str

    @property
    def bits_per_weight(self) -> float:
        """Without the padding of short rows."""
        return (32 * self.block_words + 8 * self.grid_bytes) / BLOCK


FORMATS = {
    format.name: format
    for format in (
        Format("f32", block_words=32, grid_bytes=0, vocabulary="f32", kv="f32"),
        Format("f16", block_words=16, grid_bytes=0, vocabulary="f16", kv="f16"),
        Format("q8", block_words=8, grid_bytes=2, vocabulary="q8", kv="f16"),
        Format("q4", block_words=4, grid_bytes=4, vocabulary="q8", kv="f16"),
    )
}


def weight_words(dtype: str, k: int) -> int:
    """Words that hold the blocks of a row of `k` weights, its grids left out."""
    return FORMATS[dtype].block_words * _blocks(k)


def row_words(dtype: str, k: int) -> int:
    """Words that hold a row of `k` weights."""
    return weight_words(dtype, k) + _grid_words(FORMATS[dtype], _blocks(k))


def pack(
    dtype: str, rows: npt.NDArray[Any], name: str = "the matrix", out: U32 | None = None
) -> U32:
    """float32 or float16 (n, k), all finite → uint32 (n, row_words). `out`: where to put it; None:
    into a new array.

    Raises ModelError with `name` for weights that the format cannot hold.
    """
    n, k = rows.shape
    packed = np.empty((n, row_words(dtype, k)), np.uint32) if out is None else out
    packed.fill(0)
    try:
        _PACKERS[dtype](rows, packed)
    except OverflowError as error:
        raise ModelError(f"{name} cannot be stored as {dtype}: {error}; use dtype f32") from error
    return packed


def as_numbers(dtype: str, packed: U32, k: int) -> npt.NDArray[Any] | None:
    """uint32 (n, row_words) seen as the numbers in it, (n, k), where they are not quantised."""
    kind = _NUMBERS.get(dtype)
    return None if kind is None else packed.view(kind)[:, :k]


def unpack(dtype: str, packed: U32, k: int) -> F32:
    """uint32 (n, row_words) → float32 (n, k): the numbers that the shaders compute with."""
    expected = row_words(dtype, k)
    if packed.shape[1] != expected:
        raise ValueError(f"a {dtype} row of {k} is {expected} words, but has {packed.shape[1]}")
    return np.ascontiguousarray(_UNPACKERS[dtype](np.ascontiguousarray(packed), k)[:, :k])


def _pack_f32(rows: npt.NDArray[Any], packed: U32) -> None:
    packed.view(np.float32)[:, : rows.shape[1]] = rows


def _pack_f16(rows: npt.NDArray[Any], packed: U32) -> None:
    with np.errstate(over="ignore"):
        halves = rows.astype(np.float16, copy=False)
    if np.isinf(halves).any():
        raise OverflowError(f"it holds {np.abs(rows).max():g}, but float16 ends at 65504")
    packed.view(np.float16)[:, : rows.shape[1]] = halves


def _pack_q8(rows: npt.NDArray[Any], packed: U32) -> None:
    blocks = _blocks(rows.shape[1])
    weights = packed[:, : 8 * blocks].view(np.int8)
    scales = packed[:, 8 * blocks :].view(np.float16)
    for place, columns in _block_columns(rows.shape[1]):
        q, scale = to_bytes(_as_blocks(rows[:, columns], place))
        weights[:, columns] = q.reshape(len(rows), -1)
        scales[:, place] = scale.reshape(len(rows), -1)


def _pack_q4(rows: npt.NDArray[Any], packed: U32) -> None:
    blocks = _blocks(rows.shape[1])
    weights = np.zeros((len(rows), BLOCK * blocks), np.uint8)
    grids = packed[:, 4 * blocks :].view(np.float16)
    for place, columns in _block_columns(rows.shape[1]):
        q, scale, minimum = to_nibbles(_as_blocks(rows[:, columns], place))
        weights[:, columns] = q.reshape(len(rows), -1)
        grids[:, 2 * place.start : 2 * place.stop : 2] = scale.reshape(len(rows), -1)
        grids[:, 2 * place.start + 1 : 2 * place.stop : 2] = minimum.reshape(len(rows), -1)
    packed[:, : 4 * blocks] = (weights[:, ::2] | weights[:, 1::2] << 4).view(np.uint32)


def _unpack_f32(packed: U32, k: int) -> F32:
    return packed.view(np.float32)


def _unpack_f16(packed: U32, k: int) -> F32:
    return packed.view(np.float16).astype(np.float32)


def _unpack_q8(packed: U32, k: int) -> F32:
    blocks = _blocks(k)
    q = np.ascontiguousarray(packed[:, : 8 * blocks]).view(np.int8).astype(np.float32)
    scales = packed[:, 8 * blocks :].copy().view(np.float16)[:, :blocks].astype(np.float32)
    return q * np.repeat(scales, BLOCK, axis=1)


def _unpack_q4(packed: U32, k: int) -> F32:
    """As the fused multiply-add of the shader: q · scale has at most 15 significant bits, so the
    sum is the only rounding."""
    blocks = _blocks(k)
    pairs = np.ascontiguousarray(packed[:, : 4 * blocks]).view(np.uint8)
    q = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(packed), -1).astype(np.float32)
    grids = packed[:, 4 * blocks :].copy().view(np.float16)[:, : 2 * blocks].astype(np.float32)
    scales, minima = (np.repeat(grids[:, i::2], BLOCK, axis=1) for i in (0, 1))
    return q * scales + minima


_PACKERS: dict[str, Callable[[npt.NDArray[Any], U32], None]] = {
    "f32": _pack_f32,
    "f16": _pack_f16,
    "q8": _pack_q8,
    "q4": _pack_q4,
}
_UNPACKERS: dict[str, Callable[[U32, int], F32]] = {
    "f32": _unpack_f32,
    "f16": _unpack_f16,
    "q8": _unpack_q8,
    "q4": _unpack_q4,
}


def _blocks(k: int) -> int:
    return -(-k // BLOCK)


def _grid_words(format: Format, blocks: int) -> int:
    group_bytes = 4 * GROUP_WORDS
    return -(-format.grid_bytes * blocks // group_bytes) * GROUP_WORDS


def _block_columns(k: int) -> list[tuple[slice, slice]]:
    """(blocks, columns) of the whole blocks of a row, and of the shorter one at its end: its grid
    is chosen for its weights, not for the padding."""
    whole = k // BLOCK
    spans = [
        (slice(0, whole), slice(0, whole * BLOCK)),
        (slice(whole, whole + 1), slice(whole * BLOCK, k)),
    ]
    return [(blocks, columns) for blocks, columns in spans if columns.start < columns.stop]


def _as_blocks(rows: npt.NDArray[Any], place: slice) -> npt.NDArray[Any]:
    """(n, columns) → (n · blocks, width)."""
    return rows.reshape(len(rows) * (place.stop - place.start), -1)
