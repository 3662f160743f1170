"""Cache of the plans of one model, each recorded the first time its shape is needed.

Rows, samples and the splits of the longest context are rounded up to a bucket, so a handful of
plans serves every step. A plan with statistics (of the kind `captured`) is a separate recording of
the same pass that keeps the residual stream and takes timestamps, so plain plans pay nothing for
them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypedDict, Unpack

from gpu import ops
from gpu.config import ModelConfig
from gpu.errors import InvalidRequest
from gpu.kv.pools import KvPools
from gpu.models.decoder import Decoder
from gpu.models.forward_pass import Pass
from gpu.models.workspace import (
    AttentionCapture,
    Capture,
    Instruments,
    PassLora,
    Workspace,
)
from gpu.ops import Batch, KvSplits, KvStaging, RmsNormSplit
from gpu.ops.layer_stats import n_stats
from gpu.ops.sampling import RESULT_WORDS
from gpu.ops.step_buffer import MAX_SAMPLES, STEP_BYTES
from gpu.plans.capture_buffers import ROW_BUCKETS, CaptureBuffers, aligned
from gpu.plans.intervention_buffers import InterventionBuffers
from gpu.sampling_params import SeedingScheme
from gpu.step import KvVariant
from gpu.webgpu.buffers import Memory, Tensor, padded
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from gpu.webgpu.plan import Plan, Recorder
from gpu.webgpu.timestamps import FIRST_MARK

SAMPLE_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64)
LEAST_SAMPLES = 8
"""Fewest samples that there is memory for: answers to questions read several rows at once."""
SAMPLING = ("plain", "captured")
"""Kinds of plans whose steps sample tokens. The others serve inspection and keep

    logits   of the sampled rows
    states   every state of the residual stream
    weights  attention weights of a range of keys
    routes   experts of each row, and the norms of their outputs
    lens     logits of the states that a plan of kind "states" left; runs no layers
    last_hidden
             final norm of the residual stream after the last layer
    unfused  every state, and of one row the parts of fused dispatches
    head_out output projection of every layer, for rows that the host writes; no other dispatches
