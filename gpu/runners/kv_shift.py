"""Shift of cached tokens to other positions on the device (llama.cpp: K-shift): the plans of
`gpu.ops.shift_kv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu import ops
from gpu.config import ModelConfig
from gpu.kv.copies import TokenMove
from gpu.kv.pools import KvPools
from gpu.models.decoder import Decoder
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Plan, Recorder

MAX_MOVES = 256
"""Moves of one submission: as many rows as a large step has."""


class KvShift:
    """Shifts tokens in one model's cache. The plan of a group of layers, one dispatch for each, is
    recorded when the first tokens are shifted. Used by one thread."""

    def __init__(self, model: Decoder, pools: KvPools, kernels: Kernels, memory: Memory) -> None:
        self._model = model
        self._pools = pools
        self._kernels = kernels
        self._memory = memory
        self._calls = open_calls(memory.device)
        self._moves = ops.make_moves(memory, MAX_MOVES)
        self._prepared: dict[int, Any] = {}  # by group

    def submit(self, moves: Sequence[TokenMove], group: int = 0) -> None:
        """Move tokens of a group, after the steps submitted so far and before the next. No
        destination may be a source."""
        if not self._pools.groups[group].layers:
            return  # the group has no layers in this stage
        if group not in self._prepared:
            self._prepared[group] = self._calls.prepare(StepCommands(self.plan(group).segments()))
        for at in range(0, len(moves), MAX_MOVES):
            self._memory.write(self._moves, ops.pack_moves(moves[at : at + MAX_MOVES]))
            self._calls.submit(self._calls.encode(self._prepared[group]))

    def plan(self, group: int = 0) -> Plan:
        """Record the dispatches of a group's layers."""
        rec = Recorder(self._memory.device, self._kernels)
        config = self._model.config
        for i in self._pools.groups[group].layers:
            rope = _rope(config, self._model, i)
            ops.shift_kv(
                rec, f"{config.layer_name(i)}.kv.shift", config, self._moves, rope, self._pools, i
            )
        return rec.plan


def _rope(config: ModelConfig, model: Decoder, layer: int) -> ops.LayerRope | None:
    rope, cos_sin = config.rope_of(layer), model.rope(layer)
    if rope is None or cos_sin is None:
        return None
    return ops.LayerRope(cos_sin, rope.attention_factor)
