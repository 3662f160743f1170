"""Bundled model: a tiny storyteller that needs no download, and a smaller one that drafts for it.

`model_dir()` is its folder in Hugging Face layout (config, f16 safetensors, tokenizer, card), and
`draft_dir()` that of its draft model, which has no tokenizer of its own.
"""

from __future__ import annotations

from pathlib import Path

NAME = "tale-3m"
"""Name of the model, which has about three million parameters."""
NAMES = ("tale", NAME)
"""Names by which it can be chosen."""


def model_dir() -> Path:
    """Return the folder of the model's files."""
    return Path(__file__).resolve().parent / "model"


def draft_dir() -> Path:
    """Return the folder of the draft model's files."""
    return Path(__file__).resolve().parent / "draft"
