"""Encoders in PyTorch: float32 on the CPU, written without looking at the shaders, so that each of
the two backends tests the other.

    x = norm(embedding [+ position + token type])
    x = [norm](x + out(attention([norm](x))))
    x = [norm](x + mlp([norm](x)))

BERT and MPNet have the outer norms, ModernBERT the inner ones and one after the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from gpu.architectures.common.tensor_map import TensorMap
from gpu.checkpoint.reader import Checkpoint, WeightSource
from gpu.checkpoint.tensor_names import has_biases, tensor_map_of
from gpu.config import ModelConfig
from gpu.config.sentence_transformers import SentenceConfig, read_encoder
from gpu.kv.blocks import MAX_ATTENDING
from gpu.pytorch.attention import RotaryEmbeddings, attend
from gpu.pytorch.loading import Linear, Loader
from gpu.step import MAX_ROWS, Floats

MAX_DISTANCE = 128
"""Distance from which on keys share a position bias (T5, Raffel et al. 2020)."""


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """LayerNorm (Ba et al. 2016)."""

    gain: torch.Tensor
    bias: torch.Tensor | None
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], self.gain, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; norms that the architecture has not are None. `up`: with gates, these
    come first."""

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    pre_attention: LayerNorm | None
    post_attention: LayerNorm | None
    pre_mlp: LayerNorm | None
    post_mlp: LayerNorm | None


