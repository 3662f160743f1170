"""Plans of a model of which only the config and the shapes of its tensors are known: its weights
are elsewhere, as on a hub that a browser reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu.checkpoint.open_model import with_own_head
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.export.manifest import PlansOfShapes
from gpu.export.plan_builder import build_plan
from gpu.export.plan_format import encode_plan
from gpu.export.recording import PROFILES, record
from gpu.files.json_object import JsonObject
from gpu.load_options import LoadOptions

WHERE = Path("config.json")
"""How errors call the model."""
MAX_DIMENSIONS = 8


def record_shapes(
    config: dict[str, Any],
    generation: dict[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    options: LoadOptions,
    profile: str,
) -> PlansOfShapes:
    """Record the plans of a model for a profile.

    config, generation  its config.json and generation_config.json
    shapes              of its tensors, by their names in the files

    Raises ModelError for what cannot be run or is not a model, DeviceError for one that exceeds the
    limits of the profile.
    """
    if profile not in PROFILES:
        raise ModelError(f"profile must be one of {', '.join(PROFILES)}, but is {profile!r}")
    where = JsonObject(str(WHERE), config)
    checked = ModelConfig.of(where, JsonObject("generation_config.json", generation))
    checkpoint = _checkpoint(shapes)
    checked = with_own_head(checked, checkpoint)
    recording = record(checked, checkpoint, options, profile)
    try:
        plan, constants = build_plan(recording, profile)
    finally:
        recording.close()
    parameters = checkpoint.parameters(checked.tie_embeddings)
    return PlansOfShapes(encode_plan(plan), constants, parameters, plan.kv_dtype)


def _checkpoint(shapes: Mapping[str, tuple[int, ...]]) -> Checkpoint:
    for name, shape in shapes.items():
        if len(shape) > MAX_DIMENSIONS or any(not 0 <= size < 1 << 31 for size in shape):
            raise ModelError(
                f"tensor {name[:100]!r}: expected at most {MAX_DIMENSIONS} dimensions of less than "
                f"2^31 numbers, but got {shape[: MAX_DIMENSIONS + 1]}"
            )
    return Checkpoint.of_shapes(WHERE, shapes)
