"""Readers of config.json that several architectures share."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.architectures.common.rope import (
    DEFAULT_THETA,
    MAX_CONTEXT,
    RopeConfig,
    read_rope,
    read_scaling,
)
from gpu.files.json_object import JsonObject

FULL_ATTENTION, SLIDING_ATTENTION = "full_attention", "sliding_attention"
"""Values of `layer_types`."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model that readers need."""

    n_layers: int
    hidden_size: int
    head_dim: int
    context: int


def read_full_rope(config: JsonObject, sizes: Sizes, theta: float = DEFAULT_THETA) -> RopeConfig:
    """Read rotary positions of whole heads."""
    for place in (config, config.object("rope_parameters"), config.object("rope_scaling")):
        if place.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise place.error("partial_rotary_factor", "1, the only value of this architecture")
    return read_rope(config, sizes.context, sizes.head_dim, theta)


def read_rotary_dim(config: JsonObject, sizes: Sizes, share: float) -> int:
    """Return the dimensions of a head that are rotated; `share`: the default, of all."""
    key = "partial_rotary_factor"
    for place in (config, config.object("rope_parameters"), config.object("rope_scaling")):
        share = place.number(key, 0.0, 1.0, share)
    found = int(sizes.head_dim * share)
    if found % 4:
        raise config.error(key, f"such that it rotates a multiple of 4 dimensions, not {found}")
    return found


def read_softcap(config: JsonObject, key: str, default: float | None) -> float | None:
    """Read a soft cap. A null means no cap here, not the default."""
    if key in config:
        return config.number(key, 1e-6, 1e9)
    return None if key in config.values else default


def read_gelu(config: JsonObject, default: str) -> str:
    """Read one of the names that transformers has for GELU and for its approximation by tanh."""
    tanh = dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh")
    names = {**tanh, "gelu": "gelu"}
    return names[config.choice("hidden_act", tuple(names), default)]


def read_sliding_window(config: JsonObject, default: int | None = 4096) -> int | None:
    """Read the window of layers that have one. A null means none here, not the default."""
    key = "sliding_window"
    if key in config or (default is not None and key not in config.values):
        return config.integer(key, 1, MAX_CONTEXT, default)
    return None


def read_layer_list(
    config: JsonObject, key: str, choices: tuple[object, ...], sizes: Sizes
) -> list[object]:
    """Read a list with an entry for each layer."""
    value = config.get(key)
    if (
        not isinstance(value, list)
        or len(value) != sizes.n_layers
        or any(entry not in choices for entry in value)
    ):
        shown = " or ".join(map(str, choices))
        raise config.error(key, f"a list of {sizes.n_layers} entries, each {shown}")
    return value


def read_sliding_windows(
    config: JsonObject, kinds: list[object], sizes: Sizes, default: int | None = 4096
) -> tuple[int | None, ...]:
    """Read the window of each layer, by `layer_types`; `kinds`: its default. `default`: the window
    if the config does not say."""
    if "layer_types" in config:
        kinds = read_layer_list(config, "layer_types", (FULL_ATTENTION, SLIDING_ATTENTION), sizes)
    if SLIDING_ATTENTION not in kinds:
        return ()
    window = read_sliding_window(config, default)
    return (
        ()
        if window is None
        else tuple(window if kind == SLIDING_ATTENTION else None for kind in kinds)
    )


def read_max_window_layers(config: JsonObject, sizes: Sizes) -> tuple[int | None, ...]:
    """Read Qwen's windows, which the layers from `max_window_layers` on have."""
    if not config.boolean("use_sliding_window", False):
        return ()
    first = config.integer("max_window_layers", 0, 1024, 28)
    late: list[object] = [
        SLIDING_ATTENTION if i >= first else FULL_ATTENTION for i in range(sizes.n_layers)
    ]
    return read_sliding_windows(config, late, sizes)


def read_global_and_local_rope(
    config: JsonObject, sizes: Sizes, theta: float = 1e6
) -> tuple[RopeConfig, RopeConfig]:
    """Read rotary positions of layers without a window, and with one, in both spellings. `theta`:
    the default of those without."""
    if "rope_parameters" not in config:
        local = config.number("rope_local_base_freq", 1.0, 1e12, 1e4)
        return read_full_rope(config, sizes, theta), RopeConfig(local)
    both = config.object("rope_parameters")
    full, windowed = (
        read_scaling(both.object(kind), config, sizes.context, sizes.head_dim, default)
        for kind, default in ((FULL_ATTENTION, theta), (SLIDING_ATTENTION, 1e4))
    )
    return full, windowed