class TorchEncoder:
    """An encoder and its pooling. See `gpu.runner.Encoder`; a pass has one text, a piece is a
    layer."""

    def __init__(
        self, config: ModelConfig, checkpoint: WeightSource, sentence: SentenceConfig, name: str
    ) -> None:
        self.name, self.config, self.sentence = name, config, sentence
        self.max_tokens = sentence.max_tokens(config, MAX_ROWS)
        self.max_attending = min(self.max_tokens, MAX_ATTENDING)
        load, tensors = Loader(checkpoint, "f32", lambda n: None), tensor_map_of(config, checkpoint)
        layers = _EncoderLoader(config, load, tensors, checkpoint)
        self._embedding = load.vocab_matrix(
            tensors.embedding, config.vocab_size, config.hidden_size
        )
        self._positions = layers.positions()
        self._norm = layers.norm(None, "embed.norm")
        self._layers = [layers.layer(i) for i in range(config.n_layers)]
        self._final_norm = layers.norm(None, "final_norm")
        self._position_biases = layers.position_biases()
        self._ropes = RotaryEmbeddings(config, self.max_tokens)
        self._n_weight_bytes = load.n_bytes

    @classmethod
    def load(cls, folder: Path) -> TorchEncoder:
        """Load a folder as sentence-transformers and transformers save it. Raises ModelError."""
        config, sentence = read_encoder(folder)
        return cls(config, Checkpoint.open(folder), sentence, folder.resolve().name)

    @property
    def n_bytes(self) -> int:
        return self._n_weight_bytes

    def n_fitting(self, lengths: Sequence[int], most_rows: int) -> int:
        return 1

    def vectors(
        self, texts: Sequence[Sequence[int]], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        states = []
        for ids in texts:
            x = self._embed(ids)
            for i in range(self.config.n_layers):
                x, _ = self._run_layer(i, x)
                if in_pieces:
                    yield
            states.append(_normed(x, self._final_norm))
            yield
        return self.sentence.pool(torch.cat(states).numpy(), [len(ids) for ids in texts])

    def attention(
        self, ids: Sequence[int], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        x, weights = self._embed(ids), []
        for i in range(self.config.n_layers):
            x, of_layer = self._run_layer(i, x)
            weights.append(of_layer.swapaxes(0, 1))
            if in_pieces:
                yield
        yield
        found: Floats = torch.stack(weights).numpy()
        return found

    @torch.inference_mode()
    def _embed(self, ids: Sequence[int]) -> torch.Tensor:
        x = self._embedding[torch.tensor(list(ids))]
        if self._positions is not None:
            x = x + self._positions[: len(ids)]
        return _normed(x, self._norm)

    @torch.inference_mode()
    def _run_layer(self, i: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states after layer i, and its attention weights (n, n_heads, n)."""
        layer = self._layers[i]
        heads, weights = self._heads(i, _normed(x, layer.pre_attention))
        x = _normed(x + layer.out(heads), layer.post_attention)
        y = layer.up(_normed(x, layer.pre_mlp))
        if y.shape[-1] == self.config.intermediate_size:
            hidden = self._act(y)
        else:
            gate, up = y.chunk(2, dim=-1)
            hidden = self._act(gate) * up
        return _normed(x + layer.down(hidden), layer.post_mlp), weights

    def _act(self, x: torch.Tensor) -> torch.Tensor:
        is_tanh = self.config.activation == "gelu_tanh"
        return functional.gelu(x, approximate="tanh" if is_tanh else "none")

    def _heads(self, i: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return bidirectional attention (n, n_heads · head_dim), and its weights."""
        config, at = self.config, torch.arange(len(x))
        heads = self._layers[i].qkv(x).view(len(x), 3, config.n_heads, config.head_dim)
        q, k, v = heads.unbind(1)
        if (rotary := self._ropes.at(at)[i]) is not None:
            q, k = rotary(q), rotary(k)
        distances = at - at[:, None]  # of a key from a row
        window = config.sliding_window_of(i) or len(x)
        biases = None
        if self._position_biases is not None:
            buckets = distances.clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
            biases = self._position_biases[buckets].permute(0, 2, 1)
        unseen = (distances.abs() >= window)[:, None]
        attn_out, weights = attend(q, k, v, unseen, config.head_dim**-0.5, biases)
        return attn_out.flatten(1), weights


def _normed(x: torch.Tensor, norm: LayerNorm | None) -> torch.Tensor:
    return x if norm is None else norm(x)


# ---- loading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _EncoderLoader:
    """Loads the weights of an encoder by the roles of its modules."""

    config: ModelConfig
    load: Loader
    tensors: TensorMap
    checkpoint: WeightSource

    def positions(self) -> torch.Tensor | None:
        """Return what is added to the embeddings by position, (context, hidden_size); None if there
        is nothing. The vector of the first token type is part of it."""
        roles = self.tensors.before.items()
        names = [f"{module}.weight" for module, role in roles if role.layout == "table"]
        if not names:
            return None
        first, hidden = self.config.first_position, self.config.hidden_size
        table = self.load.float32_matrix(names[0], first + self.config.context, hidden)[first:]
        for name in names[1:]:
            n_types = self.checkpoint.shape(name)[0]
            table = table + self.load.float32_matrix(name, n_types, hidden)[0]
        return table

    def position_biases(self) -> torch.Tensor | None:
        """Return the biases of keys at distances -MAX_DISTANCE … MAX_DISTANCE, (2 · MAX_DISTANCE +
        1, n_heads)."""
        n_buckets = self.config.relative_attention_num_buckets
        if not n_buckets:
            return None
        roles = self.tensors.before.items()
        module = next(module for module, role in roles if role.op == "position_biases")
        biases = self.load.float32_matrix(f"{module}.weight", n_buckets, self.config.n_heads)
        return biases[_buckets(n_buckets)]

    def norm(self, i: int | None, *ops: str) -> LayerNorm | None:
        """Return the norm of these dispatches in layer i, or (None) outside of the layers; None: it
        has none."""
        roles = self.tensors.roles(None) if i is None else self.tensors.modules(i, "norm", *ops)
        for module, role in roles.items():
            if role.op in ops:
                hidden, bias = self.config.hidden_size, None
                gain = self.load.vector(f"{module}.weight", hidden)
                if has_biases(self.config, role):
                    bias = self.load.vector(f"{module}.bias", hidden)
                return LayerNorm(gain, bias, self.config.norm_eps)
        return None

    def layer(self, i: int) -> Layer:
        config, hidden = self.config, self.config.hidden_size
        inner, bias = config.intermediate_size, config.attention_bias
        (out,) = self.tensors.modules(i, "attention", "attn.out")
        (down,) = self.tensors.modules(i, "mlp", "mlp.down")
        gated = list(self.tensors.modules(i, "mlp", "mlp.gate_up"))
        (up,) = gated or self.tensors.modules(i, "mlp", "mlp.up")
        qkv = list(self.tensors.modules(i, "attention", "attn.qkv"))
        parts = [self.load.linear(m, 3 * hidden // len(qkv), hidden, bias) for m in qkv]
        biases = [part.bias for part in parts if part.bias is not None]
        return Layer(
            qkv=Linear(torch.cat([p.weight for p in parts]), torch.cat(biases) if biases else None),
            out=self.load.linear(out, hidden, hidden, config.out_bias),
            up=self.load.linear(up, inner * (2 if gated else 1), hidden, config.mlp_bias),
            down=self.load.linear(down, hidden, inner, config.mlp_bias),
            pre_attention=self.norm(i, "attn.norm"),
            post_attention=self.norm(i, "attn.out.norm"),
            pre_mlp=self.norm(i, "mlp.norm"),
            post_mlp=self.norm(i, "mlp.down.norm"),
        )


def _buckets(n_buckets: int) -> torch.Tensor:
    """Return the buckets of distances -MAX_DISTANCE … MAX_DISTANCE of a key from a row (T5, Raffel
    et al. 2020): half are for keys after the row; near distances have one each, others share one
    with those of about the same logarithm."""
    distances = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    half = n_buckets // 2
    exact = half // 2
    n = distances.abs()
    scale = (half - exact) / math.log(MAX_DISTANCE / exact)
    far = exact + (torch.log(n.clamp(min=1) / exact) * scale + 1e-6).long()
    side = torch.where(distances > 0, half, 0)
    return side + torch.where(n < exact, n, far.clamp(max=half - 1))
