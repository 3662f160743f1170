"""An encoder on a GPU: texts as token ids in, their vectors out.

All tokens of a text are rows of one pass, as each attends to all others, and a pass has as many
texts as fit. It can run one dispatch at a time, so that whoever shares the device waits for no
more. Keys and values are in a paged cache, as those of other models, until the pass ends.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig
from gpu.config.sentence_transformers import SentenceConfig, read_encoder
from gpu.kv.blocks import ENCODER_SHAPE, ENCODER_TEXTS, MAX_ATTENDING, blocks_for
from gpu.kv.pools import KvPools
from gpu.models.forward_pass import Pass
from gpu.models.registry import ENCODER_MODELS
from gpu.models.workspace import AttentionCapture, Instruments, Workspace
from gpu.ops import Batch
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.plans.capture_buffers import ROW_BUCKETS, aligned, slice_of
from gpu.step import MAX_ROWS, Floats, Row, Step
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.calls import open_calls
from gpu.webgpu.commands import StepCommands
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Recorder

DTYPE = "f32"
"""Storage type of weights, keys and values: encoders are small, and texts are compared by small
differences."""

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    """Recorded pass of up to a number of rows: prepared commands of the whole pass, those of each
    dispatch, and the last states, (rows, padded hidden_size)."""

    whole: Any
    dispatches: tuple[Any, ...]
    states: Tensor


class WgpuEncoder:
    """An encoder and its pooling on a device. See `gpu.runner.Encoder`."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        checkpoint: Checkpoint,
        sentence: SentenceConfig,
        name: str,
    ) -> None:
        self.name, self.config, self.sentence = name, config, sentence
        self._device = device
        self._memory = memory = Memory(device, MAX_ROWS)
        self.max_tokens = sentence.max_tokens(config, MAX_ROWS)
        self.max_attending = min(self.max_tokens, MAX_ATTENDING)
        with WeightLoader(checkpoint, memory, DTYPE) as load:
            self._model = ENCODER_MODELS[config.model_type](config, load, self.max_tokens)
        self._pools = KvPools(config, ENCODER_SHAPE, DTYPE, ENCODER_TEXTS, memory)
        self._work = Workspace.make(config, memory, {"normed": config.hidden_size})
        self._step = memory.zeros("encoder.step", (STEP_BYTES // 4,), "u32", uniform=True)
        self._text_ends = memory.zeros("encoder.text_ends", (MAX_ROWS,), "u32")
        self._chosen = memory.zeros("encoder.chosen", (ENCODER_TEXTS,), "u32")  # bound, never read
        self._kernels = Kernels(device)
        self._calls = open_calls(device)
        self._plans: dict[
            tuple[int, bool], EncoderPlan
        ] = {}  # by rows, and whether they keep weights
        self._capture: AttentionCapture | None = None
        self._busy = False

    @classmethod
    def load(cls, folder: Path, device: Device) -> WgpuEncoder:
        """Load a folder as sentence-transformers and transformers save it. Raises ModelError and
        DeviceError."""
        config, sentence = read_encoder(folder)
        return cls(device, config, Checkpoint.open(folder), sentence, folder.resolve().name)

    @property
    def n_bytes(self) -> int:
        return sum(self._memory.n_bytes.values())

    def vectors(
        self, texts: Sequence[Ids], *, in_pieces: bool = False
    ) -> Generator[None, None, Floats]:
        """A piece is a dispatch. Software devices, which take long for a pass, always yield after
        each."""
        while self._busy:  # another pass has the buffers
            yield
        with self._pass(texts) as rows:
            plan = self._plan(len(rows))
            yield from self._run(plan, in_pieces)
            shape = (len(rows), plan.states.shape[1])
            states = self._memory.read(slice_of(plan.states, 0, shape))
        states = states[:, : self.config.hidden_size]
        return self.sentence.pool(states, [len(ids) for ids in texts])

    def attention(self, ids: Ids, *, in_pieces: bool = False) -> Generator[None, None, Floats]:
        while self._busy:
            yield
        n_layers, n_heads, n = self.config.n_layers, self.config.n_heads, len(ids)
        with self._pass([ids]):
            capture = self._attention_capture()
            self._memory.write(capture.keys, np.array([0, n], np.uint32))
            yield from self._run(self._plan(n, capture), in_pieces)
            kept = self._memory.read(capture.layers)[:, : n * n_heads * n]
        weights: Floats = kept.reshape(n_layers, n, n_heads, n).swapaxes(1, 2)
        return weights

    def n_fitting(self, lengths: Sequence[int], most_rows: int) -> int:
        ends = np.cumsum(lengths[:ENCODER_TEXTS])
        return max(1, int(np.searchsorted(ends, min(most_rows, MAX_ROWS), side="right")))

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
            data = bytearray(STEP_BYTES)
            n_bytes = pack_step(Step(tuple(rows)), data, self._pools.blocks[0])
            self._memory.write(self._step, np.frombuffer(data, np.uint8)[:n_bytes])
            ends = np.array([len(texts[row.slot]) - 1 for row in rows], np.uint32)
            self._memory.write(self._text_ends, ends)
            yield rows
        finally:
            self._busy = False

    def _run(self, plan: EncoderPlan, in_pieces: bool) -> Generator[None, None, None]:
        in_pieces = in_pieces or self._device.info.software
        for commands in plan.dispatches if in_pieces else (plan.whole,):
            self._calls.submit(self._calls.encode(commands))
            self._calls.wait(self._calls.flush())
            yield

    def _attention_capture(self) -> AttentionCapture:
        """Return the buffers of attention weights, allocated at the first call."""
        if self._capture is None:
            n = self.max_attending
            room = aligned(n * self.config.n_heads * n)
            layers = self._memory.zeros("encoder.weights", (self.config.n_layers, room))
            keys = self._memory.zeros("encoder.keys", (2,), "u32", uniform=True)
            self._capture = AttentionCapture(keys, lambda i: slice_of(layers, i, (1, room)), layers)
        return self._capture

    def _plan(self, n_rows: int, attention: AttentionCapture | None = None) -> EncoderPlan:
        """Return the plan of a pass of so many rows, recorded now if it is the first. `attention`:
        where it keeps its attention weights; None: it keeps none."""
        key = next(size for size in ROW_BUCKETS if size >= n_rows), attention is not None
        if key not in self._plans:
            rec = Recorder(self._device, self._kernels)
            batch = Batch(self._step, key[0], 0, text_ends=self._text_ends)
            kept = Instruments(attention=attention)
            states = self._model.forward(
                Pass(rec, batch, self.config, self._work, self._pools, self._chosen, kept)
            )
            each = [dispatch.in_pass for dispatch in rec.plan.dispatches]
            self._plans[key] = EncoderPlan(
                self._calls.prepare(StepCommands((tuple(each),))),
                tuple(self._calls.prepare(StepCommands(((one,),))) for one in each),
                states,
            )
        return self._plans[key]
