"""Uniform buffer of a step, in the layout of shaders/lib/step.wgsl."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from gpu.kv.blocks import BLOCK_TOKENS
from gpu.step import MAX_ROWS, Step

FROM_GPU_WORD = 0xFFFFFFFF
"""`gpu.step.FROM_GPU` as the device has it."""
MAX_SAMPLES = 64
"""Most samples of a step; a runner with fewer slots has memory for fewer."""

Fields = tuple[tuple[str, str], ...]
"""Names and WGSL types of 32-bit words."""

HEADER_FIELDS: Fields = (
    ("n_rows", "u32"), ("n_samples", "u32"), ("unused_0", "u32"), ("unused_1", "u32"),
)  # fmt: skip
SAMPLE_FIELDS: Fields = (
    ("row", "u32"), ("slot", "u32"), ("seed_low", "u32"), ("seed_high", "u32"), ("index", "u32"),
    ("top_k", "u32"), ("temperature", "f32"), ("top_p", "f32"), ("min_p", "f32"),
    ("repetition_penalty", "f32"), ("frequency_penalty", "f32"), ("presence_penalty", "f32"),
    ("n_biases", "u32"), ("n_drafts", "u32"), ("verifies", "u32"), ("n_allowed", "u32"),
    ("inverse_temperature", "f32"), ("inverse_penalty", "f32"), ("watermark_bias", "f32"),
    ("n_hashed", "u32"),
)  # fmt: skip
ROW_FIELDS: Fields = (
    ("slot", "u32"), ("position", "u32"), ("token", "u32"), ("block", "u32"),
)  # fmt: skip


def struct_of(fields: Fields) -> struct.Struct:
    """Return the packer of little-endian words of these types."""
    return struct.Struct("<" + "".join({"u32": "I", "f32": "f"}[kind] for _, kind in fields))


LEAST_TEMPERATURE = 1e-30
"""Practically greedy, and logits stay finite."""

_HEADER, _SAMPLE, _ROW = (struct_of(f) for f in (HEADER_FIELDS, SAMPLE_FIELDS, ROW_FIELDS))
SAMPLES_AT = _HEADER.size
ROWS_AT = SAMPLES_AT + MAX_SAMPLES * _SAMPLE.size
STEP_BYTES = ROWS_AT + MAX_ROWS * _ROW.size
BLOCK_AT, _BLOCK = 12, struct.Struct("<I")
"""Place and packer of a row's block."""


def pack_step(step: Step, data: bytearray, tables: Sequence[Sequence[int]] | None) -> int:
    """Write `step` to the start of `data` (`STEP_BYTES` long); return how many bytes were written.

    The device multiplies by inverses: WGSL lets each device round a quotient in its own way.
    `tables` holds the KV blocks of each slot, in order. None: row r is written to block r of the
    staging rows, see `gpu.ops.quantize_kv`.
    """
    _HEADER.pack_into(data, 0, len(step.rows), len(step.samples), 0, 0)
    at = SAMPLES_AT
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
            1.0 / max(s.temperature or 1.0, LEAST_TEMPERATURE),
            1.0 / s.repetition_penalty,
            s.watermark_bias,
            s.n_hashed,
        )
        at += _SAMPLE.size
    at = ROWS_AT
    for i, row in enumerate(step.rows):
        slot, position = row.slot, row.position
        block = i if tables is None else tables[slot][position // BLOCK_TOKENS]
        _ROW.pack_into(data, at, slot, position, row.token & FROM_GPU_WORD, block)
        at += _ROW.size
    return at


def pack_row_blocks(step: Step, data: bytearray, tables: Sequence[Sequence[int]]) -> None:
    """Replace the blocks of the rows in `data`, where `pack_step` left `step`, by those of other
    tables."""
    at = ROWS_AT + BLOCK_AT
    for row in step.rows:
        _BLOCK.pack_into(data, at, tables[row.slot][row.position // BLOCK_TOKENS])
        at += _ROW.size
