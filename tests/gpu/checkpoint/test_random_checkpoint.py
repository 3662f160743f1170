"""Random checkpoints in the shapes of well-known models."""

from __future__ import annotations

import numpy as np
import pytest

from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES, POOL, RandomCheckpoint

MILLIONS = {"tiny": 6, "smol135": 135, "llama1b": 1236, "llama8b": 8030}


@pytest.mark.parametrize("name", LLAMA_SHAPES)
def test_a_shape_has_the_size_of_its_model(name):
    parameters = RandomCheckpoint(LLAMA_SHAPES[name]).parameters()
    assert round(parameters / 1e6) == MILLIONS[name]


def test_rows_are_the_same_alone_and_together():
    checkpoint = RandomCheckpoint(LLAMA_SHAPES["smol135"])
    whole = checkpoint.read_f32("model.embed_tokens.weight")
    assert whole.size > POOL
    assert np.array_equal(
        whole[40_000:40_003],
        checkpoint.read_f32("model.embed_tokens.weight", slice(40_000, 40_003)),
    )


def test_tensors_differ_and_preserve_the_size_of_activations():
    checkpoint = RandomCheckpoint(LLAMA_SHAPES["tiny"])
    q = checkpoint.read_f32("model.layers.0.self_attn.q_proj.weight")
    o = checkpoint.read_f32("model.layers.0.self_attn.o_proj.weight")
    assert not np.array_equal(q, o)
    assert np.linalg.norm(q) ** 2 / len(q) == pytest.approx(1.0, rel=0.05)
    assert (checkpoint.read_f32("model.norm.weight") == 1.0).all()
