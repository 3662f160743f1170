"""Tensors of a GGUF file that are not weights of the model."""

from __future__ import annotations

import re

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_FACTOR_TENSORS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Factors of rotary wavelengths, which a model folder has in its config.json."""
_ROTARY_TABLE = re.compile(r"blk\.\d{1,4}\.attn_rot_embd\.weight", re.ASCII)
"""Rotary positions in old files; they follow from the config."""


def is_weight(tensor: str) -> bool:
    """Return whether a tensor is a weight; others are in the config, or follow from it."""
    return tensor not in ROPE_FACTOR_TENSORS and _ROTARY_TABLE.fullmatch(tensor) is None
