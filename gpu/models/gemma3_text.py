"""Gemma 3 (Gemma Team 2025), its text models: Gemma 2 with norms of queries and keys in place of
the soft caps, and five layers with a sliding window to each without. Layers with a window turn
queries and keys by another base than those without."""

from __future__ import annotations

from gpu.models.gemma2 import Gemma2
from gpu.models.head_norms import HeadNorms


class Gemma3(HeadNorms, Gemma2):
    """Eight dispatches a layer: those of Gemma 2 and `place_heads`."""
