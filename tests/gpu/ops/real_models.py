"""Kernels of the plans of real models, recorded without a device or weights, and which variant of
its shader each is."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpu.checkpoint.config_shapes import config_shapes
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES
from gpu.checks.tiny_models import TINY_CONFIG
from gpu.config import ModelConfig
from gpu.export.recording import ShapeLoader
from gpu.info import AdapterInfo
from gpu.kv.formats import KV_FORMATS
from gpu.load_options import LoadOptions
from gpu.plans.capture_buffers import ROW_BUCKETS
from gpu.runners.loaded_model import LoadedModel
from gpu.webgpu.buffers import Memory
from gpu.webgpu.kernels import Kernel
from gpu.webgpu.null_device import WEBGPU_LIMITS, open_null_device
from gpu.webgpu.plan import Dispatch

CONTEXT = 4096
"""32 splits of a GPU's attention."""
MERGED_CONTEXT = 2048
"""16 of them, which a discrete GPU merges in the same dispatch."""
SIZES = {
    "N", "K", "BLOCKS", "FIRST", "COUNT", "STRIDE", "Y_STRIDE", "X_STRIDE", "Q_STRIDE", "P_STRIDE",
    "STATE_STRIDE", "BIAS_STRIDE", "LOGIT_STRIDE", "N_HEADS", "N_KV_HEADS", "N_LAYERS",
    "MAX_BLOCKS", "COUNTS_AT", "BLOCK_TOKENS", "VOCAB", "LOGIT_QUADS", "SEEN_WORDS", "COUNT_QUADS",
    "COUNT_WORDS", "BIASES", "WIDTH", "EPS", "SCALE",
}  # fmt: skip
"""Constants that choose no path through a shader. All others do: lanes, dtypes, what is fused."""
LIMITED = ("WINDOW", "CAP")
"""Constants of which only matters whether they are 0."""


def _adapter(kind: str, vendor: str, workgroup_kib: int) -> AdapterInfo:
    most = (1 << 31) - 4
    limits = {
        "max-buffer-size": most,
        "max-storage-buffer-binding-size": most,
        "max-compute-workgroup-storage-size": workgroup_kib << 10,
    }
    return AdapterInfo(
        kind, "", "Vulkan", kind, software=False, limits=WEBGPU_LIMITS | limits, vendor=vendor
    )


ADAPTERS = {
    "discrete": _adapter("discrete GPU", "NVIDIA", 48),
    "integrated": _adapter("integrated GPU", "Intel", 32),
    "phone": _adapter("integrated GPU", "Qualcomm", 16),
}


def _config(model_type: str, **settings: Any) -> ModelConfig:
    whole = {"model_type": model_type, **TINY_CONFIG, "max_position_embeddings": 32768, **settings}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(whole), "utf-8")
        return ModelConfig.from_folder(folder)


_GEMMA = {
    "head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144,
    "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True,
}  # fmt: skip
_ONE_LAYER = {"num_hidden_layers": 1, "tie_word_embeddings": True, "vocab_size": 151936}


@cache
def real_models() -> dict[str, ModelConfig]:
    """Return models of known shapes, with one layer of each kind. `head128` is the one that ended
    in "not a number" on an H100."""
    llama = {name: replace(LLAMA_SHAPES[name], n_layers=1) for name in LLAMA_SHAPES}
    del llama["tiny"]
    head128 = replace(
        llama["llama1b"], n_heads=8, n_kv_heads=2, head_dim=128, hidden_size=1024,
        intermediate_size=512, vocab_size=1024, tie_embeddings=False,
    )  # fmt: skip
    qwen2 = _config(
        "qwen2", hidden_size=896, num_attention_heads=14, intermediate_size=4864, **_ONE_LAYER
    )
    qwen3 = _config(
        "qwen3", hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        intermediate_size=3072, **_ONE_LAYER,
    )  # fmt: skip
    gemma3 = {
        f"gemma3_{name}": _config(
            "gemma3_text", hidden_size=hidden, intermediate_size=inner, **_GEMMA
        )
        for name, hidden, inner in (("270m", 640, 2048), ("1b", 1152, 6912))
    }
    return {**llama, "head128": head128, "qwen2.5_0.5b": qwen2, "qwen3_0.6b": qwen3, **gemma3}


STORAGES = (("f32", "f32"), ("f16", "f16"), ("q8", "f16"), ("q8", "q8"), ("q4", "f16"))
"""Weights and keys and values."""

Variant = tuple[str, str, tuple[tuple[str, Any], ...]]
"""Shader, its whole source with what is substituted in it, and the constants that matter."""


def variant_of(kernel: Kernel) -> Variant:
    constants = {
        name: bool(value) if name in LIMITED else value
        for name, value in kernel.constants.items()
        if name not in SIZES
    }
    return kernel.name, kernel.source, tuple(sorted(constants.items()))


@dataclass(frozen=True, slots=True)
class Use:
    """A dispatch of a real plan, and what it was recorded for. `n_rows`: of the plan."""

    model: str
    config: ModelConfig
    dtype: str
    kv_dtype: str
    n_rows: int
    dispatch: Dispatch

    def __str__(self) -> str:
        what = f"{self.dispatch.label} ({self.dispatch.kernel.name})"
        storage = f"{self.dtype}, {self.kv_dtype} cache"
        return f"{what} of {self.model} in {storage}, {self.n_rows} rows"


def uses(adapter: AdapterInfo) -> dict[Variant, Use]:
    """Return every variant that real plans use on an adapter, with one of its uses: of steps that
    sample one token, with statistics and without, of a long context and of a short one."""
    found: dict[Variant, Use] = {}
    for model, config in real_models().items():
        for dtype, kv_dtype in STORAGES:
            loaded = _loaded(config, dtype, kv_dtype, adapter)
            for n_rows, dispatch in _dispatches(loaded):
                use = Use(model, config, dtype, kv_dtype, n_rows, dispatch)
                found.setdefault(variant_of(dispatch.kernel), use)
            loaded.plans.kernels.close()
    return found


def _loaded(config: ModelConfig, dtype: str, kv_dtype: str, adapter: AdapterInfo) -> LoadedModel:
    load = ShapeLoader(_Shapes(config), Memory(open_null_device(adapter)), dtype)  # type: ignore[arg-type]
    assert kv_dtype in KV_FORMATS
    options = LoadOptions(dtype=dtype, kv_dtype=kv_dtype, context=CONTEXT, kv_memory_bytes=1 << 30)
    return LoadedModel.make(config, options, load)


def _dispatches(loaded: LoadedModel) -> Iterator[tuple[int, Dispatch]]:
    limits = loaded.limits
    for n_rows in ROW_BUCKETS:
        for kind, most in (("plain", limits.max_rows), ("captured", limits.max_captured_rows)):
            is_split = n_rows <= loaded.plans.split_rows
            for context in (n_rows, MERGED_CONTEXT, CONTEXT) if is_split else (CONTEXT,):
                if n_rows <= most:
                    plan = loaded.plans.plan(n_rows, 1, kind, context).plan
                    yield from ((n_rows, dispatch) for dispatch in plan.dispatches)


class _Shapes:
    """A `WeightSource` that knows shapes only."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = config_shapes(config, stacked=False)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]
