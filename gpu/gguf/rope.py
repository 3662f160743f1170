"""Rotary positions as a GGUF file says them: in its metadata and, of some scalings, as tensors of
what each wavelength is stretched by."""

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


def rope_of(meta: Metadata, *, partial: bool = False) -> Values:
    """`rope_parameters` of config.json. `partial`: whether a part of each head may be turned, the
    rest being left. Raises ModelError for what config.json cannot say."""
    head_dim = meta.head_dim
    turned = meta.integer("rope.dimension_count", 1, MAX_HEAD_DIM, head_dim)
    if turned > head_dim or (turned != head_dim and not partial):
        raise meta.error("rope.dimension_count", f"{head_dim}, the whole head")
    found = {
        "rope_theta": meta.number("rope.freq_base", 1.0, 1e12, DEFAULT_THETA),
        **_scaling(meta, turned),
    }
    if turned != head_dim:  # the share is rounded down to a number of dimensions: half of one more
        found["partial_rotary_factor"] = (turned + 0.5) / head_dim
    return found


def _scaling(meta: Metadata, turned: int) -> Values:
    tensors = meta.file.tensors
    kind = meta.choice("rope.scaling.type", SCALINGS, "linear")
    if LONG_FACTORS in tensors or SHORT_FACTORS in tensors or kind == "longrope":
        return _longrope(meta, turned)
    if ROPE_FACTORS in tensors:
        return _llama3(meta, turned)
    if kind == "yarn":
        return _yarn(meta)
    return _linear(meta) if kind == "linear" else {"rope_type": "default"}


def _linear(meta: Metadata) -> Values:
    """By the key of today, or that of old files; neither, or 0, is no scaling."""
    old = meta.number("rope.scale_linear", 0.0, 1e6, 0.0)
    factor = meta.number("rope.scaling.factor", 0.0, 1e6, old) or 1.0
    return {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}


def _yarn(meta: Metadata) -> Values:
    """llama.cpp multiplies what it was given for attention by YaRN's own factor, transformers puts
    it in its place: files that name one are refused."""
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


def _longrope(meta: Metadata, turned: int) -> Values:
    found = {
        "rope_type": "longrope",
        "original_max_position_embeddings": _original_context(meta),
        "short_factor": [float(str(x)) for x in _factors(meta, SHORT_FACTORS, turned)],
        "long_factor": [float(str(x)) for x in _factors(meta, LONG_FACTORS, turned)],
    }
    if "rope.scaling.attn_factor" in meta:
        found["attention_factor"] = meta.number("rope.scaling.attn_factor", 1e-3, 1e3)
    return found


def _llama3(meta: Metadata, turned: int) -> Values:
    """The file holds what each frequency is divided by, not the settings that gave it. Llama 3's
    are known but for one, which is the greatest of these factors; others are refused."""
    factors = _factors(meta, ROPE_FACTORS, turned).astype(np.float64)
    theta = meta.number("rope.freq_base", 1.0, 1e12, DEFAULT_THETA)
    factor = float(factors.max())
    original, low, high = LLAMA3_ROPE
    turns = original * theta ** -(np.arange(0, turned, 2) / turned) / (2 * np.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    expected = 1 / (kept + (1 - kept) / factor)
    if not (factor >= 1 and np.allclose(factors, expected, rtol=1e-4)):
        raise ModelError(f"{meta.file.path}: {ROPE_FACTORS} are not those of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _original_context(meta: Metadata) -> int:
    return meta.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT)


def _factors(meta: Metadata, name: str, turned: int) -> npt.NDArray[np.float32]:
    """(turned / 2,)"""
    tensor, shape = meta.file.tensors.get(name), (turned // 2,)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != shape:
        found = "is not there" if tensor is None else f"is {tensor.type.name} {tensor.shape}"
        raise ModelError(f"{meta.file.path}: {name} should be F32 {shape}, but {found}")
    factors: npt.NDArray[np.float32] = tensor.data.view("<f4")
    return factors
