"""Llama, and what differs from it in numbers alone, in PyTorch: float32 on the CPU, written without
looking at `gpu.models.llama`'s kernels, so that the two can be held against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu.checkpoint.reader import WeightSource
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.pytorch.attention import Ropes, Turn, attend
from gpu.pytorch.loading import Linear, Loader
from gpu.pytorch.mlp import Mlp, load_mlp
from gpu.pytorch.reach import UNTOUCHED, Untouched
from gpu.pytorch.statistics import UNWATCHED, Watcher

KV_TYPES = {"f32": torch.float32, "f16": torch.float16}

WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
MODEL_TYPES = ("llama", "qwen2", "mistral", "smollm3", "granite", "qwen3", *WITH_EXPERTS)


def expect_supported(config: ModelConfig) -> None:
    """Raises ModelError for an architecture that this backend has not."""
    if config.model_type not in MODEL_TYPES:
        raise ModelError(
            f"--backend torch runs {', '.join(MODEL_TYPES)} models, but this is "
            f"{config.model_type}; use --backend wgpu, which needs no GPU where a software device "
            "is installed"
        )


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: torch.Tensor
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    mlp_norm: torch.Tensor
    mlp: Mlp
    q_norm: torch.Tensor | None = None  # of each head (head_dim,), or of all as one
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of a step that belong to one sequence, and the blocks that hold its tokens."""

    which: torch.Tensor  # (n,) places in the step
    positions: torch.Tensor  # (n,)
    table: torch.Tensor  # (n_blocks,)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to run: `ids` and `positions` (n_rows,), whose they are, and what acts on them."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: list[SlotRows]
    reach: Untouched = UNTOUCHED


