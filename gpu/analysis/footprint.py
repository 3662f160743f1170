"""What a model will take on the device, from its shapes alone: known before a weight is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu.checkpoint.files import Tensor
from gpu.checkpoint.inventory import Inventory
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.parts import names_of
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.errors import ModelError
from gpu.kv.blocks import block_bytes, fit
from gpu.lora.adapter import Lora
from gpu.lora.size import stacked_bytes

Shapes = Mapping[str, tuple[int, ...]]
"""Of every tensor, by name."""

OVERHEAD = 0.1
"""Of all that lies on the device: activations, tables, and what allocators round up."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """In bytes.

    dense         weights that are on the device whatever `expert_slots` is
    expert_bytes  of one expert of every layer that has experts; there are `n_experts`, of which so
                  many as `expert_slots` lie on the device, None: all
    adapters      of LoRA adapters
    kv_cache      stored as `kv_dtype`, for `context` tokens of a text
    """

    dense: int
    kv_cache: int
    context: int
    kv_dtype: str
    adapters: int = 0
    expert_bytes: int = 0
    n_experts: int = 0
    expert_slots: int | None = None

    @property
    def n_slots(self) -> int:
        """Experts of a layer that lie on the device."""
        return min(self.n_experts, self.expert_slots or self.n_experts)

    @property
    def weights(self) -> int:
        """Those of the model on the device."""
        return self.dense + self.n_slots * self.expert_bytes

    @property
    def waiting(self) -> int:
        """All experts, in the host's memory; 0 where all are on the device."""
        return self.n_experts * self.expert_bytes if self.n_slots < self.n_experts else 0

    @property
    def total(self) -> int:
        """On the device, with what work needs there."""
        return math.ceil((self.weights + self.adapters + self.kv_cache) * (1 + OVERHEAD))

    @classmethod
    def of(
        cls,
        path: str | Path,
        dtype: str,
        *,
        shapes: Shapes | None = None,
        backend: str = "wgpu",
        n_slots: int = 4,
        kv_dtype: str | None = None,
        context: int | None = None,
        kv_bytes: int | None = None,
        loras: Mapping[str, str | Path] | None = None,
        expert_slots: int | None = None,
    ) -> Footprint:
        """Of the model at `path`. `shapes`: where its weights are not there yet; the rest as for
        `Engine.load`, but that adapters which the model cannot have are not counted. Raises
        ModelError for a model that cannot be run and DeviceError for a context that its KV cache
        cannot hold."""
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        config, kv = ModelConfig.from_folder(path), kv_dtype or FORMATS[dtype].kv
        cut = fit(config, kv, n_slots, context=context, budget_bytes=kv_bytes)
        checkpoint = Checkpoint.open(path) if shapes is None else _of_shapes(Path(path), shapes)
        of_torch = backend == "torch"  # which rounds weights as `dtype` does, and keeps float32
        weights, experts = _weights(config, checkpoint, "f32" if of_torch else dtype)
        adapters = tuple(_usable(loras or {}, config, checkpoint))
        n_experts = config.experts.n if config.experts else 0
        return cls(
            dense=weights - experts,
            kv_cache=cut.n_blocks * block_bytes(config, kv),
            context=cut.context,
            kv_dtype=kv,
            adapters=sum(4 * lora.info.parameters for lora in adapters)
            if of_torch
            else stacked_bytes(adapters, config, checkpoint),
            expert_bytes=experts // n_experts if n_experts else 0,
            n_experts=n_experts,
            expert_slots=None if of_torch else expert_slots,
        )


def _weights(config: ModelConfig, checkpoint: Checkpoint, dtype: str) -> tuple[int, int]:
    """Bytes of all weights on the device, and of those of experts."""
    inventory, names = Inventory.of(config, checkpoint, dtype), names_of(config, checkpoint)
    assert inventory.device_bytes is not None
    experts = 0
    for tensor in inventory.tensors:
        found = names.find(tensor.name)
        if found and found.part.routed:
            experts += tensor.device_bytes or 0
    return inventory.device_bytes, experts


def _usable(
    folders: Mapping[str, str | Path], config: ModelConfig, checkpoint: Checkpoint
) -> Iterator[Lora]:
    for name, folder in folders.items():
        try:
            yield Lora.open(name, Path(folder), config, checkpoint)
        except ModelError:
            continue


def _of_shapes(path: Path, shapes: Shapes) -> Checkpoint:
    """A checkpoint that can be counted and not read."""
    nothing = np.empty(0, np.uint8)
    return Checkpoint(
        path, {name: Tensor(name, path, "F32", shape, nothing) for name, shape in shapes.items()}
    )
