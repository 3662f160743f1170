"""Supported options of the two backends, and the runner of each."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from msgspec.structs import replace as replace_struct

from gpu.checkpoint.auto_dtype import AUTO, choose_dtype
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.config import GenerationDefaults, ModelConfig
from gpu.errors import DeviceError, ModelError
from gpu.kv.blocks import BLOCK_TOKENS, block_bytes, blocks_for
from gpu.kv.formats import kv_format
from gpu.load_options import SPEC_TYPES, LoadOptions
from gpu.runner import Encoders, Runner
from gpu.sampling_params import SamplingParams
from gpu.stage_hosts import StageHosts

RUNNERS = {"wgpu": "gpu.runners.wgpu_runner", "torch": "gpu.pytorch.runner"}
"""The module of each backend's runner."""
BACKENDS = tuple(RUNNERS)
ACTIVATIONS = ("auto", "f32", "q8")
DTYPES = tuple(FORMATS)

UNRECOMMENDED = SamplingParams(temperature=0.7, top_p=0.95, min_p=0.05)
"""Settings of a model whose makers recommend none. Small models write no sense without a filter."""

Progress = Callable[[float, str], None]


def import_backend(backend: str) -> None:
    """Import the packages of a backend, so that `open_runner` need not. One that is missing is left
    to `open_runner`, which says so."""
    with contextlib.suppress(ImportError):
        importlib.import_module(RUNNERS[backend])


def open_runner(
    folder: Path,
    options: LoadOptions,
    progress: Progress,
    stage_hosts: StageHosts | None = None,
) -> Runner:
    """Open the runner of `options.backend`. Imports are inside, so that neither backend needs the
    packages of the other. `stage_hosts`: see `gpu.runners.staged_runner.StagedRunner.load`. Raises
    ModelError and DeviceError."""
    if options.backend == "torch":
        try:
            from gpu.pytorch.runner import TorchRunner
        except ModuleNotFoundError as error:
            raise DeviceError(
                f"--backend torch needs PyTorch ({error}); install it with "
                "`pip install 'tokenglass[torch]'`"
            ) from error
        return TorchRunner.load(folder, options, progress=progress)
    if options.pipeline_parallel_size > 1:
        from gpu.runners.staged_runner import StagedRunner

        return StagedRunner.load(folder, options, progress=progress, hosts=stage_hosts)
    from gpu.runners.wgpu_runner import WgpuRunner

    return WgpuRunner.load(folder, options, progress=progress)


def open_draft(folder: Path, options: LoadOptions, target: Runner, progress: Progress) -> Runner:
    """Open the runner of the draft model of `target`, which was loaded with `options`, on the same
    device: as many slots, and a KV cache of as many tokens, to which its context is cut: those of a
    target with sliding windows are fewer than its context. Raises ModelError and DeviceError."""
    progress(0.0, f"reading the draft model {folder.name}")
    config = ModelConfig.from_folder(folder)
    limits = target.limits
    n_blocks = min(limits.n_blocks, limits.slots * blocks_for(limits.context))
    dtype = options.draft_dtype or options.dtype
    kv_dtype = FORMATS[dtype].kv
    draft = replace(
        options,
        dtype=dtype,
        draft=None,
        loras={},
        expert_slots=None,
        kv_dtype=kv_dtype,
        kv_offload_bytes=0,
        kv_memory_bytes=n_blocks * block_bytes(config, kv_dtype),
        hybrid_kv_cache=False,
        context=min(limits.context, config.context, n_blocks * BLOCK_TOKENS),
    )
    if options.backend == "torch":
        return open_runner(folder, draft, progress)
    from gpu.runners.wgpu_runner import WgpuRunner

    assert isinstance(target, WgpuRunner)
    return WgpuRunner.load(folder, draft, progress=progress, beside=target)


