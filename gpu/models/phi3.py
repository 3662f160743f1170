"""Phi 3, 3.5 and Phi 4 mini (Abdin et al. 2024): Llama whose checkpoints hold queries, keys and
values in one matrix, and gate and up in another. Phi 4 mini rotates three quarters of each head;
long contexts stretch each wavelength by a factor of its own (LongRoPE, Ding et al. 2024)."""

from __future__ import annotations

from gpu.models.llama import Llama


class Phi3(Llama):
    """Llama's pass; only the checkpoint differs."""
