"""Answer to `gpu.inspection.requests.ForwardPass`, of activations that were read back."""

from __future__ import annotations

import numpy as np

from gpu.config import ModelConfig
from gpu.inspection.readings import most_likely
from gpu.inspection.requests import Answer, Array, ForwardPass
from gpu.reference.ops import ACTIVATIONS, cosine, soft_cap
from gpu.reference.softmax import log_softmax
from gpu.step import Floats, InspectionResult

AS_READ = (
    "resid_pre", "attn_norm", "q", "k", "v", "rot_q", "keys", "values", "attn_out", "resid_mid",
    "mlp_norm", "gate", "up", "ffn_hidden", "resid_post",
)  # fmt: skip
"""Fields of `LayerActivations` that are arrays of the answer."""


def compared_vectors(found: InspectionResult) -> Floats:
    """Return `gpu.inspection.requests.VECTORS` of the one row (6, hidden_size)."""
    assert found.layer is not None
    assert found.states is not None
    pre, mid, post = found.layer.resid_pre, found.layer.resid_mid, found.layer.resid_post
    return np.stack([pre, mid - pre, mid, post - mid, post, found.states[0, -1]])


def forward_reading(
    found: InspectionResult, logits: Floats, question: ForwardPass, config: ModelConfig
) -> Answer:
    """Return the arrays of a question. `found`: attention to all tokens up to the last, states,
    last hidden state and layer of the one row; `logits` (6, vocab_size): of `compared_vectors`."""
    layer, states, last = found.layer, found.states, found.last_hidden
    assert layer is not None
    assert states is not None
    assert last is not None
    assert found.attention is not None
    weights = found.attention[0, question.layer, question.head, layer.first_key :]
    logs = log_softmax(logits)
    near = most_likely(logs, question.top)
    scale = config.head_dim**-0.5 if config.attn_scale is None else config.attn_scale
    act = ACTIVATIONS[config.activation]
    dots = layer.keys.astype(np.float64) @ layer.rot_q[question.head]
    head_out = layer.head_out.astype(np.float64)
    update = layer.resid_mid.astype(np.float64) - layer.resid_pre
    arrays = {
        "embedding": states[0, 0],
        **{name: values for name in AS_READ if (values := getattr(layer, name)) is not None},
        **({} if layer.gate is None else {"act": act(layer.gate.astype(np.float64))}),
        "dots": dots,
        "scores": soft_cap(dots * scale, config.attn_logit_softcap),
        "weights": weights,
        "head_out": layer.head_out[question.head],
        "head_norms": np.linalg.norm(head_out, axis=1),
        "head_cosines": cosine(head_out, update[None]),
        "final": states[0, -1],
        "final_norm": last[0],
        "near_ids": near,
        "near_logits": np.take_along_axis(logits, near, -1),
        "near_probabilities": np.exp(np.take_along_axis(logs, near, -1)),
    }
    info = {
        "layer": question.layer,
        "head": question.head,
        "kv_head": question.head * config.n_kv_heads // config.n_heads,
        "first_key": layer.first_key,
        "scale": scale,
        "softcap": config.attn_logit_softcap,
        "activation": config.activation,
        "rope": config.rope_of(question.layer) is not None,
        "learned_positions": config.rotary_dim == 0,
        "embedding_scale": config.embedding_scale,
        "parallel": config.parallel_residual,
        "post_norms": layer.has_post_norms,
    }
    return Answer(info, tuple(Array.of(name, values) for name, values in arrays.items()))
