"""Recommended models of the hub: small, and with an architecture and files that this engine reads.

Their sizes are computed from their configs. The hub is asked for the real size before a download.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gpu import MODEL_TYPES

WEIGHT_BYTES = 2
"""Bytes per weight: all are published in bfloat16."""


class KnownModel(msgspec.Struct, frozen=True):
    """Recommended model.

    parameters  number of parameters; tied ones count once
    n_bytes     size of the weight files
    licence     SPDX name
    """

    name: str
    model_type: str
    parameters: int
    n_bytes: int
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Sizes from the config.json of a Llama-like model.

    qkv_bias       the projections of queries, keys and values have biases
    qk_norm        queries and keys are normalised per head
    saves_lm_head  the weight files contain the tied embedding matrix twice
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    saves_lm_head: bool = False

    @property
    def parameters(self) -> int:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden
        attention += (q + 2 * kv) * self.qkv_bias + 2 * self.head_dim * self.qk_norm
        mlp, norms = 3 * self.hidden * self.intermediate, 2 * self.hidden
        ends = self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden
        return self.layers * (attention + mlp + norms) + ends

    @property
    def n_bytes(self) -> int:
        """Size of the weight files without their headers (a few KB)."""
        return WEIGHT_BYTES * (self.parameters + self.saves_lm_head * self.vocab * self.hidden)


SIZES: dict[tuple[str, str], ModelSizes] = {
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "llama"): ModelSizes(
        layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, intermediate=1536, vocab=49152,
    ),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", "llama"): ModelSizes(
        layers=32, hidden=960, heads=15, kv_heads=5, head_dim=64, intermediate=2560, vocab=49152,
    ),
    ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2"): ModelSizes(
        layers=24, hidden=896, heads=14, kv_heads=2, head_dim=64, intermediate=4864, vocab=151936,
        qkv_bias=True,
    ),
    ("Qwen/Qwen3-0.6B", "qwen3"): ModelSizes(
        layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, intermediate=3072, vocab=151936,
        qk_norm=True, saves_lm_head=True,
    ),
    ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama"): ModelSizes(
        layers=22, hidden=2048, heads=32, kv_heads=4, head_dim=64, intermediate=5632, vocab=32000,
        tied=False,
    ),
    ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2"): ModelSizes(
        layers=28, hidden=1536, heads=12, kv_heads=2, head_dim=128, intermediate=8960, vocab=151936,
        qkv_bias=True,
    ),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama"): ModelSizes(
        layers=24, hidden=2048, heads=32, kv_heads=32, head_dim=64, intermediate=8192, vocab=49152,
    ),
    ("HuggingFaceTB/SmolLM3-3B", "smollm3"): ModelSizes(
        layers=36, hidden=2048, heads=16, kv_heads=4, head_dim=128, intermediate=11008,
        vocab=128256,
    ),
}  # fmt: skip
"""(name, `model_type`) to sizes, smallest first. All are under Apache-2.0."""


def known_models() -> tuple[KnownModel, ...]:
    """Return the recommended models whose architecture the engine supports, smallest first."""
    return tuple(
        KnownModel(name, model_type, sizes.parameters, sizes.n_bytes, "Apache-2.0")
        for (name, model_type), sizes in SIZES.items()
        if model_type in MODEL_TYPES
    )
