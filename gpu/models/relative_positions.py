"""Buckets of distances between tokens, each of which has a learned bias on attention scores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def relative_buckets(
    n_buckets: int, max_distance: int, *, causal: bool = False
) -> npt.NDArray[np.intp]:
    """Return the buckets (2 · max_distance + 1,) of keys at distances -max_distance … max_distance
    from a row.

    In an encoder half of the buckets are for keys after the row; in a decoder (`causal`) all are
    for those up to it. Of the buckets of a side, half are for one distance each, the others grow
    with its logarithm (T5, Raffel et al. 2020, 2.1; `_relative_position_bucket` of transformers,
    which computes in float32).
    """
    distances = np.arange(-max_distance, max_distance + 1)
    n_side = n_buckets if causal else n_buckets // 2
    n_exact = n_side // 2
    n = np.maximum(-distances, 0) if causal else np.abs(distances)
    log = np.log(np.maximum(n, 1).astype(np.float32) / np.float32(n_exact))
    grown = log / np.float32(np.log(max_distance / n_exact)) * np.float32(n_side - n_exact)
    large = np.minimum(n_exact + grown.astype(np.intp), n_side - 1)
    after = np.where(distances > 0, 0 if causal else n_side, 0)
    return after + np.where(n < n_exact, n, large)
