"""Export of a model: its plans for every profile, and its weights in pieces."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpu.checkpoint.open_model import open_model
from gpu.checkpoint.reader import Checkpoint, Progress, weight_progress
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.export.manifest import ExportedFile, ExportedModel, ExportedWeights
from gpu.export.plan_builder import build_plan
from gpu.export.plan_format import PlanFile, encode_plan
from gpu.export.recording import PROFILES, record
from gpu.export.weight_pieces import PieceLoader, PieceWriter
from gpu.load_options import LoadOptions
from gpu.lora.adapter import open_loras
from gpu.models.registry import MODELS
from gpu.plans.lora_buffers import LoraBuffers
from gpu.webgpu.buffers import Memory
from gpu.webgpu.null_device import open_null_device

PLANS, WEIGHTS = "plans", "weights"
"""Folders of an export."""


def export_model(
    folder: Path,
    out: Path,
    options: LoadOptions,
    profiles: Sequence[str] = tuple(PROFILES),
    progress: Progress = lambda fraction, message: None,
) -> ExportedModel:
    """Write plans and weights of the model in `folder` to the folder `out`.

    Pieces of weights that `out` has already are taken to be this model's. Raises ModelError for a
    model that cannot be exported or written, DeviceError for one that exceeds the limits of a
    profile.
    """
    config, checkpoint = open_model(folder)
    plans: dict[str, PlanFile] = {}
    constants: dict[str, bytes] = {}
    for name in profiles:
        progress(0.0, f"recording plans for {name} devices")
        with _no_garbage():
            recording = record(config, checkpoint, options, name)
            plans[name], found = build_plan(recording, name)
        recording.close()
        constants |= found
    weights = _common_weights(plans)
    try:
        (out / PLANS).mkdir(parents=True, exist_ok=True)
        files = {}
        for name, plan in plans.items():
            path = out / PLANS / f"{name}.plan"
            path.write_bytes(encode_plan(plan))
            files[name] = ExportedFile.of(out, path)
        written = _write_weights(config, checkpoint, options, weights, constants, out, progress)
    except OSError as error:
        raise ModelError(f"{out}: cannot be written ({error.strerror or error})") from error
    parameters = checkpoint.parameters(config.tie_embeddings)
    return ExportedModel(options.dtype, weights.kv_dtype, parameters, files, written)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Let Python search for no garbage meanwhile: a third of a recording's time was spent on the
    hundreds of thousands of objects that live to its end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _common_weights(plans: dict[str, PlanFile]) -> PlanFile:
    """Return one of the plans, after checking that all have the same weights."""
    first, *others = plans.values()
    for other in others:
        if other.weights != first.weights:
            raise AssertionError(f"{other.profile} and {first.profile} have other weights")
    return first


def _write_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    options: LoadOptions,
    plan: PlanFile,
    constants: dict[str, bytes],
    out: Path,
    progress: Progress,
) -> ExportedWeights:
    n_bytes, limits = sum(weight.bytes for weight in plan.weights), plan.limits
    writer = PieceWriter(out / WEIGHTS, n_bytes)
    memory = Memory(open_null_device(PROFILES[plan.profile]))
    on_weights = weight_progress(progress, checkpoint, config.tie_embeddings, "writing")
    load = PieceLoader(checkpoint, memory, options.dtype, plan.weights, writer, on_weights)
    model = MODELS[config.model_type](config, load, memory, limits.context)
    loras = open_loras(options.loras, config, checkpoint)
    LoraBuffers(model, loras, limits.slots + 1, load)
    for weight in plan.weights:
        if weight.name in constants:
            load.save(np.frombuffer(constants[weight.name], np.uint8))
    return ExportedWeights(n_bytes, writer.pieces())
