"""Models of the hub that are worth trying first: small enough for one machine, in an architecture
and with files that this engine reads.

Parameters and sizes are about those of the published weight files; what a download really takes
is asked of the hub before it begins.
"""

from __future__ import annotations

import msgspec

from gpu import MODEL_TYPES


class KnownModel(msgspec.Struct, frozen=True):
    """`n_bytes`: of the weight files, which are 16-bit. `licence`: its SPDX name."""

    name: str
    model_type: str
    parameters: int
    n_bytes: int
    licence: str


_APACHE = "Apache-2.0"
_MODELS = (
    KnownModel("HuggingFaceTB/SmolLM2-135M-Instruct", "llama", 135_000_000, 269_000_000, _APACHE),
    KnownModel("HuggingFaceTB/SmolLM2-360M-Instruct", "llama", 362_000_000, 724_000_000, _APACHE),
    KnownModel("Qwen/Qwen2.5-0.5B-Instruct", "qwen2", 494_000_000, 988_000_000, _APACHE),
    KnownModel("Qwen/Qwen3-0.6B", "qwen3", 596_000_000, 1_503_000_000, _APACHE),
    KnownModel(
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "llama", 1_100_000_000, 2_200_000_000, _APACHE
    ),
    KnownModel("Qwen/Qwen2.5-1.5B-Instruct", "qwen2", 1_544_000_000, 3_087_000_000, _APACHE),
    KnownModel(
        "HuggingFaceTB/SmolLM2-1.7B-Instruct", "llama", 1_711_000_000, 3_423_000_000, _APACHE
    ),
    KnownModel("HuggingFaceTB/SmolLM3-3B", "smollm3", 3_075_000_000, 6_150_000_000, _APACHE),
)


def known_models() -> tuple[KnownModel, ...]:
    """Those whose architecture the engine has, the smallest first."""
    return tuple(model for model in _MODELS if model.model_type in MODEL_TYPES)
