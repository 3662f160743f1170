"""Llama and the architectures that differ from it in hyperparameters, norms and experts alone, in
PyTorch: float32 on the CPU, written without looking at the shaders, so that each of the two
backends tests the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gpu.architectures.common.tensor_map import TensorMap
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.checkpoint.tensor_names import tensor_map_of
from gpu.config import ModelConfig
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.kv.copies import TokenMove
from gpu.pytorch.attention import Rotary, RotaryEmbeddings, attend, rounded, unseen_keys
from gpu.pytorch.interventions import NO_INTERVENTIONS, InterventionHooks
from gpu.pytorch.loading import Linear, Loader
from gpu.pytorch.mlp import Mlp, load_mlp
from gpu.pytorch.statistics import NO_WATCHER, Watcher
from gpu.step import KvVariant

OWN_KV = KvVariant()
KV_TYPES = {"f32": torch.float32, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; norms that the architecture has not are None."""

    q: Linear
    k: Linear
    v: Linear
    out: Linear
    mlp: Mlp
    pre_attention: torch.Tensor | None
    post_attention: torch.Tensor | None
    pre_mlp: torch.Tensor | None
    post_mlp: torch.Tensor | None
    q_norm: torch.Tensor | None = None  # (head_dim,) of each head, or of all heads as one row
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Rows of a step that belong to one sequence, and its page table."""

    which: torch.Tensor  # (n,) places in the step
    positions: torch.Tensor  # (n,)
    table: torch.Tensor  # (n_blocks,)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to run: `ids` and `positions` (n_rows,), their sequences, their interventions, and the
    change of what attention reads."""

    ids: torch.Tensor
    positions: torch.Tensor
    slots: list[SlotRows]
    hooks: InterventionHooks = NO_INTERVENTIONS
    kv: KvVariant = OWN_KV


