"""Loading the stages of a model onto threads of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from gpu.checkpoint.reader import Checkpoint, Progress, weight_progress
from gpu.checkpoint.weight_cache import AddedElsewhere, WeightCache, open_weight_cache
from gpu.config import Stage
from gpu.runners.loaded_model import StagePart, shape_kv_cache
from gpu.runners.stage_thread import StageThread
from gpu.runners.stage_worker import StagedModel
from gpu.runners.wgpu_runner import WgpuRunner, open_device
from gpu.webgpu.device import Device


def load_local_stages(model: StagedModel, progress: Progress) -> list[StageThread]:
    """Open the devices and load each stage. Raises ModelError and DeviceError."""
    threads: list[StageThread] = []
    devices: list[Device] = []
    try:
        for i, _ in enumerate(model.stages):
            threads.append(StageThread(f"stage {i}", threads[-1].done if threads else None))
            own = replace(model.options, adapter=model.options.adapter_of_stage(i))
            opened = threads[-1].start(partial(open_device, own, model.checked, progress))
            devices.append(opened.result())
        _load(model, threads, devices, progress)
    except BaseException:
        unused = [d for t, d in zip(threads, devices, strict=False) if not t.is_loaded]
        for thread in threads:
            thread.close()
        for device in unused:
            device.close()
        raise
    return threads


def _load(
    model: StagedModel,
    threads: Sequence[StageThread],
    devices: Sequence[Device],
    progress: Progress,
) -> None:
    """Load each stage on its thread, one after the other: they read the same files."""
    config, options = model.config, model.options
    checkpoint = Checkpoint.open(model.folder)
    binding = min(device.max_binding_bytes for device in devices)
    kv_shape = shape_kv_cache(config, options, binding)
    on_weights = weight_progress(progress, checkpoint, config.tie_embeddings)
    cache = open_weight_cache(checkpoint, config, options.dtype, options.weight_cache_bytes)
    with cache as weight_cache:
        for stage, thread, device in zip(model.stages, threads, devices, strict=True):
            make = partial(
                WgpuRunner,
                device,
                config,
                checkpoint,
                options,
                on_weights=on_weights,
                weight_cache=_cache_of_stage(weight_cache, stage),
                part=StagePart(stage, kv_shape),
            )
            thread.start_load(make).result()


def _cache_of_stage(cache: WeightCache, stage: Stage) -> WeightCache:
    """Return the cache for a stage: a tied embedding is added by the first stage only."""
    return cache if stage.is_first else AddedElsewhere(cache, "embedding")
