"""A model on a device: weights, KV cache and the cache of its plans, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.info import RunnerLimits
from gpu.kv.blocks import BLOCK_TOKENS, KvShape, block_bytes, fit_kv_cache
from gpu.kv.pools import KvPools
from gpu.load_options import LoadOptions
from gpu.lora.adapter import Lora
from gpu.models.decoder import Decoder
from gpu.models.registry import MODELS
from gpu.plans.lora_buffers import LoraBuffers
from gpu.plans.plan_cache import PlanCache, StepTensors


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """Device, weights and cache on which the steps of one model run."""

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
    ) -> LoadedModel:
        """Load the weights with `load` and allocate the rest on its device. `loras`: the adapters
        of `options.loras`, opened. Raises ModelError and DeviceError."""
        memory, kv_dtype = load.memory, options.kv_dtype or FORMATS[options.dtype].kv
        shape = fit_kv_cache(
            config,
            kv_dtype,
            options.slots,
            context=options.context,
            kv_memory_bytes=options.kv_memory_bytes,
            max_binding_bytes=memory.device.max_binding_bytes,
            hybrid=options.hybrid_kv_cache,
        )
        n_tables = options.slots + 1  # the last is `RunnerLimits.inspection_slot`
        model = MODELS[config.model_type](config, load, memory, shape.context)
        lora_buffers = LoraBuffers(model, loras, n_tables, load)
        pools = KvPools(config, shape, kv_dtype, n_tables, memory)
        n_written = len(pools.step_tables or (None,))
        tensors = StepTensors.make(config, n_tables, memory, n_written)
        plans = PlanCache(memory.device, model, pools, tensors, memory, lora_buffers.adapted)
        limits = _find_limits(config, options, shape, kv_dtype, plans, tensors, memory.max_rows)
        return cls(config, options.dtype, model, lora_buffers, pools, tensors, plans, limits)


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
