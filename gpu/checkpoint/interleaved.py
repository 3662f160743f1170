"""Rows of a matrix that lie abreast on the device: the first block of each of some rows, then the
second of each, and so on, then in the same order the grids of those blocks.

A software device has every lane walk neighbouring rows of a weight, block by block. Row after row,
those are as many places in memory as there are rows, far more than a processor fetches ahead of;
abreast, a lane reads on where it is, and finds the grids of several of its rows in one load of 16
bytes. In a texture, whose lines are limited in number, more rows find room.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import FORMATS, U32, row_words, weight_words
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


def _rows(dtype: str, k: int, packed: U32, n: int) -> list[npt.NDArray[Any]]:
    """Blocks (rows / n, n, blocks, words), and grids (rows / n, n, grids, 1)."""
    groups, end = len(packed) // n, weight_words(dtype, k)
    return [part.reshape(groups, n, -1, together) for part, together in _parts(dtype, packed, end)]


def _laid(dtype: str, k: int, laid: U32, n: int) -> list[npt.NDArray[Any]]:
    """Blocks (rows / n, blocks, n, words), and grids (rows / n, grids, n, 1)."""
    groups, end = laid.reshape(len(laid) // n, -1), n * weight_words(dtype, k)
    return [
        part.reshape(len(groups), -1, n, together) for part, together in _parts(dtype, groups, end)
    ]


def _parts(dtype: str, lines: U32, end: int) -> list[tuple[npt.NDArray[Any], int]]:
    """The blocks of each line, which end at word `end`, in words, and after them the grids, where
    there are any, each a number; how many of these stay together."""
    blocks, grids, format = lines[:, :end], lines[:, end:], FORMATS[dtype]
    parts: list[tuple[npt.NDArray[Any], int]] = [(blocks, format.block_words)]
    return [*parts, (grids.view(f"u{format.grid_bytes}"), 1)] if format.grid_bytes else parts
