"""Device tables of interventions: factors and vectors of every slot, which the ops of
`gpu.ops.interventions` look up by the slot of a row. A change is a small write between two
steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.interventions.active import NONE_ACTIVE, ActiveInterventions
from gpu.models.workspace import PassInterventions
from gpu.ops.interventions import SUBLAYERS
from gpu.plans.capture_buffers import aligned, slice_of
from gpu.webgpu.buffers import Memory, Tensor, padded

Rows = npt.NDArray[np.float32]
"""Numbers for each layer."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Table with a row of numbers for each layer and slot. `held` (n_layers, n_slots, width) is the
    host's copy of `buffer` (n_layers, at least n_slots · width)."""

    buffer: Tensor
    held: npt.NDArray[np.float32]

    @classmethod
    def make(cls, name: str, memory: Memory, shape: tuple[int, int, int], value: float) -> _Table:
        n_layers, n_slots, width = shape
        buffer = memory.zeros(name, (n_layers, aligned(n_slots * width)))
        if value:
            memory.write(buffer, np.full(buffer.shape, value, np.float32))
        return cls(buffer, np.full(shape, value, np.float32))

    def layer(self, i: int) -> Tensor:
        """(n_slots, width)"""
        _, n_slots, width = self.held.shape
        return slice_of(self.buffer, i, (n_slots, width))

    def set(self, memory: Memory, slot: int, rows: npt.NDArray[np.float32]) -> None:
        """Set the rows of a slot (n_layers, width), writing those that change."""
        width = rows.shape[1]
        for layer in np.flatnonzero((self.held[:, slot] != rows).any(axis=1)).tolist():
            at = (layer * self.buffer.shape[1] + slot * width) * 4
            memory.write(self.buffer, rows[layer], at=at)
        self.held[:, slot] = rows


class InterventionBuffers:
    """Interventions of every slot of one model, none at first. Memory is allocated when the first
    is set."""

    def __init__(
        self, config: ModelConfig, n_slots: int, memory: Memory, n_inputs: int | None = None
    ) -> None:
        """`n_inputs`: layers before which the stream can be steered; None: all of `config`."""
        self._config = config
        self._n_inputs = n_inputs or config.n_layers
        self._n_slots = n_slots
        self._memory = memory
        self._tables: tuple[_Table, ...] = ()
        self._tensors: PassInterventions | None = None
        self._masked: _Table | None = None

    def tensors(self) -> PassInterventions:
        """Return the tables on the device, allocated at the first call."""
        if self._tensors is None:
            config, memory = self._config, self._memory
            n_layers, n_inputs, n_slots = config.n_layers, self._n_inputs, self._n_slots
            width = padded(config.hidden_size)
            heads = _Table.make(
                "interventions.heads", memory, (n_layers, n_slots, config.n_heads), 1.0
            )
            updates = _Table.make(
                "interventions.updates", memory, (n_layers, n_slots, len(SUBLAYERS)), 1.0
            )
            vectors = _Table.make("interventions.vectors", memory, (n_inputs, n_slots, width), 0.0)
            keeps = _Table.make("interventions.keeps", memory, (n_inputs, n_slots, 1), 1.0)
            self._tables = (heads, updates, vectors, keeps)
            experts = None
            if config.experts:
                shape = (n_layers, n_slots, config.experts.n_experts)
                experts = _Table.make("interventions.experts", memory, shape, 1.0)
                self._tables = (*self._tables, experts)
            update = memory.zeros("interventions.update", (memory.max_rows, width))
            self._tensors = PassInterventions(
                heads.layer,
                updates.layer,
                vectors.layer,
                keeps.layer,
                update,
                experts.layer if experts else None,
            )
        return self._tensors

    def masked(self) -> Callable[[int], Tensor]:
        """Return the masked keys of a layer (n_slots, 2 · n_heads), allocated at the first call."""
        if self._masked is None:
            # Positions are whole numbers far below 2²⁴, which float32 holds exactly.
            shape = (self._config.n_layers, self._n_slots, 2 * self._config.n_heads)
            self._masked = _Table.make("interventions.masked", self._memory, shape, 0.0)
        return self._masked.layer

    def tables(self) -> dict[str, Tensor]:
        """Return the tables that `set` writes, by their names: numbers of all slots of a layer,
        (n_layers, at least n_slots · width)."""
        self.tensors()
        return {table.buffer.name: table.buffer for table in self._tables}

    def set(self, slot: int, active: ActiveInterventions | None) -> None:
        """Set the interventions on a slot's rows for all steps submitted from now on. Raises
        InvalidRequest if they name a layer or a head that the model does not have."""
        active = active or NONE_ACTIVE
        active.validate(self._config, self._n_inputs)
        if active.masked:
            self.masked()
        if self._masked is not None:
            self._masked.set(self._memory, slot, self._mask(active))
        if self._tensors is None and not active.acts_on_base:
            return
        self.tensors()
        rows = (*self._factors(active), *self._before(active), *self._experts(active))
        for table, wanted in zip(self._tables, rows, strict=True):
            table.set(self._memory, slot, wanted)

    def _mask(self, active: ActiveInterventions) -> Rows:
        """Return the masked keys (n_layers, 2 · n_heads), first and end of each head; both 0 where
        there are none."""
        masked = np.zeros((self._config.n_layers, self._config.n_heads, 2), np.float32)
        for place, ends in active.masked.items():
            masked[place] = ends
        return masked.reshape(len(masked), -1)

    def _factors(self, active: ActiveInterventions) -> tuple[Rows, Rows]:
        """Return factors of heads (n_layers, n_heads) and updates (n_layers, len(SUBLAYERS))."""
        heads = np.ones((self._config.n_layers, self._config.n_heads), np.float32)
        for (layer, head), factor in active.heads.items():
            heads[layer, head] = factor
        updates = np.ones((self._config.n_layers, len(SUBLAYERS)), np.float32)
        for part, wanted in enumerate((active.attention, active.mlp)):
            for layer, factor in wanted.items():
                updates[layer, part] = factor
        return heads, updates

    def _before(self, active: ActiveInterventions) -> tuple[Rows, Rows]:
        """Return the vectors before each layer (n_inputs, width), and 1 or 0 for keeping or
        replacing what is there (n_inputs, 1)."""
        width = self._config.hidden_size
        vectors = np.zeros((self._n_inputs, padded(width)), np.float32)
        keeps = np.ones((self._n_inputs, 1), np.float32)
        for layer, vector in active.patch.items():
            vectors[layer, :width] = vector
            keeps[layer] = 0
        for layer, vector in active.steer.items():
            vectors[layer, :width] += vector
        return vectors, keeps

    def _experts(self, active: ActiveInterventions) -> tuple[Rows, ...]:
        """Return 1 or 0 for each expert that is on or off (n_layers, n_experts); () without
        experts."""
        if self._config.experts is None:
            return ()
        keeps = np.ones((self._config.n_layers, self._config.experts.n_experts), np.float32)
        for layer, expert in active.experts_off:
            keeps[layer, expert] = 0
        return (keeps,)
