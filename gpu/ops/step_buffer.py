"""Uniform buffer of a step, in the layout of shaders/lib/step.wgsl."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gpu.kv.blocks import BLOCK_TOKENS
from gpu.step import MAX_ROWS, Step

MAX_SAMPLES = 64
"""Most samples of a step; a runner with fewer slots has memory for fewer."""

_HEADER = struct.Struct("<2I8x")
_SAMPLE = struct.Struct("<6I6f4I")
_ROW = struct.Struct("<4I")
_ROWS_AT = _HEADER.size + MAX_SAMPLES * _SAMPLE.size
STEP_BYTES = _ROWS_AT + MAX_ROWS * _ROW.size


def pack_step(step: Step, data: bytearray, tables: Sequence[Sequence[int]] | None) -> int:
    """Write `step` to the start of `data` (`STEP_BYTES` long); return how many bytes were written.

    `tables` holds the KV blocks of each slot, in order. None: row r is written to block r of the
    staging rows, see `gpu.ops.quantize_kv`.
    """
    _HEADER.pack_into(data, 0, len(step.rows), len(step.samples))
    at = _HEADER.size
    for s in step.samples:
        _SAMPLE.pack_into(
            data,
            at,
            s.row,
            s.slot,
            s.seed & 0xFFFFFFFF,
            s.seed >> 32,
            s.index,
            s.top_k,
            s.temperature,
            s.top_p,
            s.min_p,
            s.repetition_penalty,
            s.frequency_penalty,
            s.presence_penalty,
            len(s.logit_bias),
            s.n_drafts,
            s.verifies,
            s.n_allowed,
        )
        at += _SAMPLE.size
    at = _ROWS_AT
    for i, row in enumerate(step.rows):
        slot, position = row.slot, row.position
        block = i if tables is None else tables[slot][position // BLOCK_TOKENS]
        _ROW.pack_into(data, at, slot, position, row.token & 0xFFFFFFFF, block)
        at += _ROW.size
    return at
