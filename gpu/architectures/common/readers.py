"""What the readers of several architectures have in common."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.config.rope import DEFAULT_THETA, MAX_CONTEXT, RopeConfig, read_rope, read_scaling
from gpu.json_object import JsonObject

FULL, WINDOWED = "full_attention", "sliding_attention"
"""What `layer_types` calls layers."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What readers need to know of a model's sizes."""

    n_layers: int
    hidden_size: int
    head_dim: int
    context: int


def read_whole_rope(config: JsonObject, sizes: Sizes, theta: float = DEFAULT_THETA) -> RopeConfig:
    """Rotary positions of whole heads."""
    for place in (config, config.object("rope_parameters"), config.object("rope_scaling")):
        if place.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise place.error("partial_rotary_factor", "1, the only value of this architecture")
    return read_rope(config, sizes.context, sizes.head_dim, theta)


def read_rotary_dim(config: JsonObject, sizes: Sizes, share: float) -> int:
    """Numbers of a head that are turned; `share` of them where the file names none."""
    key = "partial_rotary_factor"
    for place in (config, config.object("rope_parameters"), config.object("rope_scaling")):
        share = place.number(key, 0.0, 1.0, share)
    found = int(sizes.head_dim * share)
    if found % 4:
        raise config.error(key, f"such that it turns a multiple of 4 numbers, not {found}")
    return found


def read_cap(config: JsonObject, key: str, default: float | None) -> float | None:
    """null is no cap here, not the default."""
    if key in config:
        return config.number(key, 1e-6, 1e9)
    return None if key in config.values else default


def read_gelu(config: JsonObject, default: str) -> str:
    names = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
    return names[config.choice("hidden_act", tuple(names), default)]


def read_window(config: JsonObject) -> int:
    return config.integer("sliding_window", 1, MAX_CONTEXT, 4096)


def of_layers(
    config: JsonObject, key: str, choices: tuple[object, ...], sizes: Sizes
) -> list[object]:
    """A list with an entry for each layer."""
    value = config.get(key)
    if (
        not isinstance(value, list)
        or len(value) != sizes.n_layers
        or any(entry not in choices for entry in value)
    ):
        shown = " or ".join(map(str, choices))
        raise config.error(key, f"a list of {sizes.n_layers} entries, each {shown}")
    return value


def read_windows(config: JsonObject, kinds: list[object], sizes: Sizes) -> tuple[int | None, ...]:
    """Of each layer, by `layer_types`, or by `kinds` where the file has none."""
    if "layer_types" in config:
        kinds = of_layers(config, "layer_types", (FULL, WINDOWED), sizes)
    if WINDOWED not in kinds:
        return ()
    window = read_window(config)
    return tuple(window if kind == WINDOWED else None for kind in kinds)


def read_late_windows(config: JsonObject, sizes: Sizes) -> tuple[int | None, ...]:
    """Qwen's: in layers from `max_window_layers` on."""
    if not config.boolean("use_sliding_window", False) or "sliding_window" not in config:
        return ()
    first = config.integer("max_window_layers", 0, 1024, 28)
    late: list[object] = [WINDOWED if i >= first else FULL for i in range(sizes.n_layers)]
    return read_windows(config, late, sizes)


def read_two_ropes(config: JsonObject, sizes: Sizes) -> tuple[RopeConfig, RopeConfig]:
    """Of layers without a window and of those with one, in both spellings."""
    if "rope_parameters" not in config:
        local = config.number("rope_local_base_freq", 1.0, 1e12, 1e4)
        return read_whole_rope(config, sizes, 1e6), RopeConfig(local)
    both = config.object("rope_parameters")
    full, windowed = (
        read_scaling(both.object(kind), config, sizes.context, sizes.head_dim, theta)
        for kind, theta in ((FULL, 1e6), (WINDOWED, 1e4))
    )
    return full, windowed
