"""Check that the cached tokens of a model can be shifted to other positions (llama.cpp: K-shift).

Context shift (`gpu.kv.context_shift`) and cache reuse (`gpu.kv.cache_reuse`) need it.
"""

from __future__ import annotations

from gpu.config import ModelConfig
from gpu.errors import ModelError


def why_not_shiftable(config: ModelConfig) -> str | None:
    """Return why cached tokens of this model cannot be moved; None: they can.

    Layers without positions (NoPE) are no hindrance: their keys are the same anywhere.
    """
    if config.rotary_dim == 0:
        return (
            f"{config.model_type} models add a learned vector for each position to the embeddings, "
            "so cached tokens cannot be moved to other positions"
        )
    if config.largest_window is not None:
        return (
            f"all layers of this {config.model_type} model have a sliding window, and blocks that "
            "have left it are freed, so cached tokens cannot be moved to other positions"
        )
    return None


def expect_shiftable(config: ModelConfig, cache_reuse: int) -> None:
    """Raise ModelError if `LoadOptions.cache_reuse` is set and cached tokens cannot be moved."""
    if cache_reuse and (why := why_not_shiftable(config)) is not None:
        raise ModelError(f"{why}; leave out --cache-reuse")
