"""Messages to the process that records plans, and its answers."""

from __future__ import annotations

from typing import Any

import msgspec

from app.config import Dtype
from gpu import PlansOfShapes, SamplingParams


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model to record plans of: its name on the hub, its config.json and generation_config.json,
    and the shapes of its tensors by name."""

    name: str
    config: dict[str, Any]
    generation: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    dtype: Dtype
    profile: str


class Plans(msgspec.Struct, frozen=True, tag=True):
    """Recorded plans, and the sampling settings that the model's makers recommend."""

    recorded: PlansOfShapes
    defaults: SamplingParams


class PlanRefusal(msgspec.Struct, frozen=True, tag=True):
    """Refusal of a model that cannot be run; `fault` says why."""

    fault: str
