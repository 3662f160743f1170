"""T5 in PyTorch: float32 on the CPU, written without looking at the shaders, so that each of the
two backends tests the other.

    x = x + out(attention(norm(x)))        scores are not scaled, and have a bias by distance
    x = x + out(cross_attention(norm(x)))  decoder only: over the encoder's states, without a bias
    x = x + mlp(norm(x))
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

from gpu.architectures.common.tensor_map import TensorMap
from gpu.checkpoint.open_model import open_encoder_decoder
from gpu.checkpoint.reader import WeightSource
from gpu.checkpoint.tensor_names import decoder_map_of, tensor_map_of
from gpu.config import ModelConfig
from gpu.config.encoder_decoder import EncoderDecoderConfig
from gpu.kv.blocks import MAX_ATTENDING
from gpu.pytorch.attention import attend
from gpu.pytorch.loading import Linear, Loader
from gpu.runner import DecodedToken
from gpu.step import Floats


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """RMSNorm (Zhang & Sennrich 2019)."""

    gain: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.gain, self.eps)


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections of an attention, the norm before them, and biases (2 · max_distance + 1, n_heads)
    of keys by their distance from the row; None: it has none."""

    norm: RmsNorm
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    biases: torch.Tensor | None = None

    def biases_of(self, at: torch.Tensor, n_keys: int) -> torch.Tensor | None:
        """Return the biases of rows at these positions, (n_rows, n_heads, n_keys)."""
        if self.biases is None:
            return None
        most = len(self.biases) // 2
        distances = torch.arange(n_keys) - at[:, None]
        return self.biases[distances.clamp(-most, most) + most].permute(0, 2, 1)


@dataclass(frozen=True, slots=True)
class Mlp:
    """out(act(wi(x))), or with a gate out(act(gate(x)) · wi(x))."""

    norm: RmsNorm
    gate: Linear | None
    up: Linear
    down: Linear
    activation: str

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if self.gate is None:
            return self.down(self._act(self.up(y)))
        return self.down(self._act(self.gate(y)) * self.up(y))

    def _act(self, x: torch.Tensor) -> torch.Tensor:
        if self.activation == "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        return functional.silu(x) if self.activation == "silu" else functional.relu(x)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; `cross`: of the decoder."""

    attention: Attention
    cross: Attention | None
    mlp: Mlp


@dataclass(slots=True)
class Cache:
    """Keys and values of one attention, (n, n_heads, head_dim) each."""

    keys: torch.Tensor
    values: torch.Tensor

    def append(self, keys: torch.Tensor, values: torch.Tensor, at: int) -> None:
        """Put keys and values after the first `at`; later ones are forgotten."""
        self.keys = torch.cat((self.keys[:at], keys))
        self.values = torch.cat((self.values[:at], values))


@dataclass(slots=True)
class _Caches:
    """Caches of each layer of the decoder: of the encoder's states, and of its own tokens."""

    source: list[Cache] = field(default_factory=list)
    written: list[Cache] = field(default_factory=list)


