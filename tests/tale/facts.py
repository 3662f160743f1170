"""Figures of the model for its answers about itself. A test compares them with config.json."""

from __future__ import annotations

FACTS = {
    "parameters": "3.4 million",
    "layers": "8",
    "heads": "6",
    "kv_heads": "3",
    "hidden": "192",
    "vocab": "4,096",
    "context": "1,024",
}
