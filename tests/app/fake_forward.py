"""Forward pass of the fake engine: random vectors of the shapes of its model, which belong together
as a model's do."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from gpu import EngineInfo
from gpu.config import ModelConfig
from gpu.inspection.forward_pass import forward_reading
from gpu.inspection.requests import VECTORS, Answer, ForwardPass
from gpu.step import Floats, InspectionResult, LayerActivations

MODEL = Path(__file__).parents[2] / "app" / "tale" / "model"
INNER = 24


@cache
def _config() -> ModelConfig:
    return ModelConfig.from_folder(MODEL)


def fake_forward(question: ForwardPass, info: EngineInfo, rng: np.random.Generator) -> Answer:
    """Return the engine's own reading of random activations."""
    model = info.model
    n_heads, n_kv, head_dim, width = (
        model.n_heads, model.n_kv_heads, model.head_dim, model.hidden_size,
    )  # fmt: skip
    n = question.position + 1

    def vectors(*shape: int) -> Floats:
        return rng.normal(0.0, 1.0, shape).astype(np.float32)

    q, keys, values = vectors(n_heads, head_dim), vectors(n, head_dim), vectors(n, head_dim)
    scores = keys @ q[question.head] * head_dim**-0.5
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    pre, head_out = vectors(width), vectors(n_heads, width)
    mid = pre + head_out.sum(axis=0)
    gate, up = vectors(INNER), vectors(INNER)
    attn_out = vectors(n_heads, head_dim)
    attn_out[question.head] = weights @ values
    layer = LayerActivations(
        resid_pre=pre,
        resid_mid=mid,
        resid_post=mid + vectors(width),
        attn_norm=pre / np.sqrt(np.square(pre).mean()),
        mlp_norm=mid / np.sqrt(np.square(mid).mean()),
        q=q,
        k=vectors(n_kv, head_dim),
        v=vectors(n_kv, head_dim),
        rot_q=q,
        keys=keys,
        values=values,
        first_key=0,
        attn_out=attn_out,
        head_out=head_out,
        has_post_norms=False,
        gate=gate,
        up=up,
        ffn_hidden=gate / (1 + np.exp(-gate)) * up,
    )
    attention = np.zeros((1, model.n_layers, n_heads, n), np.float32)
    attention[0, question.layer, question.head] = weights
    found = InspectionResult(
        attention=attention,
        states=vectors(1, model.n_layers + 1, width),
        last_hidden=vectors(1, width),
        layer=layer,
    )
    config = replace(_config(), n_heads=n_heads, n_kv_heads=n_kv, head_dim=head_dim)
    logits = vectors(len(VECTORS), model.vocab_size)
    return forward_reading(found, logits, question, config)
