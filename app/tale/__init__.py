"""Bundled model: a tiny storyteller that needs no download.

`model_dir()` is its folder in Hugging Face layout (config, f16 safetensors, tokenizer, card).
`app.tale.make` holds the code that made it; nothing imports that at run time.
"""

from __future__ import annotations

from pathlib import Path

NAME = "tale-3m"
"""Name of the model, which has about three million parameters."""


def model_dir() -> Path:
    """Return the folder of the model's files."""
    return Path(__file__).resolve().parent / "model"