class TorchEncoderDecoder:
    """An encoder-decoder. See `gpu.runner.EncoderDecoder`; a piece is a layer."""

    max_tokens = max_written = MAX_ATTENDING

    def __init__(self, config: EncoderDecoderConfig, checkpoint: WeightSource, name: str) -> None:
        self.name, self.config = name, config
        load, encoder, decoder = (
            Loader(checkpoint, "f32", lambda n: None),
            config.encoder,
            config.decoder,
        )
        maps = tensor_map_of(encoder, checkpoint), decoder_map_of(decoder)
        of_encoder, of_decoder = (
            _T5Loader(one, load, tensors, causal=tensors is maps[1])
            for one, tensors in zip((encoder, decoder), maps, strict=True)
        )
        size = (decoder.vocab_size, decoder.hidden_size)
        self._embedding = load.vocab_matrix(maps[0].embedding, *size)
        self._encoder, self._encoder_norm = of_encoder.layers(), of_encoder.final_norm()
        self._decoder, self._decoder_norm = of_decoder.layers(), of_decoder.final_norm()
        self._head = self._embedding
        if not decoder.tie_embeddings:
            self._head = load.vocab_matrix(maps[1].head, *size)
        self._caches = _Caches()
        self._n_weight_bytes = load.n_bytes

    @classmethod
    def load(cls, folder: Path) -> TorchEncoderDecoder:
        """Load a folder as transformers saves it. Raises ModelError."""
        return cls(*open_encoder_decoder(folder), folder.resolve().name)

    @property
    def n_bytes(self) -> int:
        return self._n_weight_bytes

    def encode(
        self, ids: Sequence[int], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        x, weights = self._embedding[torch.tensor(list(ids))], []
        for layer in self._encoder:
            x, of_layer = self._encode(layer, x)
            weights.append(of_layer)
            if in_pieces:
                yield
        states = self._encoder_norm(x)
        empty = torch.empty(0, self.config.decoder.n_heads, self.config.decoder.head_dim)
        self._caches = _Caches(
            [Cache(*self._kv(layer.cross, states)) for layer in self._decoder if layer.cross],
            [Cache(empty, empty) for _ in self._decoder],
        )
        yield
        found: Floats = torch.stack(weights).numpy()
        return found

    def decode(
        self, token: int, position: int, *, in_pieces: bool = False
    ) -> Generator[None, None, DecodedToken]:
        x, own, cross = self._embedding[torch.tensor([token])], [], []
        for i in range(len(self._decoder)):
            x, own_weights, cross_weights = self._decode(i, x, position)
            own.append(own_weights)
            cross.append(cross_weights)
            if in_pieces:
                yield
        yield
        scale = self.config.decoder.logit_scale
        logits = scale * functional.linear(self._decoder_norm(x), self._head)[0]
        return DecodedToken(logits.numpy(), torch.stack(own).numpy(), torch.stack(cross).numpy())

    # ---- inside -----------------------------------------------------------------------------

    @torch.inference_mode()
    def _encode(self, layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states after a layer, and its attention weights (n_heads, n, n)."""
        at = torch.arange(len(x))
        cache = Cache(*self._kv(layer.attention, layer.attention.norm(x)))
        update, weights = self._attend(layer.attention, x, cache, at)
        x = x + update
        return x + layer.mlp(x), weights.swapaxes(0, 1)

    @torch.inference_mode()
    def _decode(
        self, i: int, x: torch.Tensor, position: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the state of one row after layer i, and what it attends to: its own tokens and
        those of the encoder, (n_heads, n_keys) each."""
        layer, at = self._decoder[i], torch.tensor([position])
        assert layer.cross is not None
        written = self._caches.written[i]
        written.append(*self._kv(layer.attention, layer.attention.norm(x)), position)
        update, own = self._attend(layer.attention, x, written, at)
        x = x + update
        update, cross = self._attend(layer.cross, x, self._caches.source[i], at)
        x = x + update
        return x + layer.mlp(x), own[0], cross[0]

    @torch.inference_mode()
    def _kv(self, attention: Attention, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of x, (n, n_heads, head_dim) each."""
        heads = (len(x), -1, self.config.decoder.head_dim)
        return attention.k(x).view(heads), attention.v(x).view(heads)

    def _attend(
        self, attention: Attention, x: torch.Tensor, cache: Cache, at: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out(heads of norm(x)) over all of a cache, and the weights (n_rows, n_heads,
        n_keys)."""
        config, n_keys = self.config.decoder, len(cache.keys)
        q = attention.q(attention.norm(x)).view(len(x), config.n_heads, config.head_dim)
        unseen = torch.zeros(len(x), 1, n_keys, dtype=torch.bool)
        biases = attention.biases_of(at, n_keys)
        heads, weights = attend(q, cache.keys, cache.values, unseen, 1.0, biases)
        return attention.out(heads.flatten(1)), weights


# ---- loading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _T5Loader:
    """Loads the layers of the encoder, or of the decoder (`causal`)."""

    config: ModelConfig
    load: Loader
    tensors: TensorMap
    causal: bool

    def final_norm(self) -> RmsNorm:
        return self._norm(self.tensors.module_after("norm"))

    def layers(self) -> list[Layer]:
        """Load all layers. One without position biases has those of the layer before."""
        found: list[Layer] = []
        biases = None
        for i in range(self.config.n_layers):
            for module in self.tensors.modules(i, "attention", "position_biases"):
                biases = self._biases(module)
            (norm,) = self.tensors.modules(i, "norm", "attn.qkv")
            q, k, v = self.tensors.modules(i, "attention", "attn.qkv")
            (out,) = self.tensors.modules(i, "attention", "attn.out")
            own = self._attention(norm, (q, k, v), out, biases)
            found.append(Layer(own, self._cross(i) if self.causal else None, self._mlp(i)))
        return found

    def _cross(self, i: int) -> Attention:
        (norm,) = self.tensors.modules(i, "norm", "cross.q")
        q, k, v = self.tensors.modules(i, "attention", "cross.q", "cross.kv")
        (out,) = self.tensors.modules(i, "attention", "cross.out")
        return self._attention(norm, (q, k, v), out, None)

    def _attention(
        self, norm: str, qkv: tuple[str, str, str], out: str, biases: torch.Tensor | None
    ) -> Attention:
        hidden, width = self.config.hidden_size, self.config.n_heads * self.config.head_dim
        q, k, v = (self.load.linear(module, width, hidden, False) for module in qkv)
        to_stream = self.load.linear(out, hidden, width, False)
        return Attention(self._norm(norm), q, k, v, to_stream, biases)

    def _mlp(self, i: int) -> Mlp:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        (norm,) = self.tensors.modules(i, "norm", "mlp.gate_up")
        (down,) = self.tensors.modules(i, "mlp", "mlp.down")
        ups = self.tensors.modules(i, "mlp", "mlp.gate_up", "mlp.up")
        *gate, up = (self.load.linear(module, inner, hidden, False) for module in ups)
        return Mlp(
            self._norm(norm),
            gate[0] if gate else None,
            up,
            self.load.linear(down, hidden, inner, False),
            self.config.activation,
        )

    def _norm(self, module: str) -> RmsNorm:
        gain = self.load.vector(f"{module}.weight", self.config.hidden_size)
        return RmsNorm(gain, self.config.norm_eps)

    def _biases(self, module: str) -> torch.Tensor:
        config = self.config
        n_buckets, most = (
            config.relative_attention_num_buckets,
            config.relative_attention_max_distance,
        )
        biases = self.load.float32_matrix(f"{module}.weight", n_buckets, config.n_heads)
        return biases[_buckets(n_buckets, most, self.causal)]


def _buckets(n_buckets: int, most: int, causal: bool) -> torch.Tensor:
    """Return the buckets of distances -most … most of a key from a row (Raffel et al. 2020): near
    distances have one each, others share one with those of about the same logarithm. In an encoder
    the second half of the buckets is for keys after the row."""
    distances = torch.arange(-most, most + 1)
    side = n_buckets if causal else n_buckets // 2
    exact = side // 2
    n = (-distances).clamp(min=0) if causal else distances.abs()
    scale = (side - exact) / math.log(most / exact)
    far = exact + (torch.log(n.clamp(min=1) / exact) * scale + 1e-6).long()
    bucket = torch.where(n < exact, n, far.clamp(max=side - 1))
    return bucket if causal else bucket + torch.where(distances > 0, side, 0)
