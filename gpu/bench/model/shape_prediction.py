"""Prediction of a shape on one GPU: a token after a context, tokens of several streams, and a
prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu.bench.model.moe_shapes import busy_tiles
from gpu.bench.model.predict import StepPrediction, predict
from gpu.bench.model.shape_plans import ShapePlans, StepPlan
from gpu.bench.model.specs import GpuSpec
from gpu.bench.model.workgroup_work import DispatchWork, work_of
from gpu.ops.cost import StepSize
from gpu.tracing.tracer import Tracer
from gpu.webgpu.device import Device
from gpu.webgpu.plan import Dispatch

DEPEND_ON_CONTEXT = ("attention", "attention_merge")
"""Kernels whose work depends on the tokens before the step."""

Step = Sequence[tuple[DispatchWork, int]]
"""Work of a step's dispatches, each with how often it runs."""


@dataclass(frozen=True, slots=True)
class ShapeWork:
    """Work of a shape, for waves of one size.

    token    a step of one token after `context` others
    streams  a step of one token of each of `n_streams` sequences after `context` others
    prompt   the steps of a prompt of `n_prompt` tokens
    """

    shape: str
    dtype: str
    activations: str
    context: int
    n_prompt: int
    n_streams: int
    token: Step
    streams: Step
    prompt: Sequence[Step]


def trace_shape(
    device: Device,
    shape: str,
    dtype: str,
    context: int,
    n_prompt: int,
    wave: int,
    n_streams: int = 1,
) -> ShapeWork:
    """Record and trace the plans of a shape on a device of `open_as_gpu`."""
    plans = ShapePlans(device, shape, dtype, max(context + 1, n_prompt), n_streams)
    tracer = Tracer(device)
    try:
        tracing = _Tracing(plans, tracer, wave)
        token = tracing.step(plans.decode(context))
        streams = token if n_streams == 1 else tracing.step(plans.decode(context, n_streams))
        prompt = [tracing.step(step) for step in plans.prefill(n_prompt)]
    finally:
        tracer.close()
        plans.close()
    activations = "q8" if device.tuning.q8_activations else "f32"
    return ShapeWork(
        shape, dtype, activations, context, n_prompt, n_streams, token, streams, prompt
    )


def trace_token(device: Device, shape: str, dtype: str, context: int, wave: int) -> Step:
    """Record and trace a step of one token after `context` others."""
    plans = ShapePlans(device, shape, dtype, context + 1)
    tracer = Tracer(device)
    try:
        return _Tracing(plans, tracer, wave).step(plans.decode(context))
    finally:
        tracer.close()
        plans.close()


@dataclass(frozen=True, slots=True)
class ShapePrediction:
    """Prediction of a shape on a GPU."""

    work: ShapeWork
    spec: GpuSpec
    token: StepPrediction
    streams: StepPrediction
    prompt: Sequence[StepPrediction]

    @classmethod
    def of(cls, work: ShapeWork, spec: GpuSpec) -> ShapePrediction:
        return cls(
            work,
            spec,
            _predicted(work.token, spec),
            _predicted(work.streams, spec),
            [_predicted(step, spec) for step in work.prompt],
        )

    @property
    def decode_tok_s(self) -> float:
        return 1e6 / self.token.us

    @property
    def streams_tok_s(self) -> float:
        """Tokens per second of all streams together."""
        return 1e6 * self.work.n_streams / self.streams.us

    @property
    def streams_gain(self) -> float:
        """Tokens per second of all streams, relative to one alone."""
        return self.streams_tok_s / self.decode_tok_s

    @property
    def bandwidth_share(self) -> float:
        """Bytes of a token per second, relative to the published bandwidth."""
        return self.token.n_bytes / self.token.us / 1e3 / self.spec.memory_gb_s

    @property
    def prompt_us(self) -> float:
        return sum(step.us for step in self.prompt)

    @property
    def prefill_tok_s(self) -> float:
        return 1e6 * self.work.n_prompt / self.prompt_us

    @property
    def f32_share(self) -> float:
        """Operations of a prompt per second, relative to the published float32 peak."""
        flops = sum(step.flops for step in self.prompt)
        return flops / self.prompt_us / 1e6 / self.spec.f32_tflop_s


@dataclass(slots=True)
class _Tracing:
    """Traces the dispatches of a shape, each once unless it depends on the context."""

    plans: ShapePlans
    tracer: Tracer
    wave: int
    done: dict[int, DispatchWork] = field(default_factory=dict)

    def step(self, step: StepPlan) -> Step:
        self.plans.write(step.size)
        return [(self._work(dispatch, step.size), times) for dispatch, times in step.dispatches]

    def _work(self, dispatch: Dispatch, size: StepSize) -> DispatchWork:
        found = self.done.get(id(dispatch))
        if found is None or dispatch.kernel.name in DEPEND_ON_CONTEXT:
            if dispatch.kernel.name == "moe_matmul":
                found = self._work_of_experts(dispatch, size)
            else:
                found = work_of(self.tracer, dispatch, size, self.plans.dtype, self.wave)
            self.done[id(dispatch)] = found
        if dispatch.kernel.name == "moe_topk":
            self.plans.route(dispatch, size.n_rows)
        if dispatch.kernel.name == "logit_sort_keys":
            self.plans.sort_logits(dispatch)
        return found

    def _work_of_experts(self, dispatch: Dispatch, size: StepSize) -> DispatchWork:
        """Trace a tile that has work. A shard whose experts no row chose counts as the one before,
        because its formula has its share of all."""
        moe = self.plans.config.experts
        assert moe is not None
        tile, n = busy_tiles(dispatch, self.plans.expert_of_tile(dispatch, size.n_rows), moe)
        if tile is None:
            return next(w for w in reversed(self.done.values()) if w.label == dispatch.label)
        dtype, wave = self.plans.dtype, self.wave
        return work_of(self.tracer, dispatch, size, dtype, wave, busy_y=(tile, n))


def _predicted(step: Step, spec: GpuSpec) -> StepPrediction:
    return StepPrediction([(predict(work, spec), times) for work, times in step])
