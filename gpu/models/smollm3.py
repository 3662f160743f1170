"""SmolLM3 (Bakouch et al. 2025): Llama with every fourth layer without positions (NoPE, Kazemnejad
et al. 2023; mixed with rotary layers as in RNoPE, Yang et al. 2025)."""

from __future__ import annotations

from gpu.models.llama import Llama


class SmolLM3(Llama):
    """Layers in `config.nope_layers` have no rotary positions."""
