"""Buckets of distances against transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from gpu.models.relative_positions import MAX_DISTANCE, relative_buckets


@pytest.mark.parametrize("n_buckets", [4, 10, 32, 64])
def test_buckets_are_those_of_transformers(n_buckets: int) -> None:
    """Also beyond the largest distance, where all keys are in the outermost."""
    distances = torch.arange(-600, 601)
    wanted = MPNetEncoder.relative_position_bucket(distances, n_buckets, MAX_DISTANCE).numpy()
    near = np.clip(distances.numpy(), -MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
    np.testing.assert_array_equal(relative_buckets(n_buckets)[near], wanted)
