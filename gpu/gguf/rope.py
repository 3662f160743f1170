"""Rotary positions of a GGUF file: from its metadata and, for some scalings, from tensors of
wavelength factors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.errors import ModelError
from gpu.gguf.metadata import MAX_HEAD_DIM, Metadata
from gpu.gguf.names import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS

LLAMA3_ROPE = (8192, 1.0, 4.0)
"""original_max_position_embeddings, low_freq_factor and high_freq_factor."""
MAX_CONTEXT = 2**26
SCALINGS = ("none", "linear", "yarn", "longrope")
DEFAULT_THETA = 10000.0

Values = dict[str, Any]


def read_rope_parameters(meta: Metadata, *, partial: bool = False) -> Values:
    """Return `rope_parameters` of config.json.

    `partial`: whether part of a head may be left without rotation. Raises ModelError for settings
    that config.json cannot express.
    """
    head_dim = meta.head_dim
    rotary_dim = meta.integer("rope.dimension_count", 1, MAX_HEAD_DIM, head_dim)
    if rotary_dim > head_dim or (rotary_dim != head_dim and not partial):
        raise meta.error("rope.dimension_count", f"{head_dim}, the whole head")
    found = {
        "rope_theta": meta.number("rope.freq_base", 1.0, 1e12, DEFAULT_THETA),
        **_scaling(meta, rotary_dim),
    }
    if rotary_dim != head_dim:
        # The reader rounds factor · head_dim down; half a dimension more makes that safe.
        found["partial_rotary_factor"] = (rotary_dim + 0.5) / head_dim
    return found


def _scaling(meta: Metadata, rotary_dim: int) -> Values:
    tensors = meta.file.tensors
    kind = meta.choice("rope.scaling.type", SCALINGS, "linear")
    if LONG_FACTORS in tensors or SHORT_FACTORS in tensors or kind == "longrope":
        return _longrope(meta, rotary_dim)
    if ROPE_FACTORS in tensors:
        return _llama3(meta, rotary_dim)
    if kind == "yarn":
        return _yarn(meta)
    return _linear(meta) if kind == "linear" else {"rope_type": "default"}


def _linear(meta: Metadata) -> Values:
    """Read the current key, or that of old files; neither, or 0, means no scaling."""
    old = meta.number("rope.scale_linear", 0.0, 1e6, 0.0)
    factor = meta.number("rope.scaling.factor", 0.0, 1e6, old) or 1.0
    return {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}


def _yarn(meta: Metadata) -> Values:
    """Read YaRN's settings. Files with an attention factor are refused: llama.cpp multiplies it
    with YaRN's own factor, transformers replaces that factor."""
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if meta.number(f"rope.scaling.{key}", 0.0, 1e6, 1.0) != 1.0:
            raise meta.error(f"rope.scaling.{key}", "1 or left out")
    if "rope.scaling.yarn_log_multiplier" in meta:
        raise meta.error("rope.scaling.yarn_log_multiplier", "left out")
    return {
        "rope_type": "yarn",
        "factor": meta.number("rope.scaling.factor", 1.0, 1e6),
        "original_max_position_embeddings": _original_context(meta),
        "beta_fast": meta.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32.0),
        "beta_slow": meta.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1.0),
    }


def _longrope(meta: Metadata, rotary_dim: int) -> Values:
    found = {
        "rope_type": "longrope",
        "original_max_position_embeddings": _original_context(meta),
        "short_factor": [float(str(x)) for x in _factors(meta, SHORT_FACTORS, rotary_dim)],
        "long_factor": [float(str(x)) for x in _factors(meta, LONG_FACTORS, rotary_dim)],
    }
    if "rope.scaling.attn_factor" in meta:
        found["attention_factor"] = meta.number("rope.scaling.attn_factor", 1e-3, 1e3)
    return found


def _llama3(meta: Metadata, rotary_dim: int) -> Values:
    """Derive Llama 3's settings from the factors in the file, which has only the divisor of each
    frequency.

    All settings but the factor are known, and that is the largest divisor; other settings are
    refused.
    """
    factors = _factors(meta, ROPE_FACTORS, rotary_dim).astype(np.float64)
    theta = meta.number("rope.freq_base", 1.0, 1e12, DEFAULT_THETA)
    factor = float(factors.max())
    original, low, high = LLAMA3_ROPE
    turns = original * theta ** -(np.arange(0, rotary_dim, 2) / rotary_dim) / (2 * np.pi)
    unscaled = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1 / (unscaled + (1 - unscaled) / factor)
    if not (factor >= 1 and np.allclose(factors, expected, rtol=1e-4)):
        raise ModelError(
            f"{meta.file.path}: expected {ROPE_FACTORS} to be Llama 3's, but got other factors; "
            "this scaling is not supported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _original_context(meta: Metadata) -> int:
    return meta.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT)


def _factors(meta: Metadata, name: str, rotary_dim: int) -> npt.NDArray[np.float32]:
    """Return a factor tensor, (rotary_dim / 2,)."""
    tensor, shape = meta.file.tensors.get(name), (rotary_dim // 2,)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != shape:
        found = "it is missing" if tensor is None else f"is {tensor.type.name} {tensor.shape}"
        raise ModelError(f"{meta.file.path}: {name} must be F32 {shape}, but {found}")
    factors: npt.NDArray[np.float32] = tensor.data.view("<f4")
    return factors
