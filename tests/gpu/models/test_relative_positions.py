"""Buckets of distances against transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from gpu.models.relative_positions import relative_buckets


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize(
    ("n_buckets", "farthest"), [(4, 128), (10, 128), (32, 128), (64, 128), (7, 5), (32, 33)]
)
def test_buckets_are_those_of_transformers(n_buckets: int, farthest: int, causal: bool) -> None:
    """Also beyond the largest distance, where all keys are in the outermost."""
    distances = torch.arange(-600, 601)
    wanted = T5Attention._relative_position_bucket(
        distances, bidirectional=not causal, num_buckets=n_buckets, max_distance=farthest
    ).numpy()
    near = np.clip(distances.numpy(), -farthest, farthest) + farthest
    found = relative_buckets(n_buckets, farthest, causal=causal)
    np.testing.assert_array_equal(found[near], wanted)
