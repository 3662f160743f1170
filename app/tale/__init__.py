"""The bundled model: a tiny storyteller that runs at once, offline.

`model_dir()` is its folder in Hugging Face layout (config, f16 safetensors, tokenizer, card).
How it was made is in `app.tale.make`, which nothing here imports.
"""

from __future__ import annotations

from pathlib import Path

NAME = "tale-3m"
"""What the model is called: about three million parameters."""


def model_dir() -> Path:
    """The folder with the model's files, in a checkout and in an installed package alike."""
    return Path(__file__).resolve().parent / "model"
