"""Bounds of the difference between the logits of two engines."""

from __future__ import annotations

import numpy as np

from gpu.step import Floats
from tests.gpu.ops.rig import compare

OF_THE_LARGEST_LOGIT = 3e-5
"""Four times the largest error of any architecture on two drivers, 8e-6."""
OF_A_DEEP_MODEL = 8e-5
"""The same of a Llama with 24 layers, 2.1e-5."""
KL_OF_CACHED_HALVES = 2e-5
"""Models whose weights are not float32 keep keys and values as float16; transformers' do not."""


def check_logits(
    result: str,
    got: Floats,
    want: Floats,
    case: str = "",
    of_largest: float = OF_THE_LARGEST_LOGIT,
) -> None:
    """Fail unless logits are within the bound, and the most likely token is the same wherever its
    lead exceeds it."""
    bound = of_largest * np.abs(want).max()
    compare(result, case, got, want, np.array(bound), seed=0)
    second, first = np.sort(want, axis=1)[:, -2:].T
    clear = first - second > 2 * bound
    assert clear.mean() > 0.8, "too few positions have a clear winner"
    assert np.array_equal(got.argmax(1)[clear], want.argmax(1)[clear])
