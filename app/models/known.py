"""Models of the hub that are worth trying first: small enough for one machine, in an architecture
and with files that this engine reads.

How large they are follows from the numbers of their configs; what a download really takes is asked
of the hub before it begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gpu import MODEL_TYPES

WEIGHT_BYTES = 2
"""They are all published in bfloat16."""


class KnownModel(msgspec.Struct, frozen=True):
    """`parameters`: tied ones once; `n_bytes`: of the weight files. `licence`: its SPDX name."""

    name: str
    model_type: str
    parameters: int
    n_bytes: int
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What config.json says of a model built like Llama. `biases`: of queries, keys and values;
    `head_norms`: of queries and keys; `saves_head`: its files hold the tied matrix twice."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    tied: bool = True
    biases: bool = False
    head_norms: bool = False
    saves_head: bool = False

    @property
    def parameters(self) -> int:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (q + 2 * kv) + q * self.hidden
        attention += (q + 2 * kv) * self.biases + 2 * self.head_dim * self.head_norms
        mlp, norms = 3 * self.hidden * self.inner, 2 * self.hidden
        ends = self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden
        return self.layers * (attention + mlp + norms) + ends

    @property
    def n_bytes(self) -> int:
        """But for a header of some KB."""
        return WEIGHT_BYTES * (self.parameters + self.saves_head * self.vocab * self.hidden)


SIZES: dict[tuple[str, str], Sizes] = {
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "llama"): Sizes(
        layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, inner=1536, vocab=49152,
    ),
    ("HuggingFaceTB/SmolLM2-360M-Instruct", "llama"): Sizes(
        layers=32, hidden=960, heads=15, kv_heads=5, head_dim=64, inner=2560, vocab=49152,
    ),
    ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2"): Sizes(
        layers=24, hidden=896, heads=14, kv_heads=2, head_dim=64, inner=4864, vocab=151936,
        biases=True,
    ),
    ("Qwen/Qwen3-0.6B", "qwen3"): Sizes(
        layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, inner=3072, vocab=151936,
        head_norms=True, saves_head=True,
    ),
    ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama"): Sizes(
        layers=22, hidden=2048, heads=32, kv_heads=4, head_dim=64, inner=5632, vocab=32000,
        tied=False,
    ),
    ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2"): Sizes(
        layers=28, hidden=1536, heads=12, kv_heads=2, head_dim=128, inner=8960, vocab=151936,
        biases=True,
    ),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama"): Sizes(
        layers=24, hidden=2048, heads=32, kv_heads=32, head_dim=64, inner=8192, vocab=49152,
    ),
    ("HuggingFaceTB/SmolLM3-3B", "smollm3"): Sizes(
        layers=36, hidden=2048, heads=16, kv_heads=4, head_dim=128, inner=11008, vocab=128256,
    ),
}  # fmt: skip
"""By name and `model_type`, the smallest first. All are under Apache-2.0."""


def known_models() -> tuple[KnownModel, ...]:
    """Those whose architecture the engine has, the smallest first."""
    return tuple(
        KnownModel(name, model_type, sizes.parameters, sizes.n_bytes, "Apache-2.0")
        for (name, model_type), sizes in SIZES.items()
        if model_type in MODEL_TYPES
    )