class TorchLlama:
    """Weights, and the paged KV cache of all sequences: keys and values
    (n_layers, n_blocks, BLOCK_TOKENS, n_kv_heads, head_dim)."""

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: WeightSource,
        dtype: str,
        kv_dtype: str,
        n_blocks: int,
        context: int,
        on_weights: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.config = config
        load = Loader(checkpoint, dtype, on_weights)
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embedding = load.vocabulary("model.embed_tokens.weight", vocab, hidden)
        self.layers = [_load_layer(config, load, i) for i in range(config.n_layers)]
        self.norm = load.vector("model.norm.weight", hidden)
        self.head = Linear(
            self.embedding
            if config.tie_embeddings
            else load.vocabulary("lm_head.weight", vocab, hidden)
        )
        self.n_weight_bytes = load.n_bytes
        self.conversion = str(load.conversion)
        pool = (config.n_layers, n_blocks, BLOCK_TOKENS, config.n_kv_heads, config.head_dim)
        self.keys = torch.zeros(pool, dtype=KV_TYPES[kv_dtype])
        self.values = torch.zeros_like(self.keys)
        self._ropes = Ropes(config, context)

    @torch.inference_mode()
    def logits(
        self, batch: Batch, sampled: torch.Tensor, watcher: Watcher = UNWATCHED
    ) -> torch.Tensor:
        """Run the rows; raw logits (n_sampled, vocab_size) of those at the places `sampled`."""
        turns, scale = self._ropes.turns(batch.positions), self.config.residual_scale
        embedding = self.embedding[batch.ids] * self.config.embedding_scale
        x = batch.reach.before(0, torch.zeros_like(embedding), embedding)
        watcher.add("embedding", x)
        watcher.mark()
        for i, layer in enumerate(self.layers):
            update = self._attention(
                i, self._norm(x, layer.attention_norm), batch, turns[i], watcher
            )
            update = batch.reach.attention(i, update * scale)
            watcher.add_update("attention", x, update)
            x = x + update
            watcher.mark()
            update = layer.mlp(self._norm(x, layer.mlp_norm), watcher, batch.reach)
            update = batch.reach.mlp(i, update * scale)
            update = batch.reach.before(i + 1, x, update)
            watcher.add_update("mlp", x, update)
            x = x + update
            watcher.add("residual", x)
            watcher.mark()
        return self.read_out(x[sampled])

    @torch.inference_mode()
    def read_out(self, x: torch.Tensor) -> torch.Tensor:
        """Final norm and output head: logits (n, vocab_size) of states (n, hidden_size)."""
        return self.head(self._norm(x, self.norm)) * self.config.logit_scale

    def copy_block(self, source: int, destination: int) -> None:
        """Keys and values of a block, all layers."""
        for pool in (self.keys, self.values):
            pool[:, destination] = pool[:, source]

    def _norm(self, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        """RMSNorm (Zhang and Sennrich 2019)."""
        return x * torch.rsqrt(x.square().mean(-1, True) + self.config.rms_norm_eps) * gain

    def _normed(self, x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        """Queries or keys (n, width), each stretch of as many numbers as there are gains by itself.
        None: they have no norm."""
        return x if gain is None else self._norm(x.view(len(x), -1, len(gain)), gain).flatten(1)

    def _attention(
        self,
        i: int,
        x: torch.Tensor,
        batch: Batch,
        turn: Turn | None,
        watcher: Watcher,
    ) -> torch.Tensor:
        """Grouped-query attention of each row over its own sequence."""
        layer, config = self.layers[i], self.config
        q, k = layer.q(x, batch.reach), layer.k(x, batch.reach)
        q, k = self._normed(q, layer.q_norm), self._normed(k, layer.k_norm)
        q = q.view(len(x), config.n_heads, config.head_dim)
        k = k.view(len(x), config.n_kv_heads, config.head_dim)
        v = layer.v(x, batch.reach).view(k.shape)
        if turn is not None:
            q, k = turn(q), turn(k)
        scale = config.head_dim**-0.5 if config.score_scale is None else config.score_scale
        window = config.window_of(i)
        attended = torch.empty_like(q)
        weights = []
        for slot in batch.slots:
            keys, values = self._append(i, slot, k[slot.which], v[slot.which])
            attended[slot.which], p = attend(
                q[slot.which], keys, values, slot.positions, scale, window
            )
            weights.append((slot.which, p))
        watcher.add_weights(weights, len(x))
        return layer.out(batch.reach.heads(i, attended).flatten(1), batch.reach)

    def _append(
        self, i: int, slot: SlotRows, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put keys and values of new rows into the sequence's blocks; gives those of the whole
        sequence so far, (n_context, n_kv_heads, head_dim) each."""
        n_context = int(slot.positions.max()) + 1
        at = slot.table[slot.positions // BLOCK_TOKENS], slot.positions % BLOCK_TOKENS
        blocks = slot.table[: blocks_for(n_context)]
        self.keys[i][at] = k.to(self.keys.dtype)
        self.values[i][at] = v.to(self.values.dtype)
        keys, values = (
            pool[i][blocks].flatten(0, 1)[:n_context].float() for pool in (self.keys, self.values)
        )
        return keys, values


# ---- loading ---------------------------------------------------------------------------------


def _load_layer(config: ModelConfig, load: Loader, i: int) -> Layer:
    hidden, head_dim = config.hidden_size, config.head_dim
    n_q, n_kv = config.n_heads * head_dim, config.n_kv_heads * head_dim
    layer = f"model.layers.{i}"
    attn = f"{layer}.self_attn"
    q_norm, k_norm = _load_head_norms(config, load, attn)
    return Layer(
        attention_norm=load.vector(f"{layer}.input_layernorm.weight", hidden),
        q=load.linear(f"{attn}.q_proj", n_q, hidden, config.attention_bias),
        k=load.linear(f"{attn}.k_proj", n_kv, hidden, config.attention_bias),
        v=load.linear(f"{attn}.v_proj", n_kv, hidden, config.attention_bias),
        out=load.linear(f"{attn}.o_proj", hidden, n_q, config.out_bias),
        mlp_norm=load.vector(f"{layer}.post_attention_layernorm.weight", hidden),
        mlp=load_mlp(config, load, i),
        q_norm=q_norm,
        k_norm=k_norm,
    )


def _load_head_norms(
    config: ModelConfig, load: Loader, attn: str
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """Gains of queries and keys: of each head, or of all heads together."""
    if config.model_type in ("qwen3", "qwen3_moe"):
        n_q = n_kv = config.head_dim
    elif config.model_type == "olmoe":
        n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    else:
        return None, None
    return load.vector(f"{attn}.q_norm.weight", n_q), load.vector(f"{attn}.k_norm.weight", n_kv)
