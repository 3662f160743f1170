"""Process that records the plans of models that pages name. It has limits, for their configs come
from anywhere."""

from __future__ import annotations

from typing import Any

import msgspec

from app.config import Dtype
from app.local.model_files import SLOTS
from gpu import (
    DeviceError,
    GenerationDefaults,
    LoadOptions,
    ModelError,
    PlansOfShapes,
    SamplingParams,
    recommended_settings,
    record_shapes,
)


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model to record plans of: its config.json and generation_config.json, and the shapes of its
    tensors by name."""

    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    dtype: Dtype
    profile: str


class Plans(msgspec.Struct, frozen=True, tag=True):
    """What was recorded, and the sampling settings that the model's makers recommend."""

    recorded: PlansOfShapes
    defaults: SamplingParams


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Why a model cannot be run."""

    fault: str


def answer(request: bytes) -> bytes:
    """Return `Plans` or `Fault` for a `PlanRequest`, all in msgpack."""
    asked = msgspec.msgpack.decode(request, type=PlanRequest)
    options = LoadOptions(dtype=asked.dtype, slots=SLOTS)
    try:
        defaults = recommended_settings(GenerationDefaults.of(asked.generation))
        recorded = record_shapes(
            asked.config, asked.generation, asked.tensors, options, asked.profile
        )
    except (ModelError, DeviceError) as error:
        return msgspec.msgpack.encode(Fault(str(error)))
    return msgspec.msgpack.encode(Plans(recorded, defaults))
