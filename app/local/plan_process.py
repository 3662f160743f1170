"""Process that records the plans of models that pages name. It has limits, for their configs come
from anywhere."""

from __future__ import annotations

import msgspec

from app.local.model_files import SLOTS
from app.local.plan_messages import PlanRefusal, PlanRequest, Plans
from app.models.known import card_settings
from gpu import (
    DeviceError,
    GenerationDefaults,
    LoadOptions,
    ModelError,
    recommended_settings,
    shapes_recorder,
)

record_shapes = shapes_recorder()  # imported here, as its time would count as the request's


def answer(request: bytes) -> bytes:
    """Return `Plans` or `PlanRefusal` for a `PlanRequest`, all in msgpack."""
    asked = msgspec.msgpack.decode(request, type=PlanRequest)
    options = LoadOptions(dtype=asked.dtype, slots=SLOTS)
    try:
        defaults = recommended_settings(
            GenerationDefaults.of(asked.generation).or_those_of(card_settings(asked.name))
        )
        recorded = record_shapes(
            asked.config, asked.generation, asked.tensors, options, asked.profile
        )
    except (ModelError, DeviceError) as error:
        return msgspec.msgpack.encode(PlanRefusal(str(error)))
    return msgspec.msgpack.encode(Plans(recorded, defaults))