def open_encoders(options: LoadOptions) -> Callable[[Runner], Encoders] | None:
    """Return what opens the embedding model and the encoder-decoder of `options` on the device of a
    runner; None if they name none. It raises ModelError and DeviceError."""
    embedding, encoder_decoder = options.embedding_model, options.encoder_decoder_model
    if embedding is None and encoder_decoder is None:
        return None

    def open_torch(target: Runner) -> Encoders:
        from gpu.pytorch.encoder import TorchEncoder
        from gpu.pytorch.encoder_decoder import TorchEncoderDecoder

        return Encoders(
            TorchEncoder.load(embedding) if embedding else None,
            TorchEncoderDecoder.load(encoder_decoder) if encoder_decoder else None,
        )

    def open_wgpu(target: Runner) -> Encoders:
        from gpu.runners.encoder import WgpuEncoder
        from gpu.runners.encoder_decoder import WgpuEncoderDecoder
        from gpu.runners.wgpu_runner import WgpuRunner

        assert isinstance(target, WgpuRunner)
        return Encoders(
            WgpuEncoder.load(embedding, target.gpu) if embedding else None,
            WgpuEncoderDecoder.load(encoder_decoder, target.gpu) if encoder_decoder else None,
        )

    return open_torch if options.backend == "torch" else open_wgpu


def recommended_settings(recommended: GenerationDefaults) -> SamplingParams:
    """Return the settings that the model's makers recommend; `UNRECOMMENDED` if they do not say how
    to draw."""
    values = asdict(recommended)
    start = SamplingParams() if recommended.says_how_to_draw else UNRECOMMENDED
    return replace_struct(start, **{k: value for k, value in values.items() if value is not None})


def with_dtype_of_files(
    options: LoadOptions, config: ModelConfig, checkpoint: Checkpoint
) -> LoadOptions:
    """Return the options with a storage type for "auto": that which is nearest to the files."""
    if options.dtype != AUTO:
        return options
    choice = choose_dtype(Inventory.of(config, checkpoint).saved_types)
    return replace(options, dtype=choice.dtype, dtype_reason=choice.reason)


def check_options(options: LoadOptions) -> None:
    """Raise ModelError for an option that is unknown, or that its backend does not support."""
    _check_choice("dtype", options.dtype, (*DTYPES, AUTO))
    if options.kv_dtype is not None:
        kv_format(options.kv_dtype)
    _check_choice("backend", options.backend, BACKENDS)
    _check_choice("activations", options.activations, ACTIVATIONS)
    _check_choice("spec_type", options.spec_type, SPEC_TYPES)
    if options.expert_slots is not None and options.expert_slots < 1:
        raise ModelError(f"expert_slots should be 1 or more, but is {options.expert_slots}")
    if options.draft is not None and options.spec_type != "none":
        raise ModelError(
            f"a draft model and spec_type {options.spec_type!r} both propose tokens; choose one"
        )
    if options.kv_offload_bytes and not options.prefix_cache:
        raise ModelError(
            "kv_offload_bytes keeps evicted blocks of the prefix cache, which prefix_cache=False "
            "turns off; leave one of the two out"
        )
    _check_stages(options)
    if options.backend != "torch":
        return
    if options.expert_slots is not None:
        raise ModelError(
            "--expert-slots is for --backend wgpu: PyTorch keeps all experts in host memory; "
            "leave it out"
        )
    if options.activations == "q8":
        raise ModelError(
            "--activations q8 is for --backend wgpu: PyTorch computes with float32; leave it out"
        )


def _check_stages(options: LoadOptions) -> None:
    """Raise ModelError for options that a model in stages does not support."""
    size = options.pipeline_parallel_size
    if size < 1:
        raise ModelError(f"--pipeline-parallel-size should be 1 or more, but is {size}")
    if size == 1:
        return
    for name, is_set, why in (
        ("--backend torch", options.backend == "torch", "PyTorch runs on one device"),
        ("--lora", bool(options.loras), "adapters are not cut into stages yet"),
        ("--draft", options.draft is not None, "a draft model needs the model's device"),
        ("--embedding-model", options.embedding_model is not None, "it needs the model's device"),
        (
            "--encoder-decoder-model",
            options.encoder_decoder_model is not None,
            "it needs the model's device",
        ),
    ):
        if is_set:
            raise ModelError(
                f"--pipeline-parallel-size {size} does not go with {name}: {why}; leave one of the "
                "two out"
            )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ModelError(f"{name} {value!r} is not supported; supported: {', '.join(choices)}")
