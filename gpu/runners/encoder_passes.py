"""Passes of an encoder's layers on a GPU: texts as token ids in, their last states out.

All tokens of a text are rows of one pass, as each attends to all others, and a pass has as many
texts as fit. It can run one dispatch at a time, so that whoever shares the device waits for no
more. Keys and values are in a paged cache, as those of other models, until the pass ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.kv.blocks import ENCODER_TEXTS, KvShape, blocks_for
from gpu.kv.pools import KvPools
from gpu.models.encoder import EncoderModel
from gpu.models.forward_pass import Pass
from gpu.models.workspace import AttentionCapture, Instruments, Workspace
from gpu.ops import Batch
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.plans.capture_buffers import ROW_BUCKETS, aligned, slice_of
from gpu.step import Floats, Row, Step
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Plan, Recorder

DTYPE = "f32"
"""Storage type of weights, keys and values: encoders are small, and texts are compared by small
differences."""

Ids = Sequence[int]
AfterLayers = Callable[[Pass, Tensor], None]
"""Records what follows the last states of a pass."""


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """Recorded pass: prepared commands of the whole pass, and those of each dispatch."""

    whole: Any
    dispatches: tuple[Any, ...]


class PassRunner:
    """Runs recorded passes on a device, whole or one dispatch at a time."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._calls = open_calls(device)

    def prepare(self, plan: Plan) -> PreparedPlan:
        each = [dispatch.in_pass for dispatch in plan.dispatches]
        return PreparedPlan(
            self._calls.prepare(StepCommands((tuple(each),))),
            tuple(self._calls.prepare(StepCommands(((one,),))) for one in each),
        )

    def run(self, plan: PreparedPlan, in_pieces: bool) -> Generator[None, None, None]:
        """Run a pass. Yields after each piece: with `in_pieces`, and always on software devices,
        which take long for a pass, a piece is a dispatch."""
        in_pieces = in_pieces or self._device.info.software
        for commands in plan.dispatches if in_pieces else (plan.whole,):
            self._calls.submit(self._calls.encode(commands))
            self._calls.wait(self._calls.flush())
            yield


class EncoderPasses:
    """Passes of one model, of which one runs at a time.

    max_attending  most tokens of a text whose attention is read
    after          records what follows the layers; None: nothing
    """

    def __init__(
        self,
        model: EncoderModel,
        memory: Memory,
        shape: KvShape,
        max_attending: int,
        after: AfterLayers | None = None,
    ) -> None:
        self._model, self._memory, self._device = model, memory, memory.device
        self._after, self._max_attending = after, max_attending
        config, max_rows = model.config, memory.max_rows
        self._pools = KvPools(config, shape, DTYPE, ENCODER_TEXTS, memory)
        self._work = Workspace.make(config, memory, {"normed": config.hidden_size})
        self._step = memory.zeros("encoder.step", (STEP_BYTES // 4,), "u32", uniform=True)
        self._text_ends = memory.zeros("encoder.text_ends", (max_rows,), "u32")
        self._chosen = memory.zeros("encoder.chosen", (ENCODER_TEXTS,), "u32")  # bound, never read
        self._kernels = Kernels(self._device)
        self._passes = PassRunner(self._device)
        self._plans: dict[tuple[int, bool], tuple[PreparedPlan, Tensor]] = {}
        """Plans and their last states, by rows, and whether they keep attention weights."""
        self._capture: AttentionCapture | None = None
        self._busy = False

    def states(self, texts: Sequence[Ids], *, in_pieces: bool) -> Generator[None, None, Floats]:
        """Return the last states of texts, (rows, hidden_size), one text below the other."""
        while self._busy:  # another pass has the buffers
            yield
        with self._pass(texts) as rows:
            plan, last = self._plan(len(rows))
            yield from self._passes.run(plan, in_pieces)
            states = self._memory.read(slice_of(last, 0, (len(rows), last.shape[1])))
        found: Floats = states[:, : self._model.config.hidden_size]
        return found

    def attention(self, ids: Ids, *, in_pieces: bool) -> Generator[None, None, Floats]:
        """Return the attention weights of a text, (n_layers, n_heads, n, n)."""
        while self._busy:
            yield
        config, n = self._model.config, len(ids)
        with self._pass([ids]):
            capture = self._attention_capture()
            self._memory.write(capture.keys, np.array([0, n], np.uint32))
            plan, _ = self._plan(n, capture)
            yield from self._passes.run(plan, in_pieces)
            kept = self._memory.read(capture.layers)[:, : n * config.n_heads * n]
        weights: Floats = kept.reshape(config.n_layers, n, config.n_heads, n).swapaxes(1, 2)
        return weights

    # ---- inside -----------------------------------------------------------------------------

    @contextmanager
    def _pass(self, texts: Sequence[Ids]) -> Iterator[list[Row]]:
        """Write the step of a pass, and yield its rows; until it ends no other may begin."""
        self._busy = True
        try:
            self._device.submissions.settle()
            first = 0
            for slot, ids in enumerate(texts):
                n_blocks = blocks_for(len(ids))
                self._pools.set_blocks(slot, list(range(first, first + n_blocks)))
                first += n_blocks
            rows = [Row(slot, i, id) for slot, ids in enumerate(texts) for i, id in enumerate(ids)]
            write_step(self._memory, self._step, Step(tuple(rows)), self._pools)
            ends = np.array([len(texts[row.slot]) - 1 for row in rows], np.uint32)
            self._memory.write(self._text_ends, ends)
            yield rows
        finally:
            self._busy = False

    def _attention_capture(self) -> AttentionCapture:
        """Return the buffers of attention weights, allocated at the first call."""
        if self._capture is None:
            n, config = self._max_attending, self._model.config
            self._capture = attention_capture(
                "encoder", config.n_layers, n * config.n_heads * n, self._memory
            )
        return self._capture

    def _plan(
        self, n_rows: int, attention: AttentionCapture | None = None
    ) -> tuple[PreparedPlan, Tensor]:
        """Return the plan of a pass of so many rows, recorded now if it is the first, and where it
        leaves the last states. `attention`: where it keeps its attention weights; None: it keeps
        none."""
        key = next(size for size in ROW_BUCKETS if size >= n_rows), attention is not None
        if key not in self._plans:
            rec = Recorder(self._device, self._kernels)
            batch = Batch(self._step, key[0], 0, text_ends=self._text_ends)
            kept = Instruments(attention=attention)
            config = self._model.config
            run = Pass(rec, batch, config, self._work, self._pools, self._chosen, kept)
            states = self._model.forward(run)
            if self._after is not None:
                self._after(run, states)
            self._plans[key] = self._passes.prepare(rec.plan), states
        return self._plans[key]


def write_step(memory: Memory, to: Tensor, step: Step, pools: KvPools) -> None:
    """Write a step of rows in `pools` into its uniform buffer."""
    data = bytearray(STEP_BYTES)
    n_bytes = pack_step(step, data, pools.blocks[0])
    memory.write(to, np.frombuffer(data, np.uint8)[:n_bytes])


def attention_capture(name: str, n_layers: int, room: int, memory: Memory) -> AttentionCapture:
    """Allocate buffers for `room` attention weights of each layer."""
    room = aligned(room)
    layers = memory.zeros(f"{name}.weights", (n_layers, room))
    keys = memory.zeros(f"{name}.keys", (2,), "u32", uniform=True)
    return AttentionCapture(keys, lambda i: slice_of(layers, i, (1, room)), layers)
