"""Weights of one transformer layer on the device."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.checkpoint.matrix import ExpertStack, Matrix
from gpu.ops import Norm
from gpu.webgpu.buffers import Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """x → x · weightᵀ [+ bias]; the name of the weight labels the dispatch that reads it."""

    weight: Matrix
    bias: Tensor | None = None

    @property
    def name(self) -> str:
        return self.weight.name


@dataclass(frozen=True, slots=True)
class Mlp:
    """Weights of one MLP."""

    up: Linear  # intermediate × hidden; gated: 2 · intermediate × hidden, gate and up alternating
    down: Linear  # hidden × intermediate

    @property
    def matrices(self) -> list[Matrix]:
        return [self.up.weight, self.down.weight]


@dataclass(frozen=True, slots=True)
class Moe:
    """Weights of one mixture of experts.

    router   n_experts (+ 1: the gate of the shared expert) × hidden, float32
    gate_up  2 · intermediate × hidden of each expert, rows of gate and up alternating
    down     hidden × intermediate of each expert
    slots    (n_experts,) u32: the slot of each expert in gate_up and down, see gpu.ops.moe
    shared   the shared expert, None if the model has none
    """

    router: Linear
    gate_up: ExpertStack
    down: ExpertStack
    slots: Tensor
    shared: Mlp | None

    @property
    def matrices(self) -> list[Matrix]:
        shared = self.shared.matrices if self.shared else []
        return [self.router.weight, *shared, self.gate_up.matrix, self.down.matrix]

    @property
    def stacks(self) -> tuple[ExpertStack, ExpertStack]:
        return self.gate_up, self.down

    @property
    def is_resident(self) -> bool:
        """True if all experts are on the device."""
        return self.gate_up.host is None


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Weights of the attention of a decoder's layer to the states of the encoder."""

    norm: Norm
    q: Linear  # n_heads · head_dim × hidden
    kv: Linear  # 2 · n_kv_heads · head_dim × hidden, keys then values
    out: Linear  # hidden × n_heads · head_dim


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer. Norms are None where the architecture has none; `qk_norm_gains` are
    those of queries, then keys."""

    qkv: Linear  # (n_heads + 2 · n_kv_heads) · head_dim × hidden, see WeightLoader.qkv
    out: Linear  # hidden × n_heads · head_dim
    ffn: Mlp | Moe
    pre_attention: Norm | None = None
    post_attention: Norm | None = None
    pre_mlp: Norm | None = None
    post_mlp: Norm | None = None
    qk_norm_gains: Tensor | None = None

    @property
    def mlp(self) -> Mlp:
        assert isinstance(self.ffn, Mlp), "this layer has experts"
        return self.ffn

    @property
    def moe(self) -> Moe | None:
        return self.ffn if isinstance(self.ffn, Moe) else None

    @property
    def matrices(self) -> list[Matrix]:
        """Every matrix, in the order a step reads them."""
        return [self.qkv.weight, self.out.weight, *self.ffn.matrices]
