"""One token's statistics out of a captured step, as they are told to people."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.events import LayerStats, TokenStats
from gpu.step import Captured, Floats

DIGITS = 6
"""Significant digits that are told: a float32 has seven, and a page has thousands of numbers."""


def token_stats(captured: Captured, row: int, position: int) -> TokenStats:
    """Statistics of `row` of a captured step, which ran the token at `position`."""
    norms = np.stack([captured.residual[row], captured.attention[row], captured.mlp[row]], axis=1)
    times = captured.layer_ms
    layers = zip(
        significant(norms),
        significant(captured.entropy[row]),
        [[None, None]] * len(norms) if times is None else significant(times),
        strict=True,
    )
    return TokenStats(
        position=position,
        embedding=significant(captured.embedding[row : row + 1])[0],
        layers=tuple(
            LayerStats(residual, attention, mlp, tuple(entropy), attention_ms, mlp_ms)
            for (residual, attention, mlp), entropy, (attention_ms, mlp_ms) in layers
        ),
        n_rows=len(captured.embedding),
        embed_ms=captured.embed_ms,
        head_ms=captured.head_ms,
    )


def significant(values: Floats) -> Any:
    """`values` as nested lists of Python floats, rounded to `DIGITS` significant digits."""
    exact: npt.NDArray[np.float64] = values.astype(np.float64)
    magnitude = np.floor(np.log10(np.maximum(np.abs(exact), 1e-30)))
    scale = 10.0 ** (DIGITS - 1 - magnitude)
    return (np.round(exact * scale) / scale).tolist()
