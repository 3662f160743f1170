"""A second reader of recipes, from docs/plan-format.md alone: what a weight's bytes should be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import pack
from gpu.checkpoint.reader import Checkpoint
from gpu.export.plan_format import PlanPart, PlanWeight

Numbers = npt.NDArray[np.float32]


def made_by_recipe(weight: PlanWeight, checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a weight, made of the checkpoint's tensors."""
    parts = [_rows(part, checkpoint, max(weight.k, 1)) for part in weight.parts]
    groups = [parts[i : i + weight.each] for i in range(0, len(parts), weight.each)]
    rows = np.concatenate([np.stack(group, 1).reshape(-1, group[0].shape[1]) for group in groups])
    rows += np.float32(weight.plus)
    if weight.k:
        return pack(weight.dtype, rows).tobytes()
    vector = np.zeros(weight.n, np.float32)
    vector[: len(rows)] = rows[:, 0]
    return vector.tobytes()


def _rows(part: PlanPart, checkpoint: Checkpoint, k: int) -> Numbers:
    """Return the rows of one part, (n, k)."""
    tensor = checkpoint.read_f32(part.tensor)
    rows = tensor.T if part.transposed else tensor.reshape(-1, k)
    rows = np.concatenate([rows[first : first + n] for first, n in part.runs])
    order = part.head_order
    return (
        np.array([rows[i - i % len(order) + order[i % len(order)]] for i in range(len(rows))])
        if order
        else rows
    )


def interleave(dtype: str, row_bytes: int, rows: bytes, n: int) -> bytes:
    """Return rows in groups of `n`: blocks of the rows in turn, then their scales in turn."""
    if n == 1:
        return rows
    block, scale = {"f32": (128, 0), "f16": (64, 0), "q8": (32, 2), "q4": (16, 4)}[dtype]
    whole = np.frombuffer(rows, np.uint8).reshape(-1, n, row_bytes)
    blocks = row_bytes // block
    while scale and -(-scale * blocks // 16) * 16 != row_bytes - block * blocks:
        blocks -= 1
    out = []
    for group in whole:
        out.append(group[:, : block * blocks].reshape(n, -1, block).swapaxes(0, 1).tobytes())
        if scale:
            out.append(group[:, block * blocks :].reshape(n, -1, scale).swapaxes(0, 1).tobytes())
    return b"".join(out)
