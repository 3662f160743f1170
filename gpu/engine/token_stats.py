"""Activation statistics of one token of a step with `capture`, as clients see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu.events import ExpertChoice, LayerStats, TokenStats
from gpu.step import Captured, Floats

DIGITS = 6
"""Significant digits of a value: a float32 has seven, and a page has thousands of values."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """GPU times of a timed step and the token it ran for; see `Captured`."""

    position: int
    n_rows: int
    layers_ms: Floats
    embed_ms: float | None
    head_ms: float | None

    @classmethod
    def of(cls, captured: Captured, position: int) -> LayerTimes | None:
        if captured.layer_ms is None:
            return None
        n_rows = len(captured.embedding)
        return cls(position, n_rows, captured.layer_ms, captured.embed_ms, captured.head_ms)


def token_stats(
    captured: Captured, row: int, position: int, times: LayerTimes | None
) -> TokenStats:
    """Return the statistics of `row` of a captured step, which ran the token at `position`.
    `times`: those of that step, or of the last timed step before it."""
    captured_values = (
        captured.residual,
        captured.attention,
        captured.mlp,
        captured.attention_cosine,
        captured.mlp_cosine,
    )
    of_row = np.stack([values[row] for values in captured_values], axis=1)
    layers = zip(
        significant(of_row),
        significant(captured.entropy[row]),
        [[None, None]] * len(of_row) if times is None else significant(times.layers_ms),
        strict=True,
    )
    return TokenStats(
        position=position,
        embedding=significant(captured.embedding[row : row + 1])[0],
        layers=tuple(
            LayerStats(residual, attention, mlp, attention_cosine, mlp_cosine, tuple(entropy), *ms)
            for (residual, attention, mlp, attention_cosine, mlp_cosine), entropy, ms in layers
        ),
        n_rows=len(captured.embedding) if times is None else times.n_rows,
        embed_ms=None if times is None else times.embed_ms,
        head_ms=None if times is None else times.head_ms,
        timed_at=None if times is None else times.position,
        routes=_routes(captured, row),
    )


def _routes(captured: Captured, row: int) -> tuple[ExpertChoice, ...] | msgspec.UnsetType:
    if captured.chosen is None or captured.gates is None:
        return msgspec.UNSET
    chosen, gates = captured.chosen[row].tolist(), significant(captured.gates[row])
    each = zip(captured.expert_layers, chosen, gates, strict=True)
    return tuple(ExpertChoice(layer, tuple(ids), tuple(of)) for layer, ids, of in each)


def significant(values: Floats) -> Any:
    """Return `values` as nested lists of Python floats, rounded to `DIGITS` significant digits."""
    exact: npt.NDArray[np.float64] = values.astype(np.float64)
    magnitude = np.floor(np.log10(np.maximum(np.abs(exact), 1e-30)))
    scale = 10.0 ** (DIGITS - 1 - magnitude)
    return (np.round(exact * scale) / scale).tolist()
