"""SmolLM3 (Bakouch et al. 2025): Llama with every fourth layer without positions ("NoPE",
Kazemnejad et al. 2023; mixed with rotary layers as in Yang et al. 2025, "RNoPE")."""

from __future__ import annotations

from gpu.models.llama import Llama


class SmolLM3(Llama):
    """`config.still_layers` leave queries and keys as they were projected."""