class TorchLlama:
    """Weights and the paged KV cache of all sequences: keys and values
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
        dtypes: dict[str, str | None] = {}
        if isinstance(checkpoint, Checkpoint):
            inventory = Inventory.of(config, checkpoint, dtype)
            dtypes = {tensor.name: tensor.device_dtype for tensor in inventory.tensors}
        load = Loader(checkpoint, dtype, on_weights, dtypes)
        tensors = tensor_map_of(config, checkpoint)
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embedding = load.vocab_matrix(tensors.embedding, vocab, hidden)
        self.layers = [_load_layer(config, load, tensors, i) for i in range(config.n_layers)]
        self.norm = _load_norm(load, tensors, tensors.module_after("norm"), hidden)
        self.head = Linear(
            self.embedding
            if config.tie_embeddings
            else load.vocab_matrix(tensors.head, vocab, hidden)
        )
        self.n_weight_bytes = load.n_bytes
        self.conversion = str(load.conversion)
        pool = (config.n_layers, n_blocks, BLOCK_TOKENS, config.n_kv_heads, config.head_dim)
        self.keys = torch.zeros(pool, dtype=KV_TYPES[kv_dtype])
        self.values = torch.zeros_like(self.keys)
        self._ropes = RotaryEmbeddings(config, context)

    @torch.inference_mode()
    def logits(
        self, batch: Batch, sampled: torch.Tensor, watcher: Watcher = NO_WATCHER
    ) -> torch.Tensor:
        """Run the rows; return raw logits (n_sampled, vocab_size) of those numbered `sampled`."""
        rotaries, scale = self._ropes.at(batch.positions), self.config.residual_scale
        embedding = self.embedding[batch.ids] * self.config.embedding_scale
        x = batch.hooks.before(0, torch.zeros_like(embedding), embedding)
        watcher.add("embedding", x)
        watcher.mark()
        for i, layer in enumerate(self.layers):
            resid_pre, normed = x, self._norm(x, layer.pre_attention)
            watcher.keep(resid_pre=x, attn_norm=normed)
            update = self._attention(i, normed, batch, rotaries[i], watcher)
            update = batch.hooks.attention(i, self._norm(update * scale, layer.post_attention))
            watcher.add_update("attention", x, update)
            x = x + update
            watcher.mark()
            normed = self._norm(resid_pre if self.config.parallel_residual else x, layer.pre_mlp)
            watcher.keep(resid_mid=x, mlp_norm=normed)
            update = layer.mlp(normed, watcher, batch.hooks)
            update = batch.hooks.mlp(i, self._norm(update * scale, layer.post_mlp))
            watcher.keep(resid_post=x + update)
            update = batch.hooks.before(i + 1, x, update)
            watcher.add_update("mlp", x, update)
            x = x + update
            watcher.add("residual", x)
            watcher.mark()
        return self.unembed(x[sampled])

    @torch.inference_mode()
    def unembed(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, vocab_size) of states (n, hidden_size): final norm and output head."""
        return self.head(self.final_norm(x)) * self.config.logit_scale

    @torch.inference_mode()
    def final_norm(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the output head reads of states (n, hidden_size)."""
        return self._norm(x, self.norm)

    @torch.inference_mode()
    def head_out(self, i: int, attn_out: torch.Tensor) -> torch.Tensor:
        """Return what the output projection of layer i makes of each head of one row (n_heads,
        head_dim), without its bias: (n_heads, hidden_size)."""
        weight = self.layers[i].out.weight.view(-1, *attn_out.shape)
        return torch.einsum("hd,ohd->ho", attn_out, weight) * self.config.residual_scale

    def copy_block(self, source: int, destination: int) -> None:
        """Copy the keys and values of a block in all layers."""
        for pool in (self.keys, self.values):
            pool[:, destination] = pool[:, source]

    @torch.inference_mode()
    def set_rope(self, rotates: bool) -> None:
        """See `Runner.set_rope`: all positions are switched together."""
        self._ropes.rotates = rotates

    def shift_kv(self, moves: Sequence[TokenMove]) -> None:
        """Move tokens to other positions: rotate their keys by the difference, copy their
        values."""
        sources, destinations, shifts = torch.tensor(moves).T
        flat = [pool.flatten(1, 2) for pool in (self.keys, self.values)]
        keys, values = (pool[:, sources] for pool in flat)
        for i, rotary in enumerate(self._ropes.at(shifts, scaled=False)):
            rotated = keys[i] if rotary is None else rotary(keys[i].float()).to(keys.dtype)
            flat[0][i, destinations] = rotated
        flat[1][:, destinations] = values

    def block(self, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of the keys and values of a block in all layers."""
        return self.keys[:, block].clone(), self.values[:, block].clone()

    def set_block(self, block: int, held: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Write the keys and values of a block in all layers."""
        self.keys[:, block], self.values[:, block] = held

    def _norm(self, x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        """RMSNorm (Zhang and Sennrich 2019); x itself where there is no norm."""
        if gain is None:
            return x
        return x * torch.rsqrt(x.square().mean(-1, True) + self.config.norm_eps) * gain

    def _qk_norm(self, x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        """RMSNorm of queries or keys (n, width) in runs of as many numbers as there are gains."""
        return x if gain is None else self._norm(x.view(len(x), -1, len(gain)), gain).flatten(1)

    def _attention(
        self,
        i: int,
        x: torch.Tensor,
        batch: Batch,
        rotary: Rotary | None,
        watcher: Watcher,
    ) -> torch.Tensor:
        """Grouped-query attention of each row over its own sequence."""
        layer, config = self.layers[i], self.config
        q, k = layer.q(x, batch.hooks), layer.k(x, batch.hooks)
        watcher.keep(q=q, k=k)
        q, k = self._qk_norm(q, layer.q_norm), self._qk_norm(k, layer.k_norm)
        q = q.view(len(x), config.n_heads, config.head_dim)
        k = k.view(len(x), config.n_kv_heads, config.head_dim)
        v = layer.v(x, batch.hooks).view(k.shape)
        if rotary is not None:
            q, k = rotary(q), rotary(k)
        watcher.keep(v=v, rot_q=q)
        scale = config.head_dim**-0.5 if config.attn_scale is None else config.attn_scale
        window, kv = batch.kv.window_of(config.sliding_window_of(i)), batch.kv
        attn_out = torch.empty_like(q)
        weights = []
        for slot in batch.slots:
            keys, values = self._append(i, slot, k[slot.which], v[slot.which], kv)
            watcher.keep(keys=keys, values=values)
            unseen = unseen_keys(slot.positions, len(keys), window)
            unseen = unseen[:, None].expand(-1, config.n_heads, -1)
            unseen = batch.hooks.of(slot.which).unseen(i, unseen)
            attn_out[slot.which], p = attend(q[slot.which], keys, values, unseen, scale)
            weights.append((slot.which, p))
        watcher.add_weights(weights, len(x))
        attn_out = batch.hooks.heads(i, attn_out)
        watcher.keep(attn_out=attn_out)
        return layer.out(attn_out.flatten(1), batch.hooks)

    def _append(
        self, i: int, slot: SlotRows, k: torch.Tensor, v: torch.Tensor, kv: KvVariant
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of new rows, rounded by `kv`, into the sequence's blocks; return
        those of the whole sequence so far, (n_context, n_kv_heads, head_dim) each."""
        n_context = int(slot.positions.max()) + 1
        at = slot.table[slot.positions // BLOCK_TOKENS], slot.positions % BLOCK_TOKENS
        blocks = slot.table[: blocks_for(n_context)]
        self.keys[i][at] = rounded(k.to(self.keys.dtype), kv.keys)
        self.values[i][at] = rounded(v.to(self.values.dtype), kv.values)
        keys, values = (
            pool[i][blocks].flatten(0, 1)[:n_context].float() for pool in (self.keys, self.values)
        )
        return keys, values


# ---- loading ---------------------------------------------------------------------------------


def _load_layer(config: ModelConfig, load: Loader, tensors: TensorMap, i: int) -> Layer:
    hidden, head_dim = config.hidden_size, config.head_dim
    n_q, n_kv = config.n_heads * head_dim, config.n_kv_heads * head_dim
    q, k, v = tensors.modules(i, "attention", "attn.qkv")
    (out,) = tensors.modules(i, "attention", "attn.out")
    q_norm, k_norm = _load_qk_norms(config, load, tensors, i)

    def norm(*ops: str) -> torch.Tensor | None:
        modules = tensors.modules(i, "norm", *ops)
        return _load_norm(load, tensors, next(iter(modules)), hidden) if modules else None

    return Layer(
        pre_attention=norm("attn.qkv"),
        q=load.linear(q, n_q, hidden, config.attention_bias),
        k=load.linear(k, n_kv, hidden, config.attention_bias),
        v=load.linear(v, n_kv, hidden, config.attention_bias),
        out=load.linear(out, hidden, n_q, config.out_bias),
        mlp=load_mlp(config, load, tensors, i),
        post_attention=norm("attn.out.norm"),
        pre_mlp=norm("mlp.gate_up", "mlp.router"),
        post_mlp=norm("mlp.down.norm"),
        q_norm=q_norm,
        k_norm=k_norm,
    )


def _load_norm(load: Loader, tensors: TensorMap, module: str, n: int) -> torch.Tensor:
    gain = load.vector(f"{module}.weight", n)
    return gain + 1.0 if tensors.norm_plus_one else gain


def _load_qk_norms(
    config: ModelConfig, load: Loader, tensors: TensorMap, i: int
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """Load the gains of queries and keys, for each head or for all heads as one row."""
    modules = list(tensors.modules(i, "norm", "attn.qk_norm_rope"))
    if not modules:
        return None, None
    n_q, n_k = (config.n_heads, config.n_kv_heads) if tensors.qk_norm_all_heads else (1, 1)
    q_norm, k_norm = modules
    return (
        _load_norm(load, tensors, q_norm, n_q * config.head_dim),
        _load_norm(load, tensors, k_norm, n_k * config.head_dim),
    )
