"""Llama, and what differs from it in numbers alone, in PyTorch: float32 on the CPU, written without
looking at `gpu.models.llama`'s kernels, so that the two can be held against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpu.checkpoint.packing import FORMATS, pack, unpack
from gpu.checkpoint.reader import WeightSource
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.kv.blocks import BLOCK_TOKENS, blocks_for
from gpu.pytorch.attention import Ropes, Turn, attend
from gpu.pytorch.reach import UNTOUCHED, Untouched
from gpu.pytorch.statistics import UNWATCHED, Watcher
from gpu.step import Floats

KV_DTYPES = {"f32": torch.float32, "f16": torch.float16}


MODEL_TYPES = ("llama", "qwen2", "mistral", "smollm3", "granite", "qwen3")


def expect_supported(config: ModelConfig) -> None:
    """Raises ModelError for an architecture that this backend has not."""
    if config.model_type not in MODEL_TYPES:
        raise ModelError(
            f"--backend torch runs {', '.join(MODEL_TYPES)} models, but this is "
            f"{config.model_type}; use --backend wgpu, which needs no GPU where a software device "
            "is installed"
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """x → x · weightᵀ + bias; weight (n_out, n_in)."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: torch.Tensor
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate: Linear
    up: Linear
    down: Linear
    q_norm: torch.Tensor | None = None  # (head_dim,)
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
        n_blocks: int,
        context: int,
        on_bytes: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.config = config
        load = _Loader(checkpoint, dtype, on_bytes)
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
        pool = (config.n_layers, n_blocks, BLOCK_TOKENS, config.n_kv_heads, config.head_dim)
        self.keys = torch.zeros(pool, dtype=KV_DTYPES[FORMATS[dtype].kv])
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
            update = _swiglu(layer, self._norm(x, layer.mlp_norm))
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
        q = layer.q(x).view(len(x), config.n_heads, config.head_dim)
        k = layer.k(x).view(len(x), config.n_kv_heads, config.head_dim)
        v = layer.v(x).view(k.shape)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
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
        return layer.out(batch.reach.heads(i, attended).flatten(1))

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


def _swiglu(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    """down(silu(gate(x)) · up(x)) (Shazeer 2020, "GLU Variants Improve Transformer")."""
    return layer.down(functional.silu(layer.gate(x)) * layer.up(x))


# ---- loading ---------------------------------------------------------------------------------


class _Loader:
    """Reads tensors of the shapes that the configuration promises, as float32. Matrices go through
    the packing of `dtype` and back, so that they hold the numbers that the shaders compute with."""

    def __init__(
        self, checkpoint: WeightSource, dtype: str, on_bytes: Callable[[int], None]
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._on_bytes = on_bytes
        self.n_bytes = 0

    def vector(self, name: str, n: int) -> torch.Tensor:
        return self._done(self._read(name, (n,)))

    def matrix(self, name: str, n_out: int, n_in: int) -> torch.Tensor:
        return self._done(_packed_and_back(self._dtype, self._read(name, (n_out, n_in)), name))

    def vocabulary(self, name: str, n: int, width: int) -> torch.Tensor:
        """An embedding or output matrix."""
        dtype = FORMATS[self._dtype].vocabulary
        return self._done(_packed_and_back(dtype, self._read(name, (n, width)), name))

    def linear(self, name: str, n_out: int, n_in: int, bias: bool) -> Linear:
        weight = self.matrix(f"{name}.weight", n_out, n_in)
        return Linear(weight, self.vector(f"{name}.bias", n_out) if bias else None)

    def _read(self, name: str, shape: tuple[int, ...]) -> Floats:
        found = self._checkpoint.shape(name)
        if found != shape:
            raise ModelError(f"tensor {name} has shape {found}, but the config makes it {shape}")
        return self._checkpoint.read_f32(name)

    def _done(self, values: Floats) -> torch.Tensor:
        data = torch.from_numpy(values)
        self.n_bytes += data.nbytes
        self._on_bytes(data.nbytes)
        return data


def _packed_and_back(dtype: str, rows: Floats, name: str) -> Floats:
    if dtype == "f32":
        return rows
    return unpack(dtype, pack(dtype, rows, name), rows.shape[1])


def _load_layer(config: ModelConfig, load: _Loader, i: int) -> Layer:
    hidden, inner = config.hidden_size, config.intermediate_size
    n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    layer = f"model.layers.{i}"
    attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    has_norms = config.model_type == "qwen3"
    return Layer(
        attention_norm=load.vector(f"{layer}.input_layernorm.weight", hidden),
        q=load.linear(f"{attn}.q_proj", n_q, hidden, config.attention_bias),
        k=load.linear(f"{attn}.k_proj", n_kv, hidden, config.attention_bias),
        v=load.linear(f"{attn}.v_proj", n_kv, hidden, config.attention_bias),
        out=load.linear(f"{attn}.o_proj", hidden, n_q, config.out_bias),
        mlp_norm=load.vector(f"{layer}.post_attention_layernorm.weight", hidden),
        gate=load.linear(f"{mlp}.gate_proj", inner, hidden, config.mlp_bias),
        up=load.linear(f"{mlp}.up_proj", inner, hidden, config.mlp_bias),
        down=load.linear(f"{mlp}.down_proj", hidden, inner, config.mlp_bias),
        q_norm=load.vector(f"{attn}.q_norm.weight", config.head_dim) if has_norms else None,
        k_norm=load.vector(f"{attn}.k_norm.weight", config.head_dim) if has_norms else None,
    )
