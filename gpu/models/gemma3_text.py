"""Gemma 3 (Gemma Team 2025), its text models: Gemma 2 with norms of queries and keys in place of
the soft caps, and five layers with a sliding window to each one without. Layers with a window have
another rotary base than those without."""

from __future__ import annotations

from gpu.models.gemma2 import Gemma2
from gpu.models.qk_norm import QKNorm


class Gemma3(QKNorm, Gemma2):
    """Eight dispatches a layer: Gemma 2's and `qk_norm_rope`."""
