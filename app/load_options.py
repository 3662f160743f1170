"""Load options from the settings of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from app.config import Settings
from gpu import DtypeChoice, LoadOptions


def load_options(
    settings: Settings,
    loras: Mapping[str, Path] | None = None,
    dtype: DtypeChoice | None = None,
) -> LoadOptions:
    """Return the options of `settings`. `loras`: folders of adapters by name; `dtype`: storage type
    of the weights, None: that of `settings`."""
    dtype = dtype or DtypeChoice(settings.dtype)
    return LoadOptions(
        dtype=dtype.dtype,
        dtype_reason=dtype.reason,
        kv_dtype=settings.kv_dtype,
        backend=settings.backend,
        adapter=settings.adapters[0],
        pipeline_parallel_size=settings.pipeline_parallel_size,
        stage_adapters=settings.adapters,
        context=settings.context,
        kv_memory_bytes=settings.kv_memory_bytes,
        kv_offload_bytes=settings.kv_offload_bytes,
        slots=settings.max_num_seqs,
        queue=settings.queue,
        expert_slots=settings.expert_slots,
        activations=settings.activations,
        loras=loras or {},
        weight_cache_bytes=settings.weight_cache_bytes,
        prefix_cache=settings.prefix_cache,
        cache_reuse=settings.cache_reuse,
        spec_type=settings.spec_type,
        autotune=True,
        hybrid_kv_cache=True,
    )
