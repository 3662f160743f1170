"""The plans of one model, each recorded the first time its shape is needed.

Rows, samples and the splits of the longest context are rounded up to a bucket, so a handful of
plans serves every step. A captured plan is another recording of the same pass, which keeps the
residual stream and times itself: it costs nothing while nobody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpu import sampling_ops
from gpu.attention_cut import FEW_ROWS, split_of
from gpu.buffers import Memory, Tensor, padded
from gpu.config import ModelConfig
from gpu.device import Device
from gpu.kernels import Kernels
from gpu.kv_cache import KvPools
from gpu.models.llama import Capture, Llama, Stream, Workspace
from gpu.ops import Batch, Splits
from gpu.plan import Plan, Recorder
from gpu.sampling_ops import RESULT_WORDS
from gpu.step_buffer import MAX_SAMPLES, STEP_BYTES
from gpu.timestamps import FIRST_MARK

ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
SAMPLE_BUCKETS = (0, 1, 2, 4, 8)
CAPTURE_BYTES = (1 << 20, 32 << 20)
CAPTURE_SHARE = 0.02
"""The residual streams that a captured step keeps take this share of the weights and the KV cache
in each of two arenas, but not less or more than `CAPTURE_BYTES`."""

ALIGNED_FLOATS = 64
"""Parts of an arena that are bound alone begin at multiples of 256 bytes, the coarsest offset
alignment of any device."""

PlanKey = tuple[int, int, int, str]
"""(rows bucket, samples bucket, splits bucket, "plain" | "captured" | "logits")"""


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """A plan and where its results lie in the readback buffer: samples, then stats and entropies of
    a captured plan, then timestamps (begin, end, marks)."""

    key: PlanKey
    plan: Plan
    capture: Capture | None
    n_queries: int

    @property
    def sample_bytes(self) -> int:
        return self.key[1] * RESULT_WORDS * 4

    @property
    def query_at(self) -> int:
        n = self.sample_bytes
        if self.capture:
            n += self.capture.stats.n_bytes + self.capture.entropies.n_bytes
        return -(-n // 8) * 8

    @property
    def n_bytes(self) -> int:
        return self.query_at + 8 * self.n_queries


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What every step shares.

    step     uniform, see gpu.step_buffer      chosen   (n_slots,) u32
    seen     (n_slots, vocab_size / 32) u32    logits   (MAX_SAMPLES, padded vocab_size)
    keys     see gpu.sampling_ops              results  (MAX_SAMPLES, RESULT_WORDS) u32
    """

    step: Tensor
    chosen: Tensor
    seen: Tensor
    logits: Tensor
    keys: Tensor
    results: Tensor

    @classmethod
    def make(cls, config: ModelConfig, n_slots: int, memory: Memory) -> StepTensors:
        return cls(
            memory.zeros("step", (STEP_BYTES // 4,), "u32", uniform=True),
            memory.zeros("chosen", (n_slots,), "u32"),
            memory.zeros("seen", (n_slots, -(-config.vocab_size // 32)), "u32"),
            memory.zeros("logits", (MAX_SAMPLES, padded(config.vocab_size))),
            sampling_ops.keys_tensor(memory, MAX_SAMPLES, config.vocab_size),
            memory.zeros("results", (MAX_SAMPLES, RESULT_WORDS), "u32"),
        )


class PlanBook:
    """Records plans of `model` on demand and keeps them."""

    def __init__(
        self, device: Device, model: Llama, pools: KvPools, tensors: StepTensors, memory: Memory
    ) -> None:
        self.kernels = Kernels(device)
        self._device = device
        self._model = model
        self._pools = pools
        self._tensors = tensors
        self._memory = memory
        self._work = Workspace.make(model.config, memory)
        self._shared = Batch.make(memory, tensors.step, 1, 1)
        self._split = split_of(device.info.software)
        most = _power_of_two(-(-pools.shape.context // self._split))
        self._splits = Splits.make(model.config, most, memory) if most > 1 else None
        self._captures: dict[int, Capture] = {}
        self._arenas: dict[str, Tensor] = {}
        self._plans: dict[PlanKey, RecordedPlan] = {}

    @property
    def max_captured_rows(self) -> int:
        """The largest bucket whose residual streams fit in an arena."""
        config, n_bytes = self._model.config, self._memory.n_bytes
        row = (config.n_layers + 1) * padded(config.hidden_size) * 4
        least, most = CAPTURE_BYTES
        share = CAPTURE_SHARE * (n_bytes["weights"] + n_bytes["kv_cache"])
        limit = int(min(max(least, share), most, self._device.max_binding_bytes)) // row
        return max(b for b in ROW_BUCKETS if b <= max(1, limit))

    @property
    def max_result_bytes(self) -> int:
        """Of the largest step's results in a readback buffer."""
        config, rows = self._model.config, self.max_captured_rows
        entropies = config.n_layers * _aligned(rows * config.n_heads)
        captured = rows * (1 + 3 * config.n_layers) + entropies
        queries = FIRST_MARK + 1 + 2 * config.n_layers
        return -(-(MAX_SAMPLES * RESULT_WORDS + captured) * 4 // 8) * 8 + 8 * queries

    @property
    def recorded(self) -> Mapping[PlanKey, RecordedPlan]:
        """The plans so far."""
        return self._plans

    def plan(self, n_rows: int, n_samples: int, kind: str, context: int = 1) -> RecordedPlan:
        """The plan that a step of this size replays; `context`: tokens of its longest sequence."""
        rows = _bucket(n_rows, ROW_BUCKETS)
        splits = _power_of_two(-(-context // self._split)) if rows <= FEW_ROWS else 1
        key = (rows, _bucket(n_samples, SAMPLE_BUCKETS), splits, kind)
        if key not in self._plans:
            self._plans[key] = self._record(key)
        return self._plans[key]

    def _record(self, key: PlanKey) -> RecordedPlan:
        n_rows, n_samples, n_splits, kind = key
        model, tensors = self._model, self._tensors
        splits = replace(self._splits, n=n_splits) if self._splits and n_splits > 1 else None
        batch = replace(self._shared, n_rows=n_rows, n_samples=n_samples, splits=splits)
        rec = Recorder(self._device, self.kernels)
        capture = self._capture(n_rows) if kind == "captured" else None
        x = model.forward(rec, batch, self._work, self._pools, tensors.chosen, capture)
        if n_samples:
            model.logits(rec, batch, x, tensors.logits)
        if n_samples and kind != "logits":
            self._sample(rec, batch)
        return RecordedPlan(key, rec.plan, capture, self._n_queries(kind, rec.plan))

    def _sample(self, rec: Recorder, batch: Batch) -> None:
        vocab, t = self._model.config.vocab_size, self._tensors
        sampling_ops.sample_keys(rec, batch, "sample.keys", vocab, t.logits, t.seen, t.keys)
        sampling_ops.sample(
            rec, batch, "sample", vocab, t.logits, t.keys, t.seen, t.chosen, t.results
        )

    def _n_queries(self, kind: str, plan: Plan) -> int:
        if kind == "logits" or not self._device.has_timestamps:
            return 0
        marked = kind == "captured" and self._device.has_pass_timestamps
        return FIRST_MARK + (len(plan.marks) if marked else 0)

    def _capture(self, n_rows: int) -> Capture:
        if n_rows not in self._captures:
            self._captures[n_rows] = self._make_capture(n_rows)
        return self._captures[n_rows]

    def _make_capture(self, n_rows: int) -> Capture:
        """Two arenas for the stream, because an op reads one state of it and writes the next, and
        no dispatch may read and write one buffer. All buckets share them."""
        config = self._model.config
        n_layers, width = config.n_layers, padded(config.hidden_size)
        states = self._arena("capture.states", n_layers + 1, n_rows, width)
        middles = self._arena("capture.middles", n_layers, n_rows, width)
        entropies = self._arena("capture.entropy", n_layers, n_rows, config.n_heads)
        return Capture(
            stream=Stream(
                lambda i: _part(states, i, (n_rows, width)),
                lambda i: _part(middles, i, (n_rows, width)),
            ),
            states=states,
            middles=middles,
            entropy=lambda i: _part(entropies, i, (n_rows, config.n_heads)),
            entropies=entropies,
            stats=self._memory.zeros("capture.stats", (n_rows, 1 + 3 * n_layers)),
        )

    def _arena(self, name: str, n_parts: int, n_rows: int, width: int) -> Tensor:
        """(n_parts, n_rows · width, rounded up), at the beginning of a buffer with room for the
        largest bucket: steps of any size use it in turn."""
        if name not in self._arenas:
            shape = (n_parts, _aligned(self.max_captured_rows * width))
            self._arenas[name] = self._memory.zeros(name, shape)
        part = _aligned(n_rows * width)
        buffer = self._arenas[name].buffer
        return Tensor(name, buffer, (n_parts, part), "f32", n_parts * part * 4)


def _part(arena: Tensor, i: int, shape: tuple[int, int]) -> Tensor:
    """The i-th part of an arena as a tensor of its own."""
    n_bytes, offset = shape[0] * shape[1] * 4, i * arena.shape[1] * 4
    return Tensor(f"{arena.name}[{i}]", arena.buffer, shape, "f32", n_bytes, offset)


def _aligned(n_floats: int) -> int:
    return -(-n_floats // ALIGNED_FLOATS) * ALIGNED_FLOATS


def _power_of_two(n: int) -> int:
    """`n` rounded up to a power of two."""
    return 1 << (n - 1).bit_length()


def _bucket(n: int, buckets: tuple[int, ...]) -> int:
    for bucket in buckets:
        if n <= bucket:
            return bucket
    raise ValueError(f"a step of {n} is larger than {buckets[-1]}")
