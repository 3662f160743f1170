"""Storage types of weights: f32, f16, q8 (int8) and q4 (int4), each row of a matrix as whole 32-bit
words.

A row is cut into blocks of 32 weights, the last one padded with zeros. Its blocks come first. For
q8 and q4 the scales (and minimums) of all blocks follow as float16, in groups of four words, so
that everything can be read 16 bytes at a time. B blocks take

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

from gpu.checkpoint.quantize import quantize_q4, quantize_q8
from gpu.errors import ModelError

BLOCK = 32
"""Weights per block."""
SCALE_GROUP_WORDS = 4
"""Scales are padded to multiples of this many words."""

_NUMBERS: dict[str, npt.DTypeLike] = {"f32": np.float32, "f16": np.float16}

U32 = npt.NDArray[np.uint32]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StorageFormat:
    """A storage type.

    block_words  words of a block's weights
    scale_bytes  bytes of a block's scale and minimum; 0 if it has none
    vocabulary   format of the embedding and output matrices of such a model: four bits are too few
                 there, where each token has one row and errors go straight to its logit
    kv           type of the keys and values of such a model

    A new one is also packed and unpacked below (`gpu.checkpoint.quantize`), packed by devices
    (`gpu.checkpoint.device_packer`), read by shaders (`gpu/shaders/lib/weight_<name>.wgsl`),
    offered by `--dtype` (`app.config`), and packed and sized in the browser
    (`static/js/local/hub/pack.js`, `static/js/local/gpu/weights.js`).
    """

    name: str
    block_words: int
    scale_bytes: int
    vocabulary: str
    kv: str

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight, without the padding of short rows."""
        return (32 * self.block_words + 8 * self.scale_bytes) / BLOCK


FORMATS = {
    format.name: format
    for format in (
        StorageFormat("f32", block_words=32, scale_bytes=0, vocabulary="f32", kv="f32"),
        StorageFormat("f16", block_words=16, scale_bytes=0, vocabulary="f16", kv="f16"),
        StorageFormat("q8", block_words=8, scale_bytes=2, vocabulary="q8", kv="f16"),
        StorageFormat("q4", block_words=4, scale_bytes=4, vocabulary="q8", kv="f16"),
    )
}


def weight_words(dtype: str, k: int) -> int:
    """Return the words of a row of `k` weights without its scales."""
    return FORMATS[dtype].block_words * _blocks(k)


def row_words(dtype: str, k: int) -> int:
    """Return the words of a row of `k` weights."""
    return weight_words(dtype, k) + _scale_words(FORMATS[dtype], _blocks(k))


def pack(
    dtype: str, rows: npt.NDArray[Any], name: str = "the matrix", out: U32 | None = None
) -> U32:
    """Pack finite float32 or float16 (n, k) into uint32 (n, row_words).

    `out`: where to write; None: into a new array. Raises ModelError with `name` for weights that
    the format cannot hold.
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
    """Return uint32 (n, row_words) viewed as its numbers (n, k), or None for a quantised type."""
    kind = _NUMBERS.get(dtype)
    return None if kind is None else packed.view(kind)[:, :k]


def unpack(dtype: str, packed: U32, k: int) -> F32:
    """Unpack uint32 (n, row_words) into float32 (n, k): the numbers that the shaders compute
    with."""
    expected = row_words(dtype, k)
    if packed.shape[1] != expected:
        raise ValueError(
            f"expected {expected} words per {dtype} row of {k} weights, but got {packed.shape[1]}"
        )
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
        q, scale = quantize_q8(_as_blocks(rows[:, columns], place))
        weights[:, columns] = q.reshape(len(rows), -1)
        scales[:, place] = scale.reshape(len(rows), -1)


def _pack_q4(rows: npt.NDArray[Any], packed: U32) -> None:
    blocks = _blocks(rows.shape[1])
    weights = np.zeros((len(rows), BLOCK * blocks), np.uint8)
    scales_mins = packed[:, 4 * blocks :].view(np.float16)
    for place, columns in _block_columns(rows.shape[1]):
        q, scale, minimum = quantize_q4(_as_blocks(rows[:, columns], place))
        weights[:, columns] = q.reshape(len(rows), -1)
        scales_mins[:, 2 * place.start : 2 * place.stop : 2] = scale.reshape(len(rows), -1)
        scales_mins[:, 2 * place.start + 1 : 2 * place.stop : 2] = minimum.reshape(len(rows), -1)
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
    """Unpack with the same result as the shader's fused multiply-add: q · scale has at most 15
    significant bits, so the sum is the only rounding."""
    blocks = _blocks(k)
    pairs = np.ascontiguousarray(packed[:, : 4 * blocks]).view(np.uint8)
    q = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(packed), -1).astype(np.float32)
    scales_mins = (
        packed[:, 4 * blocks :].copy().view(np.float16)[:, : 2 * blocks].astype(np.float32)
    )
    scales, mins = (np.repeat(scales_mins[:, i::2], BLOCK, axis=1) for i in (0, 1))
    return q * scales + mins


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


def _scale_words(format: StorageFormat, blocks: int) -> int:
    group_bytes = 4 * SCALE_GROUP_WORDS
    return -(-format.scale_bytes * blocks // group_bytes) * SCALE_GROUP_WORDS


def _block_columns(k: int) -> list[tuple[slice, slice]]:
    """Return (blocks, columns) of a row's whole blocks, and of the shorter one at its end: its
    scale is chosen for its weights, not for the padding."""
    whole = k // BLOCK
    spans = [
        (slice(0, whole), slice(0, whole * BLOCK)),
        (slice(whole, whole + 1), slice(whole * BLOCK, k)),
    ]
    return [(blocks, columns) for blocks, columns in spans if columns.start < columns.stop]


def _as_blocks(rows: npt.NDArray[Any], place: slice) -> npt.NDArray[Any]:
    """Reshape (n, columns) to (n · blocks, width)."""
    return rows.reshape(len(rows) * (place.stop - place.start), -1)
