"""Groups of layers that share a block table. Host logic only.

In a model that alternates sliding-window and full-attention layers, the former can free a block
when it leaves their window, and the latter only when the sequence ends. So the layers are cut into
groups of one window each, with a block table for every group, as in vLLM's hybrid KV cache manager.
All groups have the same number of layers (the last of a window may have fewer), so blocks have the
same size, and one pool serves all groups: what one frees another can take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu.config import ModelConfig, Stage

MAX_GROUPS = 8
"""Upper bound of groups: the host writes a block table for each, and where a step's rows go."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table. `window`: keys that a row reads at most in any of them;
    None: all."""

    layers: tuple[int, ...]
    window: int | None


def single_group(config: ModelConfig) -> tuple[KvGroup, ...]:
    """Return all layers as one group."""
    return (KvGroup(tuple(range(config.n_layers)), config.largest_window),)


def groups_by_window(config: ModelConfig) -> tuple[KvGroup, ...]:
    """Return the layers in groups of one window each, the widest windows first."""
    by_window: dict[int | None, list[int]] = {}
    for layer in range(config.n_layers):
        by_window.setdefault(config.sliding_window_of(layer), []).append(layer)
    windows = sorted(by_window, key=lambda w: math.inf if w is None else w, reverse=True)
    counts = [len(by_window[window]) for window in windows]
    if len(windows) > MAX_GROUPS:
        return single_group(config)
    size = _group_size(counts)
    return tuple(
        KvGroup(tuple(by_window[window][at : at + size]), window)
        for window in windows
        for at in range(0, len(by_window[window]), size)
    )


def groups_of_stage(groups: tuple[KvGroup, ...], stage: Stage) -> tuple[KvGroup, ...]:
    """Return the layers of each group that are in a stage, counted from the first of the stage; a
    group may have none there."""
    return tuple(KvGroup(stage.own(group.layers), group.window) for group in groups)


def group_size(groups: tuple[KvGroup, ...]) -> int:
    """Return the number of layers of a full group, whose keys and values one block holds."""
    return max(len(group.layers) for group in groups)


def _group_size(counts: list[int]) -> int:
    """Return the group size that wastes least, for `counts` layers of each window. Groups that are
    not full waste memory, those of the widest window most: their blocks are kept longest."""

    def cost(size: int) -> tuple[int, int, int]:
        padding = [-n % size for n in counts]
        return padding[0], sum(padding), -size

    sizes = range(1, max(counts) + 1)
    return min((s for s in sizes if sum(-(-n // s) for n in counts) <= MAX_GROUPS), key=cost)
