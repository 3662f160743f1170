"""Description of a running engine."""

from __future__ import annotations

import msgspec

from gpu.checkpoint.packing import FORMATS
from gpu.info import DeviceInfo, DraftInfo, EngineInfo, EngineLimits, KvGroupInfo, ModelInfo
from gpu.kv.blocks import bytes_by_format, frees_blocks
from gpu.kv.groups import groups_by_window
from gpu.load_options import LoadOptions
from gpu.runner import Runner
from gpu.sampling_params import SamplingParams


def describe(
    runner: Runner,
    options: LoadOptions,
    *,
    name: str,
    parameters: int,
    defaults: SamplingParams,
    eos_ids: tuple[int, ...],
    recommended: bool = True,
    draft: Runner | None = None,
) -> EngineInfo:
    """Return what the engine of `runner`, loaded with `options`, reports about itself. `draft`:
    that of its draft model. The other arguments are what the runner does not know."""
    limits = runner.limits
    return EngineInfo(
        model=_describe_model(runner, options, name, parameters, eos_ids),
        device=msgspec.convert(runner.device, DeviceInfo, from_attributes=True),  # without limits
        limits=EngineLimits(
            context=limits.context,
            slots=limits.slots,
            queue=options.queue,
            n_blocks=limits.n_blocks,
            block_tokens=limits.block_tokens,
            block_bytes=limits.block_bytes,
            in_flight=runner.in_flight,
            kv_groups=_describe_groups(runner),
        ),
        memory=runner.memory,
        defaults=defaults,
        dispatches_per_token=runner.dispatches_per_token,
        activations=runner.activations,
        draft=_describe_draft(draft) if draft is not None else None,
        stages=runner.stages,
        recommended=recommended,
    )


def _describe_groups(runner: Runner) -> tuple[KvGroupInfo, ...]:
    windows = runner.limits.windows
    if not frees_blocks(windows):
        return ()
    if len(windows) == 1:
        return (KvGroupInfo(runner.config.n_layers, windows[0]),)
    groups = groups_by_window(runner.config)
    return tuple(KvGroupInfo(len(group.layers), group.window) for group in groups)


def _describe_draft(draft: Runner) -> DraftInfo:
    memory = draft.memory
    return DraftInfo(
        n_layers=draft.config.n_layers,
        hidden_size=draft.config.hidden_size,
        n_bytes=memory.weights + memory.kv_cache + memory.work,
    )


def _describe_model(
    runner: Runner, options: LoadOptions, name: str, parameters: int, eos_ids: tuple[int, ...]
) -> ModelInfo:
    config = runner.config
    return ModelInfo(
        name=name,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype or FORMATS[options.dtype].kv,
        kv_formats=bytes_by_format(config),
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        parameters=parameters,
        eos_ids=eos_ids,
        loras=runner.loras,
        n_experts=config.experts.n_experts if config.experts else 0,
        conversion=runner.conversion,
        dtype_reason=options.dtype_reason,
    )
