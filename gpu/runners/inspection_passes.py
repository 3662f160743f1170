"""Inspection passes on a GPU: a step runs again, through plans that keep intermediate values.

Requests that exceed the memory for these values are split, rows into several steps and keys into
ranges, one pass for each. Rows run in the order of their positions, so that each finds the keys
before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.models.workspace import AttentionCapture, States
from gpu.plans.capture_buffers import slice_of
from gpu.plans.plan_cache import PlanCache, RecordedPlan, StepTensors
from gpu.runners.layer_reader import LayerReader
from gpu.runners.step_queue import StepQueue
from gpu.step import ExpertChoices, Floats, InspectionRequest, InspectionResult, Sample, Step
from gpu.webgpu.buffers import Memory, Tensor

LENS_SAMPLES = 4
"""States whose logits are computed together: as many rows as concurrent runs commonly sample, so
that the kernel is compiled already."""

Places = npt.NDArray[np.intp]
"""Indices of rows in a step."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a step. `rows`: their indices in it; `received`: what the stage before has sent
    for them."""

    rows: Places
    step: Step
    received: Floats | None

    def parts(self, most_rows: int) -> Iterator[_Part]:
        """Yield parts of at most `most_rows` rows, in the order of positions."""
        order = np.argsort([row.position for row in self.step.rows], kind="stable")
        for at in range(0, len(order), most_rows):
            some = order[at : at + most_rows]
            step = replace(self.step, rows=tuple(self.step.rows[i] for i in some), samples=())
            received = None if self.received is None else self.received[some]
            yield _Part(self.rows[some], step, received)


class InspectionPasses:
    """Passes that answer inspection requests for one model. No steps may be in flight."""

    def __init__(
        self,
        config: ModelConfig,
        plans: PlanCache,
        queue: StepQueue,
        tensors: StepTensors,
        memory: Memory,
        layers: LayerReader,
    ) -> None:
        self._config = config
        self._layers = layers
        self._plans = plans
        self._queue = queue
        self._tensors = tensors
        self._memory = memory

    def run(
        self, step: Step, request: InspectionRequest, received: Floats | None = None
    ) -> InspectionResult:
        """Run `step` and return what `request` asks for. `received`: as in `StepQueue.submit`.
        Raises InvalidRequest if memory does not even hold the attention of one row to one key."""
        asked = _Part(np.arange(len(step.rows)), replace(step, capture=False), received)
        attention = self._attention(asked, *request.keys) if request.keys is not None else None
        states = self._all_states(asked) if request.states else None
        lens = self._lens(asked) if request.lens else None
        routes = self._routes(asked) if request.routes else None
        last_hidden = self._last_hidden(asked) if request.last_hidden else None
        layer = self._layers.read(asked.step, *request.layer, received) if request.layer else None
        return InspectionResult(attention, lens, states, routes, last_hidden, layer)

    def unembed(self, states: Floats) -> Floats:
        """Return the logits (n, vocab_size) of states of the residual stream (n, hidden_size)."""
        recorded = self._plans.plan(1, LENS_SAMPLES, "lens")
        kept = recorded.instruments.states
        assert kept is not None
        padded_states = np.zeros((len(states), kept.width), np.float32)
        padded_states[:, : states.shape[1]] = states
        samples = [Sample(i, 0, 0, 0) for i in range(LENS_SAMPLES)]
        found = []
        for at in range(0, len(states), LENS_SAMPLES):
            some = padded_states[at : at + LENS_SAMPLES]
            self._memory.write(kept.as_rows, some)
            found.append(self._read_logits(kept, samples[: len(some)]))
        return np.concatenate(found)

    def first_plans(self, *, lens: bool) -> list[RecordedPlan]:
        """Return the plans whose kernels the first inspection needs; `lens`: the output head is
        here."""
        weights = self._plans.plan(1, 0, "weights")
        return [weights, self._plans.plan(1, LENS_SAMPLES, "lens")] if lens else [weights]

    def _run(self, kind: str, part: _Part) -> RecordedPlan:
        """Run a plan of `kind` for the rows of a part, and return it."""
        step = part.step
        recorded = self._plans.plan(
            len(step.rows),
            0,
            kind,
            step.context,
            step.interventions,
            step.loras,
            kv=step.kv,
            masked=step.masked,
        )
        self._queue.run(recorded, step, part.received)
        return recorded

    # ---- attention --------------------------------------------------------------------------

    def _attention(self, asked: _Part, first: int, n: int) -> Floats:
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
        found = np.empty((len(asked.rows), n_layers, n_heads, n), np.float32)
        weights = self._plans.attention_capture
        for part in asked.parts(room // n_heads):
            rows = part.rows
            at_once = room // (len(rows) * n_heads)
            for at in range(0, n, at_once):
                keys = slice(at, min(at + at_once, n))
                n_keys = keys.stop - keys.start
                self._memory.write(weights.keys, np.array([first + at, n_keys], np.uint32))
                self._run("weights", part)
                found[rows, :, :, keys] = self._read_weights(weights, len(rows), n_keys)
        return found

    def _read_weights(self, weights: AttentionCapture, n_rows: int, n_keys: int) -> Floats:
        """Return the captured weights, (n_rows, n_layers, n_heads, n_keys)."""
        layers = self._memory.read(weights.layers)
        n_heads = self._config.n_heads
        used = layers[:, : n_rows * n_heads * n_keys].reshape(-1, n_rows, n_heads, n_keys)
        found: Floats = used.swapaxes(0, 1)
        return found

    # ---- experts ----------------------------------------------------------------------------

    def _routes(self, asked: _Part) -> ExpertChoices:
        experts, layers = self._config.experts, self._config.expert_layers
        if experts is None:
            raise InvalidRequest(f"{self._config.model_type} models have no experts", "routes")
        n_rows, experts_per_token = len(asked.rows), experts.experts_per_token
        routed = self._run("routes", asked).instruments.routing_capture
        assert routed is not None

        def read(tensor: Tensor) -> npt.NDArray[Any]:
            """Return a capture as (n_rows, n_expert_layers, experts_per_token)."""
            used = self._memory.read(tensor)[:, : n_rows * experts_per_token]
            return used.reshape(len(layers), n_rows, experts_per_token).swapaxes(0, 1)

        return ExpertChoices(read(routed.chosen), read(routed.gates), read(routed.lengths))

    # ---- the residual stream ----------------------------------------------------------------

    def _last_hidden(self, asked: _Part) -> Floats:
        """Return the final norm of the stream after the last layer, (n_rows, hidden_size)."""
        kept = self._run("last_hidden", asked).instruments.last_hidden
        assert kept is not None
        found: Floats = self._memory.read(slice_of(kept, 0, (len(asked.rows), kept.shape[1])))
        return found[:, : self._config.hidden_size]

    def _all_states(self, asked: _Part) -> Floats:
        """Return the residual stream, (n_rows, n_layers + 1, hidden_size)."""
        n_states, width = self._config.n_layers + 1, self._config.hidden_size
        found = np.empty((len(asked.rows), n_states, width), np.float32)
        for part in asked.parts(self._plans.max_captured_rows):
            states = self._keep_states(part)
            kept = self._memory.read(states.as_rows).reshape(n_states, states.n_rows, -1)
            found[part.rows] = kept[:, : len(part.rows), :width].swapaxes(0, 1)
        return found

    def _keep_states(self, part: _Part) -> States:
        states = self._run("states", part).instruments.states
        assert states is not None
        return states

    def _lens(self, asked: _Part) -> Floats:
        """Return the logits of every state, (n_layers + 1, vocab_size)."""
        sample, found = asked.step.samples[0], []
        for part in asked.parts(self._plans.max_captured_rows):
            states = self._keep_states(part)
            if sample.row in part.rows:
                place = part.rows.tolist().index(sample.row)
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
        logits: Floats = self._memory.read(self._tensors.sampler.logits)
        return logits[: len(samples), : self._config.vocab_size]
