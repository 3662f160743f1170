"""Interventions on the device: factors and vectors of every slot, which the ops of `gpu.ops.reach`
look up by the slot of a row. Changing one is a small write between two steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.models.workspace import Reached
from gpu.ops.reach import PARTS
from gpu.ops.step_buffer import MAX_ROWS
from gpu.plans.arenas import aligned, part_of
from gpu.reach import NOTHING, Reach
from gpu.webgpu.buffers import Memory, Tensor, padded

Rows = npt.NDArray[np.float32]
"""Numbers for each layer."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A row of numbers for each layer and slot. `held` (n_layers, n_slots, width) is what lies in
    `arena` (n_layers, at least n_slots · width)."""

    arena: Tensor
    held: npt.NDArray[np.float32]

    @classmethod
    def make(cls, name: str, memory: Memory, shape: tuple[int, int, int], value: float) -> _Table:
        n_layers, n_slots, width = shape
        arena = memory.zeros(name, (n_layers, aligned(n_slots * width)))
        if value:
            memory.write(arena, np.full(arena.shape, value, np.float32))
        return cls(arena, np.full(shape, value, np.float32))

    def layer(self, i: int) -> Tensor:
        """(n_slots, width)"""
        _, n_slots, width = self.held.shape
        return part_of(self.arena, i, (n_slots, width))

    def set(self, memory: Memory, slot: int, rows: npt.NDArray[np.float32]) -> None:
        """Make the rows of a slot (n_layers, width) these, writing those that change."""
        width = rows.shape[1]
        for layer in np.flatnonzero((self.held[:, slot] != rows).any(axis=1)).tolist():
            at = (layer * self.arena.shape[1] + slot * width) * 4
            memory.write(self.arena, rows[layer], at=at)
        self.held[:, slot] = rows


class ReachTables:
    """The interventions of every slot of one model, nothing at first. Takes no memory before the
    first is set."""

    def __init__(self, config: ModelConfig, n_slots: int, memory: Memory) -> None:
        self._config = config
        self._n_slots = n_slots
        self._memory = memory
        self._tables: tuple[_Table, ...] = ()
        self._reached: Reached | None = None

    def reached(self) -> Reached:
        """The tables on the device, made now if this is the first time."""
        if self._reached is None:
            config, memory = self._config, self._memory
            n_layers, n_slots = config.n_layers, self._n_slots
            width = padded(config.hidden_size)
            heads, updates, vectors, keeps = self._tables = (
                _Table.make("reach.heads", memory, (n_layers, n_slots, config.n_heads), 1.0),
                _Table.make("reach.updates", memory, (n_layers, n_slots, len(PARTS)), 1.0),
                _Table.make("reach.vectors", memory, (n_layers, n_slots, width), 0.0),
                _Table.make("reach.keeps", memory, (n_layers, n_slots, 1), 1.0),
            )
            update = memory.zeros("reach.update", (MAX_ROWS, width))
            self._reached = Reached(heads.layer, updates.layer, vectors.layer, keeps.layer, update)
        return self._reached

    def set(self, slot: int, reach: Reach | None) -> None:
        """What acts on the rows of a slot in the steps submitted after this. Raises InvalidRequest
        for what the model has not."""
        reach = reach or NOTHING
        reach.expect(self._config)
        if self._reached is None and not reach.acts_on_base:
            return
        self.reached()
        rows = (*self._factors(reach), *self._before(reach))
        for table, wanted in zip(self._tables, rows, strict=True):
            table.set(self._memory, slot, wanted)

    def _factors(self, reach: Reach) -> tuple[Rows, Rows]:
        """Of heads (n_layers, n_heads) and of updates (n_layers, len(PARTS))."""
        heads = np.ones((self._config.n_layers, self._config.n_heads), np.float32)
        for (layer, head), factor in reach.heads.items():
            heads[layer, head] = factor
        updates = np.ones((self._config.n_layers, len(PARTS)), np.float32)
        for part, wanted in enumerate((reach.attention, reach.mlp)):
            for layer, factor in wanted.items():
                updates[layer, part] = factor
        return heads, updates

    def _before(self, reach: Reach) -> tuple[Rows, Rows]:
        """Before each layer: vectors (n_layers, width) and what is kept (n_layers, 1)."""
        width = self._config.hidden_size
        vectors = np.zeros((self._config.n_layers, padded(width)), np.float32)
        keeps = np.ones((self._config.n_layers, 1), np.float32)
        for layer, vector in reach.patch.items():
            vectors[layer, :width] = vector
            keeps[layer] = 0
        for layer, vector in reach.steer.items():
            vectors[layer, :width] += vector
        return vectors, keeps
