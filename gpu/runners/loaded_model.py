"""A model on a device: weights, KV cache and the cache of its plans, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig, Stage
from gpu.info import RunnerLimits
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, block_bytes, fit_kv_cache
from gpu.kv.groups import groups_of_stage
from gpu.kv.pools import KvPools
from gpu.load_options import LoadOptions
from gpu.lora.adapter import Lora
from gpu.models.decoder import Decoder
from gpu.models.registry import MODELS
from gpu.plans.lora_buffers import LoraBuffers
from gpu.plans.plan_cache import PlanCache, StepTensors


@dataclass(frozen=True, slots=True)
class StagePart:
    """A stage to load. `kv_shape`: blocks and groups of the whole model's KV cache, of which a
    stage has the layers that are its own, with the same numbers of blocks."""

    stage: Stage
    kv_shape: KvShape

    @classmethod
    def whole(cls, config: ModelConfig, kv_shape: KvShape) -> StagePart:
        return cls(Stage(0, config.n_layers, config.n_layers), kv_shape)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """Device, weights and cache on which the steps of one model, or of one stage of it, run.
    `config` is that of the model."""

    config: ModelConfig
    dtype: str
    model: Decoder
    loras: LoraBuffers
    pools: KvPools
    tensors: StepTensors
    plans: PlanCache
    limits: RunnerLimits

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        options: LoadOptions,
        load: WeightLoader,
        loras: Sequence[Lora] = (),
        part: StagePart | None = None,
    ) -> LoadedModel:
        """Load the weights with `load` and allocate the rest on its device. `loras`: the adapters
        of `options.loras`, opened; `part`: the stage to load, None: the whole model. Raises
        ModelError and DeviceError."""
        memory, kv_dtype = load.memory, options.kv_dtype or FORMATS[options.dtype].kv
        if part is None:
            binding = memory.device.max_binding_bytes
            part = StagePart.whole(config, shape_kv_cache(config, options, binding))
        stage, shape = part.stage, part.kv_shape
        n_tables = options.slots + 1  # the last is `RunnerLimits.inspection_slot`
        model = MODELS[config.model_type](config, load, memory, shape.context, stage)
        lora_buffers = LoraBuffers(model, loras, n_tables, load)
        own_shape = replace(shape, groups=groups_of_stage(shape.groups, stage))
        pools = KvPools(model.config, own_shape, kv_dtype, n_tables, memory)
        n_written = len(pools.step_tables or (None,))
        tensors = StepTensors.make(config, n_tables, memory, n_written, samples=stage.is_last)
        plans = PlanCache(memory.device, model, pools, tensors, memory, lora_buffers.adapted)
        limits = _find_limits(config, options, shape, kv_dtype, plans, tensors, memory.max_rows)
        return cls(config, options.dtype, model, lora_buffers, pools, tensors, plans, limits)


def shape_kv_cache(config: ModelConfig, options: LoadOptions, max_binding_bytes: int) -> KvShape:
    """Return the KV cache that `options` ask for, in buffers of `max_binding_bytes` at most. Raises
    DeviceError if they cannot be met."""
    return fit_kv_cache(
        config,
        options.kv_dtype or FORMATS[options.dtype].kv,
        options.slots,
        context=options.context,
        kv_memory_bytes=options.kv_memory_bytes,
        max_binding_bytes=max_binding_bytes,
        hybrid=options.hybrid_kv_cache,
    )


def _find_limits(
    config: ModelConfig,
    options: LoadOptions,
    shape: KvShape,
    kv_dtype: str,
    plans: PlanCache,
    tensors: StepTensors,
    max_rows: int,
) -> RunnerLimits:
    n_bytes = block_bytes(config, kv_dtype, shape.groups)
    return RunnerLimits(
        slots=options.slots,
        context=shape.context,
        max_rows=max_rows,
        max_samples=tensors.max_samples,
        n_blocks=shape.n_blocks,
        block_tokens=BLOCK_TOKENS,
        block_bytes=n_bytes,
        max_captured_rows=plans.max_captured_rows,
        windows=tuple(group.window for group in shape.groups),
        n_host_blocks=options.kv_offload_bytes // n_bytes,
    )
