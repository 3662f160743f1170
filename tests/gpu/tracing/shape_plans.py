"""Plans of a known shape, recorded as for a GPU, without its weights.

One layer stands for all: every layer of a Llama has the same dispatches. Weights and norms stay
zero; only addresses matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.random_checkpoint import LLAMA_SHAPES, RandomCheckpoint
from gpu.checkpoint.reader import F16, F32
from gpu.checkpoint.weights import WeightLoader
from gpu.config import ModelConfig, MoeConfig
from gpu.kv.blocks import block_bytes, blocks_for, fit_kv_cache
from gpu.kv.pools import KvPools
from gpu.models.registry import MODELS
from gpu.ops.cost import StepSize
from gpu.ops.step_buffer import STEP_BYTES, pack_step
from gpu.plans.plan_cache import PlanCache, StepTensors
from gpu.step import Row, Sample, Step
from gpu.tracing.tracer import LIMITS
from gpu.webgpu.buffers import Memory, Tensor
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import DISCRETE, DevicePolicy
from gpu.webgpu.plan import Dispatch

SHAPES = dict(LLAMA_SHAPES)


def open_as_gpu(
    adapter: str | None = None, *, discrete: bool = True, q8_activations: bool = False
) -> Device:
    """Open an adapter for tracing, posing as a GPU whatever it is."""
    device = Device.open(adapter, more_limits=LIMITS)
    kind = DISCRETE if discrete else "integrated GPU"
    info = replace(device.info, kind=kind, software=False)
    policy = DevicePolicy.of(info)
    tuning = replace(policy.tuning, q8_activations=q8_activations)
    return replace(device, info=info, tuning=tuning, policy=policy)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Dispatches of a step, each with how often the whole model runs it."""

    size: StepSize
    dispatches: Sequence[tuple[Dispatch, int]]


class ShapePlans:
    """Records the plans of a shape on `device`, for up to `n_streams` sequences of `context` tokens
    each."""

    def __init__(
        self, device: Device, shape: str, dtype: str, context: int, n_streams: int = 1
    ) -> None:
        whole = SHAPES[shape]
        self.config = replace(whole, n_layers=1)
        self.n_layers = whole.n_layers
        self.dtype = dtype
        kv_dtype = FORMATS[dtype].kv
        memory = Memory(device)
        kv_shape = fit_kv_cache(
            self.config,
            kv_dtype,
            n_streams,
            context=context,
            kv_memory_bytes=n_streams * blocks_for(context) * block_bytes(self.config, kv_dtype),
            max_binding_bytes=device.max_binding_bytes,
        )
        unfilled = _UnfilledMemory(device)
        with _UnpackedWeights(_Zeros(self.config), unfilled, dtype) as load:
            model = MODELS[self.config.model_type](self.config, load, unfilled, kv_shape.context)
        pools = KvPools(self.config, kv_shape, kv_dtype, n_streams, memory)
        each = blocks_for(context)
        for slot in range(n_streams):
            pools.set_blocks(slot, list(range(slot * each, (slot + 1) * each)))
        self._tensors = StepTensors.make(self.config, n_streams + 1, memory)
        self._memory, self._pools = memory, pools
        self._plans = PlanCache(device, model, pools, self._tensors, memory)

    def decode(self, context: int, n_streams: int = 1) -> StepPlan:
        """Return the step of one token of each of `n_streams` sequences after `context` others."""
        return self._step(StepSize(n_streams, n_streams, context, apart=n_streams > 1))

    def prefill(self, n_prompt: int) -> list[StepPlan]:
        """Return the steps of a prompt; the last has a sample."""
        most = self._memory.max_rows
        return [
            self._step(StepSize(min(most, n_prompt - first), int(first + most >= n_prompt), first))
            for first in range(0, n_prompt, most)
        ]

    def write(self, size: StepSize) -> None:
        """Write a step of this size, so that its dispatches can run."""
        n = size.n_rows
        if size.apart:
            rows = tuple(Row(slot, size.context, 0) for slot in range(n))
        else:
            rows = tuple(Row(0, size.context + i, 0) for i in range(n))
        samples = tuple(
            Sample(row, rows[row].slot, 0, 0, 0.0) for row in range(n - size.n_samples, n)
        )
        data = bytearray(STEP_BYTES)
        pack_step(Step(rows, samples), data, self._pools.blocks[0])
        self._memory.write(self._tensors.step, np.frombuffer(data, np.uint8))

    def route(self, dispatch: Dispatch, n_rows: int) -> None:
        """Replace the choices of a `moe_topk`, which are the same for every row of zeros."""
        assert self.config.experts is not None
        ids = even_routing(n_rows, self.config.experts)
        self._memory.write(dispatch.tensors["expert_ids"], ids)

    def close(self) -> None:
        self._plans.kernels.close()

    def _step(self, size: StepSize) -> StepPlan:
        plan = self._plans.plan(
            size.n_rows, size.n_samples, "plain", size.longest, apart=size.apart
        ).plan
        return StepPlan(
            size,
            [(d, self.n_layers if d.label.startswith("layer") else 1) for d in plan.dispatches],
        )


class _Zeros(RandomCheckpoint):
    """Weights that are all zero."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.experts:
            dense = [name for name in self._shapes if ".mlp." in name]
            for name in dense:
                del self._shapes[name]
            for layer in range(config.n_layers):
                self._shapes |= dict(_expert_shapes(config, layer))

    def read_f32(self, name: str, rows: slice | None = None, columns: slice | None = None) -> F32:
        shape = list(self.shape(name))
        for axis, part in enumerate((rows, columns)):
            if part is not None:
                shape[axis] = len(range(*part.indices(shape[axis])))
        return np.zeros(shape, np.float32)

    def read_into(
        self, out: F32 | F16, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> None: ...


class _UnpackedWeights(WeightLoader):
    packs_on_device = False

    def pack(
        self, dtype: str, rows: npt.NDArray[np.float32], name: str, out: npt.NDArray[np.uint32]
    ) -> None: ...


class _UnfilledMemory(Memory):
    def write(self, tensor: Tensor, array: npt.NDArray[np.generic], at: int = 0) -> None: ...


def _expert_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a layer's mixture, as Mixtral names them."""
    moe, name, hidden = config.experts, f"model.layers.{layer}.block_sparse_moe", config.hidden_size
    assert moe is not None
    yield f"{name}.gate.weight", (moe.n_experts, hidden)
    for expert in range(moe.n_experts):
        module = f"{name}.experts.{expert}"
        yield f"{module}.w1.weight", (moe.intermediate_size, hidden)
        yield f"{module}.w3.weight", (moe.intermediate_size, hidden)
        yield f"{module}.w2.weight", (hidden, moe.intermediate_size)


def even_routing(n_rows: int, moe: MoeConfig) -> npt.NDArray[np.uint32]:
    """Return experts (n_rows, experts_per_token) such that any rows that follow each other use all
    experts alike, and those of one row lie far apart."""
    n, k = moe.n_experts, moe.experts_per_token
    stride = next(s for s in range(n // k + 1, 2 * n + 2) if math.gcd(s, n) == 1)
    return (np.arange(n_rows * k, dtype=np.uint32) * stride % n).reshape(n_rows, k)
