"""Mistral (Jiang et al. 2023): Llama whose rows attend to the last `sliding_window` keys alone.
What is older stays in the cache: it may be seen by a row that is computed again. Later Mistrals
have no window, and are Llamas."""

from __future__ import annotations

from gpu.models.llama import Llama


class Mistral(Llama):
    """`config.windows` in every layer."""
