"""Expert offloading: steps of a mixture of experts whose experts are not all on the device. A step
runs up to each router in turn, the host reads which experts were chosen and uploads those that are
missing, and the step goes on.

If the rows of a layer use more experts than it has slots, its expert matmuls run several times,
each time for the resident experts; the results of other assignments stay as they are
(`gpu.ops.moe`). An assignment's result has the same bits in whichever slot its weights lie, so
results are those of a fully resident model.

A captured step also measures how long each layer's experts take to get there, and therefore waits
for them; other steps let the device copy them while the host prepares the matmuls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.models.layer import Moe
from gpu.ops.moe import NOT_RESIDENT
from gpu.plans.plan_cache import RecordedPlan
from gpu.runners.expert_slots import ExpertSlots, ResidentExperts
from gpu.step import ExpertUse, LayerExpertUse
from gpu.webgpu.buffers import Memory
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import BufferCopy, PassDispatch, StepCommands
from gpu.webgpu.plan import Dispatch, Plan

ROUTING, EXPERT_MATMUL = "moe_topk", "moe_matmul"
"""Shader that chooses the experts, and the shader that reads their weights."""

Segment = tuple[PassDispatch, ...]


@dataclass(frozen=True, slots=True)
class OffloadedLayer:
    """An MoE layer in a plan. `before`: commands from the expert matmuls of the MoE layer before up
    to this one's routing, which they copy to the host; `matmuls`: this layer's expert matmuls
    alone."""

    layer: int
    before: Any
    matmuls: Any


class ExpertOffload:
    """The experts of one model in the slots of its layers. Used by one thread."""

    def __init__(self, memory: Memory, moes: Mapping[int, Moe], experts_per_token: int) -> None:
        """`moes`: by layer; `experts_per_token`: experts of each row."""
        self._memory = memory
        self._moes = moes
        self._experts_per_token = experts_per_token
        self._layer_of = {moe.slots.name: i for i, moe in moes.items()}
        self._slots = {i: ExpertSlots(of.gate_up.n_slots) for i, of in moes.items()}
        self._calls = open_calls(memory.device)
        n_bytes = 4 * memory.max_rows * experts_per_token
        self._routed = self._calls.readback(n_bytes, "routed")
        memory.n_bytes["work"] += n_bytes

    def run_offloaded(self, recorded: RecordedPlan, n_rows: int) -> ExpertUse:
        """Run a plan up to what `rest` returns, for the first `n_rows` rows; blocks."""
        if not recorded.offloaded:
            recorded.offloaded.extend(self._split(recorded.plan))
        used, timed = ExpertUse(), recorded.capture is not None
        for moe in recorded.offloaded:
            self._calls.submit(self._calls.encode(moe.before, self._routed), self._routed)
            *others, last = rounds = self._slots[moe.layer].rounds(self._chosen(n_rows))
            ms = 0.0
            for part in others:
                ms += self._load_experts(moe.layer, part, timed=timed)
                self._calls.submit(self._calls.encode(moe.matmuls))
            ms += self._load_experts(moe.layer, last, timed=timed)
            used = used.plus(self._usage(moe.layer, rounds, ms if timed else None))
        return used

    def rest(self, plan: Plan) -> Segment:
        """Return the rest of a plan, from the expert matmuls of its last MoE layer on."""
        first = max((run.start for run in _expert_matmuls(plan)), default=0)
        return tuple(dispatch.in_pass for dispatch in plan.dispatches[first:])

    def _split(self, plan: Plan) -> list[OffloadedLayer]:
        """Split a plan before and after the expert matmuls of each layer."""
        layers, first = [], 0
        for run in _expert_matmuls(plan):
            of_layer = plan.dispatches[run]
            chosen = _last(ROUTING, plan.dispatches[: run.start]).tensors["expert_ids"]
            copy = BufferCopy(chosen.buffer, chosen.n_bytes, 0, chosen.offset)
            before = plan.dispatches[first : run.start]
            layers.append(
                OffloadedLayer(
                    self._layer_of[_last(EXPERT_MATMUL, of_layer).tensors["slots"].name],
                    self._calls.prepare(StepCommands((_in_pass(before),), (copy,))),
                    self._calls.prepare(StepCommands((_in_pass(of_layer),))),
                )
            )
            first = run.start
        return layers

    def _chosen(self, n_rows: int) -> list[int]:
        """Return the experts that the rows of the step were routed to."""
        data = self._routed.read(4 * n_rows * self._experts_per_token)
        found: list[int] = np.unique(np.frombuffer(data, np.uint32)).tolist()
        return found

    def _usage(self, layer: int, rounds: list[ResidentExperts], ms: float | None) -> ExpertUse:
        """Return how a step used the experts of a layer. `ms`: the time of their copies, None if
        it was not measured."""
        brought = tuple(expert for part in rounds for expert in part.loads)
        found = tuple(e for part in rounds for e in part.places if e not in part.loads)
        n_bytes = len(brought) * sum(stack.expert_bytes for stack in self._moes[layer].stacks)
        if ms is None:
            return ExpertUse(len(found), len(brought), n_bytes)
        held = self._slots[layer].held
        of_layer = LayerExpertUse(layer, found, brought, held, n_bytes, ms)
        return ExpertUse(len(found), len(brought), n_bytes, (of_layer,))

    def _load_experts(self, layer: int, part: ResidentExperts, *, timed: bool) -> float:
        """Upload the experts of a round that are not resident, and the table of their slots; return
        the milliseconds until the device has them, 0 unless `timed`."""
        if timed and part.loads:
            self._calls.wait(self._calls.flush())  # matmuls of the round before
            began = time.perf_counter()
            self._upload(layer, part)
            self._calls.wait(self._calls.flush())
            return (time.perf_counter() - began) * 1e3
        self._upload(layer, part)
        return 0.0

    def _upload(self, layer: int, part: ResidentExperts) -> None:
        moe = self._moes[layer]
        for expert in part.loads:
            for stack in moe.stacks:
                stack.upload(self._memory, expert, part.places[expert])
        table = np.full(moe.slots.shape, NOT_RESIDENT, np.uint32)
        table[list(part.places)] = list(part.places.values())
        self._memory.write(moe.slots, table)


def _expert_matmuls(plan: Plan) -> list[slice]:
    """Return the dispatches of each layer's expert matmuls in a plan, those of adapters
    included."""
    runs: list[slice] = []
    for at, dispatch in enumerate(plan.dispatches):
        if dispatch.kernel.name == ROUTING:
            runs.append(slice(0, 0))
        elif dispatch.kernel.name == EXPERT_MATMUL:
            runs[-1] = slice(runs[-1].start or at, at + 1)
    return runs


def _last(shader: str, dispatches: Sequence[Dispatch]) -> Dispatch:
    return next(found for found in reversed(dispatches) if found.kernel.name == shader)


def _in_pass(dispatches: list[Dispatch]) -> Segment:
    return tuple(dispatch.in_pass for dispatch in dispatches)
