"""Rows of a matrix that lie abreast on the device: the first block of each of some rows, then the
second of each, and so on, then their grids, four words of each in turn.

A software device has every lane walk neighbouring rows of a weight, block by block. Row after row,
those are as many places in memory as there are rows, far more than a processor fetches ahead of;
abreast, a lane reads on where it is. A format whose block is one load of 16 bytes gains no time by
it; in a texture, whose lines are limited in number, more of its rows find room.
"""

from __future__ import annotations

import math

import numpy as np

from gpu.checkpoint.packing import FORMATS, GROUP_WORDS, U32, row_words, weight_words
from gpu.webgpu.buffers import TEXEL_WORDS
from gpu.webgpu.device import Device

SOFTWARE_ROWS = 8
"""As many as a lane multiplies with where a step has one row (`gpu.webgpu.tiling.SOFTWARE`)."""


def rows_abreast(device: Device, dtype: str, k: int, n: int, together: int) -> int:
    """How many rows of `k` weights lie abreast on `device` where they come in multiples of `n`, and
    shards hold multiples of `together` rows and of what lies abreast."""
    if not device.info.software or n % SOFTWARE_ROWS:
        return 1
    least = math.lcm(together, SOFTWARE_ROWS)
    return SOFTWARE_ROWS if max_rows(device, row_words(dtype, k), SOFTWARE_ROWS) >= least else 1


def max_rows(device: Device, words: int, abreast: int) -> int:
    """Of so many words each and so many abreast, how many rows one shard can have."""
    rows = device.max_binding_bytes // (4 * words)
    if not device.weights_in_textures:
        return rows
    is_too_wide = words * abreast // TEXEL_WORDS > device.max_texture_side
    return 0 if is_too_wide else min(rows, device.max_texture_side * abreast)


def abreast(dtype: str, k: int, packed: U32, n: int, out: U32) -> U32:
    """Packed rows of `k` weights (a multiple of `n`, row_words) as they lie on the device, `n` of
    them abreast, in `out` of the same shape."""
    for rows, laid in zip(_rows(dtype, k, packed, n), _laid(dtype, k, out, n), strict=True):
        laid[:] = rows.swapaxes(1, 2)
    return out


def one_by_one(dtype: str, k: int, laid: U32, n: int) -> U32:
    """What `abreast` was given."""
    packed = np.empty_like(laid)
    for rows, together in zip(_rows(dtype, k, packed, n), _laid(dtype, k, laid, n), strict=True):
        rows[:] = together.swapaxes(1, 2)
    return packed


def _rows(dtype: str, k: int, packed: U32, n: int) -> list[U32]:
    """Blocks (rows / n, n, blocks, words), and in the same way grids in fours of words."""
    groups, end = len(packed) // n, weight_words(dtype, k)
    return [
        packed[:, columns].reshape(groups, n, -1, words)
        for columns, words in _parts(dtype, end, packed.shape[1])
    ]


def _laid(dtype: str, k: int, laid: U32, n: int) -> list[U32]:
    """Blocks (rows / n, blocks, n, words), and in the same way grids in fours of words."""
    end = n * weight_words(dtype, k)
    groups = laid.reshape(len(laid) // n, -1)
    return [
        groups[:, columns].reshape(len(groups), -1, n, words)
        for columns, words in _parts(dtype, end, groups.shape[1])
    ]


def _parts(dtype: str, end: int, width: int) -> list[tuple[slice, int]]:
    """Columns of a row's blocks, which end at `end`, and of its grids where it has any; words that
    stay together in each."""
    blocks = slice(0, end), FORMATS[dtype].block_words
    return [blocks, (slice(end, width), GROUP_WORDS)] if end < width else [blocks]
