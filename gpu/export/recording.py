"""Recording a model's plans on a device that is not there, from shapes alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.matrix import Shard
from gpu.checkpoint.reader import WeightSource
from gpu.checkpoint.recipe import Placement, Recipe
from gpu.checkpoint.row_layout import Arrangement, RowSource
from gpu.checkpoint.uploader import PackJob
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.info import AdapterInfo
from gpu.load_options import LoadOptions
from gpu.lora.adapter import open_loras
from gpu.plans.capture_buffers import ROW_BUCKETS
from gpu.plans.plan_cache import LEAST_ROWS, SAMPLE_BUCKETS, SAMPLING, RecordedPlan
from gpu.runners.inspection_passes import LENS_SAMPLES
from gpu.runners.loaded_model import LoadedModel
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.device import Device
from gpu.webgpu.null_device import open_null_device, portable_adapter

PROFILES: dict[str, AdapterInfo] = {
    "portable": portable_adapter(software=False),
    "software": portable_adapter(software=True),
}
"""Devices that plans are recorded for. Both need no more than every browser gives; `software` is
faster on adapters that run on the processor."""
SLOTS = 2
"""Sequences at once in a browser, not counting the slot for questions."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A loaded model, where its weights are, and plans that were recorded of it."""

    loaded: LoadedModel
    device: Device
    placements: Sequence[Placement]
    plans: Sequence[RecordedPlan]

    @classmethod
    def of(cls, loaded: LoadedModel, device: Device, placements: Sequence[Placement]) -> Recording:
        """Record all plans of `keys`."""
        plans = {}
        for kind, rows, samples, context, acting in keys(loaded):
            recorded = loaded.plans.plan(rows, samples, kind, context, *acting)
            plans[recorded.key] = recorded
        return cls(loaded, device, placements, tuple(plans.values()))

    def close(self) -> None:
        self.loaded.plans.kernels.close()


class ShapeLoader(WeightLoader):
    """Loads shapes: checks and allocates what `WeightLoader` does, and reads no numbers of the
    checkpoint."""

    def _fill_shards(self, job: PackJob, shards: Sequence[Shard], n_interleaved: int) -> None: ...

    def _fill_f32(self, recipe: Recipe, sources: list[RowSource], arrange: Arrangement) -> Tensor:
        shape = (recipe.n, padded(recipe.k)) if recipe.k else (recipe.n,)
        return self.memory.zeros(recipe.name, shape, purpose="weights")

    def _fill_array(self, name: str, array: npt.NDArray[Any]) -> Tensor:
        dtype = "u32" if array.dtype == np.uint32 else "f32"
        return self.memory.zeros(name, array.shape, dtype, purpose="weights")


def record(
    config: ModelConfig, checkpoint: WeightSource, options: LoadOptions, profile: str
) -> Recording:
    """Record the plans of a model for a profile; no GPU is needed, and no weights are read but
    those of LoRA adapters.

    Raises ModelError for options that only the server's engine has, for tensors that do not match
    the config and for adapters that do not fit the model; DeviceError for a model that exceeds the
    profile's limits.
    """
    expect_exportable(options)
    loras = open_loras(options.loras, config, checkpoint)
    device = open_null_device(PROFILES[profile])
    load = ShapeLoader(checkpoint, Memory(device), options.dtype)
    loaded = LoadedModel.make(config, options, load, loras)
    return Recording.of(loaded, device, load.placements)


def expect_exportable(options: LoadOptions) -> None:
    """Raise ModelError for options that an exported model cannot have."""
    if options.expert_slots is not None:
        raise ModelError(
            "a model whose experts wait in host memory cannot be exported: the host reads in the "
            "middle of each step which of them it needs; leave --expert-slots out"
        )
    if options.activations == "q8":
        raise ModelError(
            "an export computes with f32 activations: WebGPU has no integer products by default; "
            "leave --activations out"
        )


Acting = tuple[bool, bool]
"""Whether a plan applies interventions, and adapters."""
NOTHING_ACTS: Acting = (False, False)
Key = tuple[str, int, int, int, Acting]
"""Kind, rows, samples, context of a plan, and what acts in it."""


def keys(loaded: LoadedModel) -> Iterator[Key]:
    """Yield the key of every plan that a browser needs."""
    yield from sampling_keys(loaded)
    for acting in actings(loaded):
        yield from question_keys(loaded, acting)
    for rows in buckets(LEAST_ROWS["lens"], loaded.limits.max_captured_rows):
        for samples in (n for n in SAMPLE_BUCKETS if 0 < n <= LENS_SAMPLES):
            yield "lens", rows, samples, 1, NOTHING_ACTS


def actings(loaded: LoadedModel) -> tuple[Acting, ...]:
    """Return what plans are recorded with. Without adapters there are none for them."""
    loras = (False, True) if loaded.loras.infos else (False,)
    return tuple(itertools.product((False, True), loras))


def sampling_keys(loaded: LoadedModel) -> Iterator[Key]:
    """Yield the keys of steps that write texts."""
    limits = loaded.limits
    for kind, acting in itertools.product(SAMPLING, actings(loaded)):
        most = limits.max_captured_rows if kind == "captured" else limits.max_rows
        for rows in buckets(1, most):
            for context in contexts(loaded, rows):
                for samples in range(min(rows, limits.slots) + 1):
                    yield kind, rows, samples, context, acting


def question_keys(loaded: LoadedModel, acting: Acting) -> Iterator[Key]:
    """Yield the keys of steps that answer instruments, but for the lens's own."""
    limits, has_experts = loaded.limits, bool(loaded.config.expert_layers)
    for rows in buckets(1, limits.max_rows):
        for context in contexts(loaded, rows):
            yield "weights", rows, 0, context, acting
            for samples in (n for n in SAMPLE_BUCKETS if 0 < n <= min(rows, limits.max_samples)):
                yield "logits", rows, samples, context, acting
            if has_experts:
                yield "routes", rows, 0, context, acting
            if LEAST_ROWS["states"] <= rows <= limits.max_captured_rows:
                yield "states", rows, 0, context, acting


def buckets(least: int, most: int) -> Iterator[int]:
    """Yield the numbers of rows that plans are recorded for, from `least` to `most`."""
    return (rows for rows in ROW_BUCKETS if least <= rows <= most)


def contexts(loaded: LoadedModel, rows: int) -> Iterator[int]:
    """Yield a context for each number of splits that steps of `rows` rows can have."""
    split, longest = loaded.plans.split_tokens, loaded.limits.context
    context = min(split, longest)
    yield context
    while rows <= loaded.plans.split_rows and context < longest:
        context = min(2 * context, longest)
        yield context
