"""Interleaved layout of packed rows: the first block of each of n rows, then the second of each,
and so on, then the scales of those blocks in the same order.

On a software device every invocation reads neighbouring rows of a weight block by block. Row by
row, that is as many streams through memory as there are rows, more than a processor prefetches.
Interleaved, an invocation reads one stream and loads the scales of several rows with one 16-byte
load. A texture, which has a limited number of lines, also holds more rows this way.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import FORMATS, U32, row_words, weight_words
from gpu.webgpu.buffers import TEXEL_WORDS
from gpu.webgpu.device import Device

INTERLEAVED_ROWS = 8
"""Rows per group: as many as an invocation multiplies in a one-row pass
(`gpu.webgpu.tiling.SOFTWARE`)."""


def rows_interleaved(device: Device, dtype: str, k: int, n: int, group_rows: int) -> int:
    """Return how many rows of `k` weights are interleaved on `device`; 1 means none.

    n           rows come in multiples of this
    group_rows  shards hold multiples of this and of the interleaved rows
    """
    if not device.policy.interleaves_weights or n % INTERLEAVED_ROWS:
        return 1
    least = math.lcm(group_rows, INTERLEAVED_ROWS)
    return (
        INTERLEAVED_ROWS
        if max_shard_rows(device, row_words(dtype, k), INTERLEAVED_ROWS) >= least
        else 1
    )


def max_shard_rows(device: Device, words: int, interleaved: int) -> int:
    """Return the most rows of one shard, for rows of `words` words of which `interleaved` share a
    line."""
    rows = device.max_binding_bytes // (4 * words)
    if not device.policy.weights_in_textures:
        return rows
    is_too_wide = words * interleaved // TEXEL_WORDS > device.max_texture_side
    return 0 if is_too_wide else min(rows, device.max_texture_side * interleaved)


def interleave(dtype: str, k: int, packed: U32, n: int, out: U32) -> U32:
    """Interleave packed rows of `k` weights, `n` at a time, into `out`.

    packed and out: (rows, row_words), rows a multiple of `n`.
    """
    for rows, interleaved in zip(
        _rows(dtype, k, packed, n), _interleaved(dtype, k, out, n), strict=True
    ):
        interleaved[:] = rows.swapaxes(1, 2)
    return out


def deinterleave(dtype: str, k: int, interleaved: U32, n: int) -> U32:
    """Invert `interleave`."""
    packed = np.empty_like(interleaved)
    for rows, in_groups in zip(
        _rows(dtype, k, packed, n), _interleaved(dtype, k, interleaved, n), strict=True
    ):
        rows[:] = in_groups.swapaxes(1, 2)
    return packed


def _rows(dtype: str, k: int, packed: U32, n: int) -> list[npt.NDArray[Any]]:
    """Return views of row-major rows: blocks (rows / n, n, blocks, words) and, for quantised types,
    scales (rows / n, n, scales, 1)."""
    groups, end = len(packed) // n, weight_words(dtype, k)
    return [part.reshape(groups, n, -1, unit) for part, unit in _parts(dtype, packed, end)]


def _interleaved(dtype: str, k: int, interleaved: U32, n: int) -> list[npt.NDArray[Any]]:
    """Return views of interleaved rows: blocks (rows / n, blocks, n, words) and, for quantised
    types, scales (rows / n, scales, n, 1)."""
    groups, end = interleaved.reshape(len(interleaved) // n, -1), n * weight_words(dtype, k)
    return [part.reshape(len(groups), -1, n, unit) for part, unit in _parts(dtype, groups, end)]


def _parts(dtype: str, lines: U32, end: int) -> list[tuple[npt.NDArray[Any], int]]:
    """Split each line at word `end` into blocks and scales (if the type has any), each with the
    number of elements that stay together."""
    blocks, scales, format = lines[:, :end], lines[:, end:], FORMATS[dtype]
    parts: list[tuple[npt.NDArray[Any], int]] = [(blocks, format.block_words)]
    return [*parts, (scales.view(f"u{format.scale_bytes}"), 1)] if format.scale_bytes else parts
