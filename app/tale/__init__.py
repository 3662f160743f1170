"""Bundled models, which need no download: a tiny storyteller, the same as a mixture of experts, and
a smaller one that drafts for both.

`model_dir()` and `mixture_dir()` are their folders in Hugging Face layout (config, f16 safetensors,
tokenizer, card), and `draft_dir()` that of the draft model, which has no tokenizer of its own.
"""

from __future__ import annotations

from pathlib import Path

NAME = "tale-3m"
"""Name of the storyteller, which has about three million parameters."""
NAMES = ("tale", NAME)
"""Names by which it can be chosen."""
MIXTURE = "tale-moe"
"""Name of the mixture of experts."""
GOOD_FOR = {
    NAME: "children's stories, and a first look without a network",
    MIXTURE: "the same from a mixture of experts: routing, pruning and offloading to watch",
}
"""What each bundled model is good for."""


def model_dir() -> Path:
    """Return the folder of the storyteller's files."""
    return Path(__file__).resolve().parent / "model"


def mixture_dir() -> Path:
    """Return the folder of the mixture's files."""
    return Path(__file__).resolve().parent / "mixture"


def draft_dir() -> Path:
    """Return the folder of the draft model's files."""
    return Path(__file__).resolve().parent / "draft"


def folder_of(name: str) -> Path | None:
    """Return the folder of the bundled model of this name; None if there is none."""
    if name in NAMES:
        return model_dir()
    return mixture_dir() if name == MIXTURE else None


def name_of(folder: Path) -> str | None:
    """Return the name of the bundled model in this folder; None if there is none."""
    folders = {model_dir(): NAME, mixture_dir(): MIXTURE}
    return folders.get(folder.resolve())
