"""First weights of the bundled mixture of experts: those of the dense bundled model, cut into
experts.

The idea is sparse upcycling (Komatsuzaki et al. 2022, "Sparse Upcycling: Training
Mixture-of-Experts from Dense Checkpoints"), with experts smaller than the MLP they come from (Zhang
et al. 2021, "MoEfication: Transformer Feed-forward Layers are Mixtures of Experts"). In each layer

    router     the centres of a spherical k-means of what the MLP reads
    gate, up   of each expert: the hidden units that matter most to the tokens routed to it
    down       of all experts together: least squares against what the MLP gave
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from tests.tale.corpus import ENDOFTEXT, IM_END
from tests.tale.model import MLP, Tale, TaleConfig
from tests.tale.packing import PADDING, Batch

N_EXPERTS, EXPERTS_PER_TOKEN, EXPERT_WIDTH = 8, 2, 112
ROUTER_SPREAD = 1.0
"""Standard deviation of a token's router logits at the beginning."""
ROUNDS = 20
"""Of the k-means."""


@dataclass(frozen=True, slots=True)
class MlpSample:
    """Sample of an MLP: input x (n, width), hidden units (n, intermediate), output y (n, width)."""

    x: Tensor
    hidden: Tensor
    y: Tensor


def mixture_config(dense: TaleConfig) -> Any:
    """Return the configuration of the mixture: that of the dense model, with experts."""
    return transformers.MixtralConfig(
        vocab_size=dense.vocab_size,
        hidden_size=dense.hidden,
        intermediate_size=EXPERT_WIDTH,
        num_hidden_layers=dense.n_layers,
        num_attention_heads=dense.n_heads,
        num_key_value_heads=dense.n_kv_heads,
        head_dim=dense.head_dim,
        max_position_embeddings=dense.max_positions,
        rms_norm_eps=dense.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": dense.rope_theta},
        num_local_experts=N_EXPERTS,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
        sliding_window=None,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=IM_END,
        pad_token_id=ENDOFTEXT,
    )


def mlps_of(dense: Tale) -> list[MLP]:
    return [cast("MLP", layer.mlp) for layer in dense.layers]


@torch.inference_mode()
def mlp_samples(dense: Tale, batches: list[Batch]) -> list[MlpSample]:
    """Return what the MLP of each layer did to the tokens of `batches`."""
    read: list[list[Tensor]] = [[] for _ in dense.layers]
    handles = [
        mlp.register_forward_hook(lambda _, inputs, out, i=i: read[i].append(inputs[0]))
        for i, mlp in enumerate(mlps_of(dense))
    ]
    for batch in batches:
        dense(batch.ids, batch.positions, batch.mask)
    for handle in handles:
        handle.remove()
    real = torch.cat([(batch.document != PADDING).flatten() for batch in batches])
    samples = []
    for mlp, inputs in zip(mlps_of(dense), read, strict=True):
        x = torch.cat([each.flatten(0, 1) for each in inputs])[real]
        hidden = F.silu(mlp.gate_proj(x)) * mlp.up_proj(x)
        samples.append(MlpSample(x, hidden, mlp.down_proj(hidden)))
    return samples


def centres_of(x: Tensor, n: int) -> Tensor:
    """Return `n` centres of x (rows, width) by spherical k-means around the mean (Dhillon and Modha
    2001); an empty cluster takes the row that is farthest from all centres."""
    rows = F.normalize(x - x.mean(0), dim=-1)
    centres = rows[torch.randperm(len(rows))[:n]]
    for _ in range(ROUNDS):
        nearness, nearest = (rows @ centres.T).max(-1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        empty = torch.bincount(nearest, minlength=n) == 0
        sums[empty] = rows[nearness.argsort()[: int(empty.sum())]]
        centres = F.normalize(sums, dim=-1)
    return centres


def assign(router: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the experts of each row, and the gate of every expert, 0 if it was not chosen."""
    logits = x @ router.T
    top, chosen = logits.topk(EXPERTS_PER_TOKEN, dim=-1)
    gates = torch.zeros_like(logits).scatter(-1, chosen, top.softmax(-1))
    return chosen, gates


@torch.no_grad()
def set_experts(block: Any, mlp: MLP, sample: MlpSample) -> None:
    """Set router and experts of a Mixtral block to stand for `mlp` on `sample`."""
    centres = centres_of(sample.x, N_EXPERTS)
    router = centres * (ROUTER_SPREAD / (sample.x @ centres.T).std(-1).mean())
    _, gates = assign(router, sample.x)
    block.gate.weight.copy_(router)
    weight = sample.hidden.abs() * mlp.down_proj.weight.norm(dim=0)
    features = []
    for expert in range(N_EXPERTS):
        units = weight[gates[:, expert] > 0].sum(0).topk(EXPERT_WIDTH).indices
        gate_up = torch.cat([mlp.gate_proj.weight[units], mlp.up_proj.weight[units]])
        block.experts.gate_up_proj[expert] = gate_up
        features.append(gates[:, expert, None] * sample.hidden[:, units])
    found = torch.linalg.lstsq(torch.cat(features, dim=-1), sample.y).solution
    block.experts.down_proj.copy_(found.view(N_EXPERTS, EXPERT_WIDTH, -1).transpose(1, 2))


def upcycle(dense: Tale, batches: list[Batch]) -> Any:
    """Return a Mixtral model made of the dense one, fitted on `batches`."""
    model: Any = transformers.MixtralForCausalLM(mixture_config(dense.config))
    shared = {f"model.{n}": p for n, p in dense.state_dict().items() if ".mlp." not in n}
    model.load_state_dict(shared, strict=False)
    model.tie_weights()
    for layer, mlp, sample in zip(
        model.model.layers, mlps_of(dense), mlp_samples(dense, batches), strict=True
    ):
        set_experts(layer.mlp, mlp, sample)
    return model.float()
