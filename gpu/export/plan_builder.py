"""Recorded plans as a file of the plan format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import astuple
from typing import Any, Generic, TypeVar

from gpu.checkpoint.recipe import Recipe
from gpu.export.array_lengths import declare_lengths
from gpu.export.cost_terms import plan_cost
from gpu.export.plan_format import (
    FORMAT,
    VERSION,
    KeptResult,
    Needs,
    PlanBuffer,
    PlanCost,
    PlanDispatch,
    PlanFile,
    PlanKernel,
    PlanLimits,
    PlanLookup,
    PlanModel,
    PlanPart,
    PlanTensor,
    PlanView,
    PlanWeight,
    RecordedStep,
    ResultLayout,
    Run,
    StepLayout,
)
from gpu.export.recording import Recording
from gpu.models.workspace import Instruments
from gpu.ops.layer_stats import STATS_FIELDS
from gpu.ops.sampling import CANDIDATE_FIELDS, RESULT_FIELDS, RESULT_WORDS
from gpu.ops.step_buffer import (
    FROM_GPU_WORD,
    HEADER_FIELDS,
    MAX_SAMPLES,
    ROW_FIELDS,
    ROWS_AT,
    SAMPLE_FIELDS,
    SAMPLES_AT,
    STEP_BYTES,
)
from gpu.plans.plan_cache import RecordedPlan
from gpu.runners.loaded_model import LoadedModel
from gpu.sampling_params import GREEDY_BELOW
from gpu.step import CUTS, MAX_ROWS, N_CANDIDATES
from gpu.webgpu.buffers import Tensor
from gpu.webgpu.kernel_source import workgroup_memory, workgroup_size
from gpu.webgpu.kernels import Kernel
from gpu.webgpu.plan import Dispatch

Contents = Callable[[Any], bytes | None]
"""Returns what a buffer holds from the beginning; None: zeros."""

T = TypeVar("T")


class _Table(Generic[T]):
    """Entries of a list of the file, each once."""

    def __init__(self) -> None:
        self.entries: list[T] = []
        self._places: dict[Hashable, int] = {}

    def place(self, key: Hashable, make: Callable[[], T]) -> int:
        """Return the index of the entry of `key`, made now if it is new."""
        if key not in self._places:
            entry = make()  # which may add entries of its own
            self._places[key] = len(self.entries)
            self.entries.append(entry)
        return self._places[key]


class PlanBuilder:
    """Makes the file of one recording.

    constants  bytes of the weights that are in no checkpoint, by their names
    """

    def __init__(self, recording: Recording, profile: str, contents: Contents) -> None:
        self._recording = recording
        self._profile = profile
        self._contents = contents
        self._placements = {id(p.tensor.buffer): p for p in recording.placements}
        self._weights: _Table[PlanWeight] = _Table()
        self._buffers: _Table[PlanBuffer] = _Table()
        self._views: _Table[PlanView] = _Table()
        self._sources: _Table[str] = _Table()
        self._kernels: _Table[PlanKernel] = _Table()
        self._costs: _Table[PlanCost] = _Table()
        self._dispatches: _Table[PlanDispatch] = _Table()
        self._places: dict[Hashable, int] = {}  # of dispatches, by their tensors themselves
        self._weight_bytes = 0
        self._limits: Counter[str] = Counter()
        self.constants: dict[str, bytes] = {}

    def build(self) -> PlanFile:
        """Return the file."""
        for placement in self._recording.placements:  # the order of the weights' data
            self._weight(placement.recipe)
        loaded = self._recording.loaded
        plans = tuple(self._plan(recorded) for recorded in self._recording.plans)
        tensors = dict(self._tensors(loaded))
        dispatches, views = tuple(self._dispatches.entries), tuple(self._views.entries)
        kernels, sources = declare_lengths(
            self._kernels.entries, self._sources.entries, dispatches, views
        )
        return PlanFile(
            format=FORMAT,
            version=VERSION,
            profile=self._profile,
            dtype=loaded.dtype,
            kv_dtype=loaded.pools.dtype,
            needs=self._needs(),
            model=_model(loaded),
            limits=_limits(loaded),
            lookup=_lookup(self._recording),
            step=_step_layout(loaded),
            results=RESULTS,
            tensors=tensors,
            weights=tuple(self._weights.entries),
            buffers=tuple(self._buffers.entries),
            views=views,
            sources=sources,
            kernels=kernels,
            costs=tuple(self._costs.entries),
            dispatches=dispatches,
            plans=plans,
        )

    # ---- plans ------------------------------------------------------------------------------

    def _plan(self, recorded: RecordedPlan) -> RecordedStep:
        key = recorded.key
        kept = tuple(self._kept(recorded))
        return RecordedStep(
            kind=key.kind,
            rows=key.rows,
            samples=key.samples,
            splits=key.splits,
            interventions=key.interventions,
            loras=key.loras,
            dispatches=runs([self._dispatch(d) for d in recorded.plan.dispatches]),
            marks=tuple(recorded.plan.marks),
            result_bytes=recorded.query_at,
            kept=kept,
            tensors=dict(self._question_tensors(recorded.instruments)),
        )

    def _dispatch(self, dispatch: Dispatch) -> int:
        """Return the place of a dispatch. Most are those of plans before, of the same tensors."""
        tensors = (id(tensor) for tensor in dispatch.tensors.values())
        same = (dispatch.label, id(dispatch.kernel), dispatch.grid, *tensors)
        if same not in self._places:
            self._places[same] = self._new_dispatch(dispatch)
        return self._places[same]

    def _new_dispatch(self, dispatch: Dispatch) -> int:
        kernel = self._kernel(dispatch.kernel)
        bindings = dispatch.kernel.bindings
        views = tuple(self._view(dispatch.tensors[b.name], b.kind) for b in bindings)
        key = (dispatch.label, kernel, dispatch.grid, views)
        return self._dispatches.place(key, lambda: PlanDispatch(*key, self._cost(dispatch)))

    def _cost(self, dispatch: Dispatch) -> int | None:
        cost = plan_cost(dispatch)
        return None if cost is None else self._costs.place(cost, lambda: cost)

    def _kernel(self, kernel: Kernel) -> int:
        def make() -> PlanKernel:
            size, n_storage = workgroup_size(kernel), 0
            for binding in kernel.bindings:
                n_storage += binding.kind != "uniform"
            self._need("maxStorageBuffersPerShaderStage", n_storage)
            self._need("maxComputeWorkgroupStorageSize", workgroup_memory(kernel))
            self._need("maxComputeInvocationsPerWorkgroup", size[0] * size[1] * size[2])
            self._need("maxComputeWorkgroupSizeX", size[0])
            return PlanKernel(
                kernel.name,
                self._sources.place(kernel.source, lambda: kernel.source),
                {name: _number(value) for name, value in kernel.constants.items()},
                tuple((b.index, b.kind) for b in kernel.bindings),
                size,
            )

        return self._kernels.place((kernel.source, *sorted(kernel.constants.items())), make)

    def _kept(self, recorded: RecordedPlan) -> Iterator[KeptResult]:
        """Yield what a plan with statistics (`capture`) keeps."""
        if recorded.capture is None:
            return
        at = recorded.sample_bytes
        for tensor in recorded.capture.kept:
            name = tensor.name.removeprefix("capture.")
            parts, stride = tensor.shape
            view = self._view(tensor)
            yield KeptResult(name, view, at, parts, stride, tensor.dtype)
            at += tensor.n_bytes

    def _question_tensors(self, found: Instruments) -> Iterator[tuple[str, PlanTensor]]:
        """Yield the tensors of a plan that answers an instrument."""
        if found.attention:
            yield "keys", self._tensor(found.attention.keys, "uniform")
            yield "weights", self._tensor(found.attention.layers)
        if found.states and not found.capture:
            yield "states", self._tensor(found.states.states)
        if found.routing_capture:
            yield "chosen", self._tensor(found.routing_capture.chosen)
            yield "gates", self._tensor(found.routing_capture.gates)
            yield "norms", self._tensor(found.routing_capture.lengths)

    # ---- memory -----------------------------------------------------------------------------

    def _view(self, tensor: Tensor, kind: str = "storage") -> int:
        buffer = self._buffer(tensor, uniform=kind == "uniform")
        what = (tensor.name, tensor.dtype, tensor.shape)
        key = (buffer, tensor.offset, tensor.n_bytes)
        if kind != "uniform":
            self._need("maxStorageBufferBindingSize", tensor.n_bytes)
        return self._views.place((key, what), lambda: PlanView(*key, *what))

    def _buffer(self, tensor: Tensor, *, uniform: bool) -> int:
        def make() -> PlanBuffer:
            buffer, placed = tensor.buffer, self._placements.get(id(tensor.buffer))
            self._need("maxBufferSize", buffer.size)
            if placed is not None:
                weight = self._weight(placed.recipe)
                return PlanBuffer(
                    buffer.label, buffer.size, uniform,
                    weight, placed.first, placed.n, placed.interleaved,
                )  # fmt: skip
            contents = self._contents(buffer)
            if contents is None:
                return PlanBuffer(buffer.label, buffer.size, uniform)
            weight = self._constant(buffer.label, contents)
            return PlanBuffer(buffer.label, buffer.size, uniform, weight, 0, len(contents) // 4)

        return self._buffers.place(id(tensor.buffer), make)

    def _weight(self, recipe: Recipe) -> int:
        parts = tuple(PlanPart(*astuple(part)) for part in recipe.parts)
        return self._weights.place(
            id(recipe),
            lambda: PlanWeight(
                recipe.name, recipe.dtype, recipe.n_bytes, self._reserve(recipe.n_bytes),
                recipe.n, recipe.k, parts, recipe.each, recipe.plus,
            ),
        )  # fmt: skip

    def _constant(self, name: str, contents: bytes) -> int:
        """Add a weight that is in no checkpoint: its words are taken as they are."""
        self.constants[name] = contents
        n_bytes = len(contents)
        return self._weights.place(
            name, lambda: PlanWeight(name, "f32", n_bytes, self._reserve(n_bytes), n_bytes // 4)
        )

    def _reserve(self, n_bytes: int) -> int:
        at, self._weight_bytes = self._weight_bytes, self._weight_bytes + n_bytes
        return at

    def _tensors(self, loaded: LoadedModel) -> Iterator[tuple[str, PlanTensor]]:
        """Yield the tensors that the host writes or reads itself."""
        pools, sampler = loaded.pools, loaded.tensors.sampler
        for name, tensor in (
            ("step", loaded.tensors.step),
            ("chosen", loaded.tensors.chosen),
            ("seen", sampler.texts.seen),
            ("counts", sampler.texts.counts),
            ("biases", sampler.texts.biases),
            ("allowed", sampler.allowed),
            ("logits", sampler.logits),
            ("results", sampler.results),
            ("block_tables", pools.block_tables[0]),
            *((f"layer{i:02}.keys", pool) for i, pool in enumerate(pools.keys)),
            *((f"layer{i:02}.values", pool) for i, pool in enumerate(pools.values)),
            *loaded.plans.intervention_buffers.tables().items(),
            *loaded.loras.tables().items(),
        ):
            yield name, self._tensor(tensor, "uniform" if name == "step" else "storage")

    def _tensor(self, tensor: Tensor, kind: str = "storage") -> PlanTensor:
        return PlanTensor(self._view(tensor, kind), tensor.shape, tensor.dtype)

    def _need(self, limit: str, value: int) -> None:
        self._limits[limit] = max(self._limits[limit], value)

    def _needs(self) -> Needs:
        n_bytes = sum(buffer.bytes for buffer in self._buffers.entries)
        features = tuple(self._recording.device.info.features)
        return Needs(n_bytes, features, dict(sorted(self._limits.items())))


def build_plan(recording: Recording, profile: str) -> tuple[PlanFile, dict[str, bytes]]:
    """Return the file of plans recorded without a device, and the bytes of the weights that are in
    no checkpoint, by their names."""

    def contents(buffer: Any) -> bytes | None:
        written = buffer.contents
        return None if written is None else written.tobytes()

    builder = PlanBuilder(recording, profile, contents)
    return builder.build(), builder.constants


def runs(places: Sequence[int]) -> tuple[Run, ...]:
    """Return numbers as runs of consecutive ones."""
    found: list[list[int]] = []
    for place in places:
        if found and place == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([place, 1])
    return tuple((first, n) for first, n in found)


RESULTS = ResultLayout(
    words=RESULT_WORDS,
    sample=RESULT_FIELDS,
    candidate=CANDIDATE_FIELDS,
    n_candidates=N_CANDIDATES,
    cuts=CUTS,
    stats_per_layer=STATS_FIELDS,
)


def _number(value: float) -> int | float:
    """Return a constant as JSON has it: truth values and whole numbers as integers."""
    return int(value) if value == int(value) else float(value)


def _model(loaded: LoadedModel) -> PlanModel:
    config, moe = loaded.config, loaded.config.experts
    return PlanModel(
        architecture=config.model_type,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        eos_ids=config.eos_ids,
        expert_layers=config.expert_layers,
        n_experts=moe.n_experts if moe else 0,
        experts_per_token=moe.experts_per_token if moe else 0,
        loras=loaded.loras.infos,
    )


def _limits(loaded: LoadedModel) -> PlanLimits:
    limits = loaded.limits
    return PlanLimits(
        slots=limits.slots,
        inspection_slot=limits.inspection_slot,
        context=limits.context,
        max_rows=limits.max_rows,
        max_samples=limits.max_samples,
        max_captured_rows=limits.max_captured_rows,
        n_blocks=limits.n_blocks,
        block_tokens=limits.block_tokens,
        max_blocks=loaded.pools.shape.max_blocks,
        window=limits.windows[0],
    )


def _lookup(recording: Recording) -> PlanLookup:
    recorded = [plan.key for plan in recording.plans]
    return PlanLookup(
        rows=tuple(sorted({key.rows for key in recorded})),
        samples=tuple(sorted({key.samples for key in recorded})),
        split_tokens=recording.loaded.plans.split_tokens,
        split_rows=recording.loaded.plans.split_rows,
    )


def _step_layout(loaded: LoadedModel) -> StepLayout:
    return StepLayout(
        bytes=STEP_BYTES,
        samples_at=SAMPLES_AT,
        rows_at=ROWS_AT,
        max_samples=MAX_SAMPLES,
        max_rows=MAX_ROWS,
        header=HEADER_FIELDS,
        sample=SAMPLE_FIELDS,
        row=ROW_FIELDS,
        from_gpu=FROM_GPU_WORD,
        staged_kv=loaded.pools.step_tables is None,
        greedy_below=GREEDY_BELOW,
    )