"""

WITHOUT_LAYERS = ("lens", "head_out")
"""Kinds of plans whose input is not the residual stream before the first layer."""

MAX_KV_VARIANTS = 8
"""Changes of what attention reads whose plans are kept: each window needs kernels of its own."""

LEAST_ROWS = {"states": 2, "lens": 2}
"""Fewest rows of plans of these kinds. States begin at multiples of 64 floats and a row takes a
multiple of 32, so with two rows or more the states are contiguous: a lens reads them as one
matrix."""


class PlanKey(NamedTuple):
    """Key of a recorded plan.

    rows, samples, splits  buckets: the smallest recorded size that holds the step
    kind                   see `SAMPLING`
    interventions, loras   whether the plan has dispatches for them
    apart                  every row is of another sequence, in more than `split_rows`
    kv                     change of what attention reads
    watermark              samples may have one, of this seeding scheme, so that they are drawn in
                           two passes
    masked                 attention leaves out the masked keys of each slot
    """

    rows: int
    samples: int
    splits: int
    kind: str
    interventions: bool
    loras: bool
    apart: bool = False
    kv: KvVariant | None = None
    watermark: SeedingScheme | None = None
    masked: bool = False


class PlanChanges(TypedDict, total=False):
    """Fields of `PlanKey` that few plans have."""

    apart: bool
    kv: KvVariant | None
    watermark: SeedingScheme | None
    masked: bool


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """A plan and the places of its results in the readback buffer: samples, then what a captured
    plan kept, then the rows that go to the next stage, then timestamps (begin, end, marks).

    received  (rows, width): where the rows of the stage before are written; None in the first stage
    sent      (rows, width): rows of the next stage; None in the last stage
    prepared  its commands, by how many timestamps they take
    offloaded its commands cut where experts are loaded, if they are offloaded
    """

    key: PlanKey
    plan: Plan
    instruments: Instruments
    n_queries: int
    received: Tensor | None = None
    sent: Tensor | None = None
    prepared: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)
    offloaded: list[Any] = field(default_factory=list, repr=False, compare=False)

    @property
    def capture(self) -> Capture | None:
        return self.instruments.capture

    @property
    def sample_bytes(self) -> int:
        return self.key.samples * RESULT_WORDS * 4

    @property
    def sent_at(self) -> int:
        """Place of the rows of the next stage."""
        kept = self.capture.kept if self.capture else ()
        return self.sample_bytes + sum(tensor.n_bytes for tensor in kept)

    @property
    def sent_bytes(self) -> int:
        return 0 if self.sent is None else 4 * self.key.rows * self.sent.shape[-1]

    @property
    def query_at(self) -> int:
        return -(-(self.sent_at + self.sent_bytes) // 8) * 8

    @property
    def n_bytes(self) -> int:
        return self.query_at + 8 * self.n_queries


@dataclass(frozen=True, slots=True)
class SamplerTensors:
    """Tensors of the output head and the sampler.

    texts    see gpu.ops.sampling              logits     (max_samples, padded vocab_size)
    allowed  (n_slots, vocab_size / 32) u32    greenlist  (n_slots, vocab_size / 32) u32
    keys     see gpu.ops.sampling              results    (max_samples, RESULT_WORDS) u32
    """

    texts: ops.SlotTexts
    allowed: Tensor
    greenlist: Tensor
    logits: Tensor
    keys: ops.SortKeys
    results: Tensor

    @classmethod
    def make(
        cls, vocab_size: int, n_slots: int, max_samples: int, memory: Memory
    ) -> SamplerTensors:
        return cls(
            ops.SlotTexts.make(memory, n_slots, vocab_size),
            memory.zeros("allowed", (n_slots, -(-vocab_size // 32)), "u32"),
            memory.zeros("greenlist", (n_slots, -(-vocab_size // 32)), "u32"),
            memory.zeros("logits", (max_samples, padded(vocab_size))),
            ops.SortKeys.make(memory, max_samples, vocab_size),
            memory.zeros("results", (max_samples, RESULT_WORDS), "u32"),
        )


@dataclass(frozen=True, slots=True)
class StepTensors:
    """Tensors that every step shares.

    step     uniform, see gpu.ops.step_buffer  chosen       (n_slots,) u32
    group_steps  see `gpu.ops.batch.Batch`     max_samples  most samples of a step
    """

    step: Tensor
    chosen: Tensor
    group_steps: tuple[Tensor, ...]
    max_samples: int
    _sampler: SamplerTensors | None

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        n_slots: int,
        memory: Memory,
        n_groups: int = 1,
        *,
        samples: bool = True,
    ) -> StepTensors:
        """`n_groups`: KV groups that new keys and values are written to directly. `samples` False:
        for a stage that samples nothing."""
        n_runs = n_slots - 1  # one slot is for inspection
        max_samples = _bucket(min(MAX_SAMPLES, max(LEAST_SAMPLES, n_runs)), SAMPLE_BUCKETS)
        return cls(
            memory.zeros("step", (STEP_BYTES // 4,), "u32", uniform=True),
            memory.zeros("chosen", (n_slots,), "u32"),
            tuple(
                memory.zeros(f"step.{group}", (STEP_BYTES // 4,), "u32", uniform=True)
                for group in range(1, n_groups)
            ),
            max_samples,
            SamplerTensors.make(config.vocab_size, n_slots, max_samples, memory)
            if samples
            else None,
        )

    @property
    def sampler(self) -> SamplerTensors:
        assert self._sampler is not None, "only the last stage samples"
        return self._sampler


class PlanCache:
    """Records plans of `model` on demand and keeps them. `adapted`: LoRA tensors, if there are
    adapters."""

    def __init__(
        self,
        device: Device,
        model: Decoder,
        pools: KvPools,
        tensors: StepTensors,
        memory: Memory,
        adapted: PassLora | None = None,
    ) -> None:
        self.kernels = Kernels(device)
        self._device = device
        self._model = model
        self._pools = pools
        self._tensors = tensors
        self._memory = memory
        self._adapted = adapted
        self._work = Workspace.make(model.config, memory, model.scratch)
        packed, rows = pools.format.packed, memory.max_rows
        staging = KvStaging.make(model.config, rows, memory) if packed else None
        self.quantized_rows = _make_quantized_rows(device, model, memory)
        self._shared = replace(
            Batch(tensors.step, 1, 1),
            kv_staging=staging,
            quantized_rows=self.quantized_rows,
            rms_norm_split=_make_rms_norm_split(model, memory),
            group_steps=tensors.group_steps,
        )
        self._split = device.policy.kv_split_size
        most = _power_of_two(-(-pools.shape.context // self._split))
        self._splits = KvSplits.make(model.config, most, memory) if most > 1 else None
        self._capture_buffers = CaptureBuffers(model.config, pools.shape.context, memory)
        n_inputs = model.config.n_layers + (not model.stage.is_last)
        self.intervention_buffers = InterventionBuffers(
            model.config, pools.n_slots, memory, n_inputs
        )
        self._plans: dict[PlanKey, RecordedPlan] = {}
        self._kv_variants: OrderedDict[KvVariant, None] = OrderedDict()  # least recently used first

    @property
    def split_tokens(self) -> int:
        """Keys of one split of attention in steps of few rows."""
        return self._split

    @property
    def split_rows(self) -> int:
        """Most rows of a step whose attention is split."""
        return self._device.policy.split_rows

    @property
    def splits(self) -> KvSplits | None:
        """Partial results of attention over the most splits; None: contexts are too short."""
        return self._splits

    @property
    def max_captured_rows(self) -> int:
        """Most rows whose residual stream is kept in one step."""
        return self._capture_buffers.max_rows

    @property
    def weights_room(self) -> int:
        """Number of attention weights of a layer that one step can keep."""
        return self._capture_buffers.weights_room

    @property
    def attention_capture(self) -> AttentionCapture:
        """Buffers of the attention weights that plans of kind "weights" keep."""
        return self._capture_buffers.weights()

    @property
    def workspace(self) -> Workspace:
        """Activations that every plan reuses."""
        return self._work

    @property
    def max_result_bytes(self) -> int:
        """Size in bytes of the largest step's results in a readback buffer."""
        config, rows = self._model.config, self.max_captured_rows
        entropies = config.n_layers * aligned(rows * config.n_heads)
        experts_per_token = config.experts.experts_per_token if config.experts else 0
        routings = 2 * len(config.expert_layers) * aligned(rows * experts_per_token)
        captured = rows * n_stats(config) + entropies + routings
        sent = (
            0 if self._model.stage.is_last else self._memory.max_rows * padded(config.hidden_size)
        )
        words = self._tensors.max_samples * RESULT_WORDS + captured + sent
        queries = FIRST_MARK + 1 + 2 * config.n_layers
        return -(-words * 4 // 8) * 8 + 8 * queries

    @property
    def recorded(self) -> Mapping[PlanKey, RecordedPlan]:
        """Plans recorded so far."""
        return self._plans

    def plan(
        self,
        n_rows: int,
        n_samples: int,
        kind: str,
        context: int = 1,
        interventions: bool = False,
        loras: bool = False,
        **changes: Unpack[PlanChanges],
    ) -> RecordedPlan:
        """Return the plan for a step of this size, recorded now if it is the first. `context`:
        tokens of its longest sequence; `interventions`, `loras`: whether the plan applies them;
        `changes`: see `PlanKey`. Raises InvalidRequest for keys and values that cannot be
        rounded."""
        rows = _bucket(max(n_rows, LEAST_ROWS.get(kind, 1)), ROW_BUCKETS)
        splits = _power_of_two(-(-context // self._split)) if rows <= self.split_rows else 1
        samples = _bucket(n_samples, SAMPLE_BUCKETS)
        key = PlanKey(rows, samples, splits, kind, interventions, loras, **changes)
        key = key._replace(apart=key.apart and rows > self.split_rows)
        if key.kv is not None:
            self._keep_variant(key.kv)
        if key not in self._plans:
            self._plans[key] = self._record(key)
        return self._plans[key]

    def _keep_variant(self, kv: KvVariant) -> None:
        """Keep the plans of this variant, and forget those of the one that was not used for longest
        if there are too many."""
        self._kv_variants[kv] = None
        self._kv_variants.move_to_end(kv)
        if len(self._kv_variants) <= MAX_KV_VARIANTS:
            return
        forgotten, _ = self._kv_variants.popitem(last=False)
        lost = [key for key in self._plans if key.kv == forgotten]
        dispatches = [d for key in lost for d in self._plans.pop(key).plan.dispatches]
        kept = {id(d.kernel) for plan in self._plans.values() for d in plan.plan.dispatches}
        self.kernels.forget({id(d.kernel) for d in dispatches} - kept)

    def _record(self, key: PlanKey) -> RecordedPlan:
        n_rows, n_samples, n_splits, kind, interventions, loras, apart, kv, watermark, masked = key
        model, tensors = self._model, self._tensors
        splits = replace(self._splits, n=n_splits) if self._splits and n_splits > 1 else None
        batch = replace(
            self._shared, n_rows=n_rows, n_samples=n_samples, splits=splits, apart=apart
        )
        rec = Recorder(self._device, self.kernels)
        instruments = self._instruments(kind, n_rows, interventions, loras)
        if masked:
            instruments = replace(instruments, masked=self.intervention_buffers.masked())
        config = model.config
        if kv is not None:
            own = map(config.sliding_window_of, range(config.n_layers))
            windows = tuple(kv.window_of(window) for window in own)
            config = replace(config, sliding_windows=windows)
            self._expect_roundable(kv)
            instruments = replace(instruments, kv=kv)
        run = Pass(rec, batch, config, self._work, self._pools, tensors.chosen, instruments)
        if kind == "lens" and instruments.states:
            x = instruments.states.as_rows
        elif kind == "head_out":
            x = self._head_out(run)
        else:
            x = model.forward(run)
            if not model.stage.is_last:  # statistics of the last layer include what steers the next
                x = run.resid_pre(model.config.n_layers, x)
            run.layer_stats()
            if instruments.last_hidden is not None:
                run.last_hidden(model.norm, x)
            _expect_adapted(rec.plan, instruments)
        if n_samples:
            model.logits(run, x, tensors.sampler.logits)
        if n_samples and kind in SAMPLING:
            self._sample(rec, batch, watermark)
        n_queries = self._n_queries(kind, rec.plan)
        stage = model.stage
        return RecordedPlan(
            key,
            rec.plan,
            instruments,
            n_queries,
            received=None if stage.is_first or kind in WITHOUT_LAYERS else run.received,
            sent=None if stage.is_last or kind not in SAMPLING else x,
        )

    def _instruments(self, kind: str, n_rows: int, interventions: bool, loras: bool) -> Instruments:
        return Instruments(
            self._capture_buffers.states(n_rows)
            if kind in ("captured", "states", "lens", "unfused")
            else None,
            self._capture_buffers.capture(n_rows) if kind == "captured" else None,
            self._capture_buffers.weights() if kind == "weights" else None,
            self.intervention_buffers.tensors() if interventions else None,
            self._adapted if loras else None,
            self._capture_buffers.routed() if kind == "routes" else None,
            self._capture_buffers.last_hidden(n_rows) if kind == "last_hidden" else None,
            self._capture_buffers.unfused() if kind in ("unfused", "head_out") else None,
        )

    def _expect_roundable(self, kv: KvVariant) -> None:
        """Raises InvalidRequest if `kv` rounds what is quantised already."""
        if kv.rounds and self._pools.format.packed:
            raise InvalidRequest(
                f"keys and values are stored as {self._pools.dtype}, which rounds them already; "
                "start the server with --kv-dtype f16 or f32",
                "keys",
            )

    def _head_out(self, run: Pass) -> Tensor:
        """Record the output projection of every layer, each followed by a mark."""
        unfused = run.instruments.unfused
        assert unfused is not None
        for layer in self._model.layers:
            scale, out = self._model.config.residual_scale, layer.out
            ops.matmul(
                run.rec, run.batch, out.name, self._work.attn_out, out.weight, unfused.head_out,
                scale=scale,
            )  # fmt: skip
            run.rec.mark(out.name)
        return unfused.head_out

    @cached_property
    def selfhash(self) -> ops.SelfhashTensors:
        """Tensors of the seeding scheme selfhash, allocated when it is first needed."""
        n_slots = self._tensors.sampler.greenlist.shape[0]
        vocab_size = self._model.config.vocab_size
        return ops.SelfhashTensors.make(
            self._memory, self._tensors.max_samples, n_slots, vocab_size
        )

    def _sample(self, rec: Recorder, batch: Batch, watermark: SeedingScheme | None) -> None:
        vocab, chosen, t = (
            self._model.config.vocab_size,
            self._tensors.chosen,
            self._tensors.sampler,
        )
        ops.logit_sort_keys(rec, batch, "sample.keys", vocab, t.logits, t.texts, t.allowed, t.keys)
        selfhash = self.selfhash if watermark == "selfhash" else None
        ops.sample(
            rec, batch, "sample", vocab, t.logits, t.keys, t.texts, chosen, t.results,
            ranked=selfhash.ranked if selfhash else None,
        )  # fmt: skip
        if selfhash:
            ops.selfhash_greenlist(rec, batch, "watermark.selfhash", vocab, selfhash, t.greenlist)
        if watermark:
            ops.watermark_keys(rec, batch, "watermark", vocab, t.greenlist, t.results, t.keys)
            ops.sample(
                rec, batch, "watermark.sample", vocab, t.logits, t.keys, t.texts, chosen, t.results,
                watermarked=True,
            )  # fmt: skip

    def _n_queries(self, kind: str, plan: Plan) -> int:
        if kind not in SAMPLING or not self._device.has_timestamps:
            return 0
        marked = kind == "captured" and self._device.has_pass_timestamps
        return FIRST_MARK + (len(plan.marks) if marked else 0)


def _expect_adapted(plan: Plan, instruments: Instruments) -> None:
    """Assert that the plan applies every adapter: leaving one out would silently give wrong
    text."""
    labels = {dispatch.label for dispatch in plan.dispatches}
    adapted = instruments.lora
    for name in (*adapted.by_matrix, *adapted.by_expert_matrix) if adapted else ():
        assert f"{name}.lora_b" in labels, f"the pass does not adapt {name}"


def _make_rms_norm_split(model: Decoder, memory: Memory) -> RmsNormSplit | None:
    """Allocate the partial sums of RMSNorms that run split from their matmul; None for a model
    with LayerNorm, which is never split."""
    if not model.norms_are_rms:
        return None
    return RmsNormSplit.make(model.config.hidden_size, memory.max_rows, memory)


def _make_quantized_rows(device: Device, model: Decoder, memory: Memory) -> Tensor | None:
    """Allocate the q8 activations of a step's rows, or of their expert assignments; None where
    matmuls take f32."""
    if not device.tuning.q8_activations:
        return None
    experts = model.config.experts
    rows = memory.max_rows * (experts.experts_per_token if experts else 1)
    return ops.make_quantized_rows(memory, model.layer_matrices(), rows)


def _power_of_two(n: int) -> int:
    """Return `n` rounded up to a power of two."""
    return 1 << (n - 1).bit_length()


def _bucket(n: int, buckets: tuple[int, ...]) -> int:
    for bucket in buckets:
        if n <= bucket:
            return bucket
    raise ValueError(f"a step of {n} is larger than {buckets[-1]}")
