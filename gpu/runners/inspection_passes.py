"""Inspection passes on a GPU: a step runs again, through plans that keep intermediate values.

Requests that exceed the memory for these values are split, rows into several steps and keys into
ranges, one pass for each. Rows run in the order of their positions, so that each finds the keys
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.models.workspace import AttentionCapture, States
from gpu.plans.capture_buffers import slice_of
from gpu.plans.plan_cache import PlanCache, RecordedPlan, StepTensors
from gpu.runners.step_queue import StepQueue
from gpu.step import ExpertChoices, Floats, InspectionRequest, InspectionResult, Sample, Step
from gpu.webgpu.buffers import Memory, Tensor

LENS_SAMPLES = 4
"""States whose logits are computed together: as many rows as concurrent runs commonly sample, so
that the kernel is compiled already."""

Places = npt.NDArray[np.intp]
"""Indices of rows in a step."""


class InspectionPasses:
    """Passes that answer inspection requests for one model. No steps may be in flight."""

    def __init__(
        self,
        config: ModelConfig,
        plans: PlanCache,
        queue: StepQueue,
        tensors: StepTensors,
        memory: Memory,
    ) -> None:
        self._config = config
        self._plans = plans
        self._queue = queue
        self._tensors = tensors
        self._memory = memory

    def run(self, step: Step, request: InspectionRequest) -> InspectionResult:
        """Run `step` and return what `request` asks for. Raises InvalidRequest if memory does not
        even hold the attention of one row to one key."""
        attention = self._attention(step, *request.keys) if request.keys is not None else None
        states = self._all_states(step) if request.states else None
        lens = self._lens(step) if request.lens else None
        routes = self._routes(step) if request.routes else None
        last_hidden = self._last_hidden(step) if request.last_hidden else None
        return InspectionResult(attention, lens, states, routes, last_hidden)

    def first_plans(self) -> list[RecordedPlan]:
        """Return the plans whose kernels the first inspection needs."""
        return [self._plans.plan(1, 0, "weights"), self._plans.plan(1, LENS_SAMPLES, "lens")]

    # ---- attention --------------------------------------------------------------------------

    def _attention(self, step: Step, first: int, n: int) -> Floats:
        """Return attention weights, (n_rows, n_layers, n_heads, n)."""
        n_layers, n_heads = self._config.n_layers, self._config.n_heads
        room = self._plans.weights_room
        if room < n_heads:
            raise InvalidRequest(
                f"the attention of one row to one key takes {4 * n_heads:,} bytes in each of "
                f"{n_layers} layers, but this device keeps {4 * room:,} of a layer; use another "
                "device",
                "keys",
            )
        found = np.empty((len(step.rows), n_layers, n_heads, n), np.float32)
        for rows, part in _parts(step, room // n_heads):
            recorded = self._plans.plan(
                len(rows), 0, "weights", part.context, part.interventions, part.loras
            )
            weights = recorded.instruments.attention
            assert weights is not None
            at_once = room // (len(rows) * n_heads)
            for at in range(0, n, at_once):
                keys = slice(at, min(at + at_once, n))
                asked = np.array([first + keys.start, keys.stop - keys.start], np.uint32)
                self._memory.write(weights.keys, asked)
                self._queue.run(recorded, part)
                found[rows, :, :, keys] = self._read_weights(weights, len(rows), int(asked[1]))
        return found

    def _read_weights(self, weights: AttentionCapture, n_rows: int, n_keys: int) -> Floats:
        """Return the captured weights, (n_rows, n_layers, n_heads, n_keys)."""
        layers = self._memory.read(weights.layers)
        n_heads = self._config.n_heads
        used = layers[:, : n_rows * n_heads * n_keys].reshape(-1, n_rows, n_heads, n_keys)
        found: Floats = used.swapaxes(0, 1)
        return found

    # ---- experts ----------------------------------------------------------------------------

    def _routes(self, step: Step) -> ExpertChoices:
        experts, layers = self._config.experts, self._config.expert_layers
        if experts is None:
            raise InvalidRequest(f"{self._config.model_type} models have no experts", "routes")
        n_rows, experts_per_token = len(step.rows), experts.experts_per_token
        recorded = self._plans.plan(
            n_rows, 0, "routes", step.context, step.interventions, step.loras
        )
        self._queue.run(recorded, step)
        routed = recorded.instruments.routing_capture
        assert routed is not None

        def read(tensor: Tensor) -> npt.NDArray[Any]:
            """Return a capture as (n_rows, n_expert_layers, experts_per_token)."""
            used = self._memory.read(tensor)[:, : n_rows * experts_per_token]
            return used.reshape(len(layers), n_rows, experts_per_token).swapaxes(0, 1)

        return ExpertChoices(read(routed.chosen), read(routed.gates), read(routed.lengths))

    # ---- the residual stream ----------------------------------------------------------------

    def _last_hidden(self, step: Step) -> Floats:
        """Return the final norm of the stream after the last layer, (n_rows, hidden_size)."""
        recorded = self._plans.plan(
            len(step.rows), 0, "last_hidden", step.context, step.interventions, step.loras
        )
        self._queue.run(recorded, step)
        kept = recorded.instruments.last_hidden
        assert kept is not None
        found: Floats = self._memory.read(slice_of(kept, 0, (len(step.rows), kept.shape[1])))
        return found[:, : self._config.hidden_size]

    def _all_states(self, step: Step) -> Floats:
        """Return the residual stream, (n_rows, n_layers + 1, hidden_size)."""
        n_states, width = self._config.n_layers + 1, self._config.hidden_size
        found = np.empty((len(step.rows), n_states, width), np.float32)
        for rows, part in _parts(step, self._plans.max_captured_rows):
            states = self._keep_states(part)
            kept = self._memory.read(states.as_rows).reshape(n_states, states.n_rows, -1)
            found[rows] = kept[:, : len(rows), :width].swapaxes(0, 1)
        return found

    def _keep_states(self, step: Step) -> States:
        recorded = self._plans.plan(
            len(step.rows), 0, "states", step.context, step.interventions, step.loras
        )
        self._queue.run(recorded, step)
        states = recorded.instruments.states
        assert states is not None
        return states

    def _lens(self, step: Step) -> Floats:
        """Return the logits of every state, (n_layers + 1, vocab_size)."""
        sample, found = step.samples[0], []
        for rows, part in _parts(step, self._plans.max_captured_rows):
            states = self._keep_states(part)
            if sample.row in rows:
                place = rows.tolist().index(sample.row)
                n_states = self._config.n_layers + 1
                of_row = [replace(sample, row=i * states.n_rows + place) for i in range(n_states)]
                found = [
                    self._read_logits(states, of_row[at : at + LENS_SAMPLES])
                    for at in range(0, n_states, LENS_SAMPLES)
                ]
        return np.concatenate(found)

    def _read_logits(self, states: States, samples: list[Sample]) -> Floats:
        """Return the logits of the rows of `states.as_rows` that `samples` name, (len(samples),
        vocab_size)."""
        lens = self._plans.plan(states.n_rows, len(samples), "lens")
        self._queue.run(lens, Step((), tuple(samples)))
        logits: Floats = self._memory.read(self._tensors.logits)
        return logits[: len(samples), : self._config.vocab_size]


def _parts(step: Step, most_rows: int) -> Iterator[tuple[Places, Step]]:
    """Yield steps of at most `most_rows` rows, in the order of positions, each with the indices of
    its rows in `step`."""
    order = np.argsort([row.position for row in step.rows], kind="stable")
    for at in range(0, len(order), most_rows):
        rows = order[at : at + most_rows]
        yield rows, replace(step, rows=tuple(step.rows[i] for i in rows), samples=(), capture=False)
