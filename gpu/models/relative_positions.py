"""Buckets of distances between tokens, each of which has a learned bias on attention scores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MAX_DISTANCE = 128
"""Distance from which on all keys are in the last bucket."""


def relative_buckets(n_buckets: int) -> npt.NDArray[np.intp]:
    """Return the buckets (2 · MAX_DISTANCE + 1,) of keys at distances -MAX_DISTANCE … MAX_DISTANCE
    from a row in an encoder.

    Half of the buckets are for keys after the row. Of each half, half are for one distance each,
    the others grow with its logarithm (T5, Raffel et al. 2020, 2.1; `relative_position_bucket` of
    transformers, which computes in float32).
    """
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    half = n_buckets // 2
    n_exact = half // 2
    n = np.abs(distances)
    log = np.log(np.maximum(n, 1).astype(np.float32) / np.float32(n_exact))
    grown = log / np.float32(np.log(MAX_DISTANCE / n_exact)) * np.float32(half - n_exact)
    large = np.minimum(n_exact + grown.astype(np.intp), half - 1)
    return np.where(distances > 0, half, 0) + np.where(n < n_exact, n, large)
