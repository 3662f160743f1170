"""Memory that a model needs on the device, computed from shapes: known before a weight is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpu.architectures import expect_torch_runs
from gpu.checkpoint.inventory import Inventory, TensorEntry
from gpu.checkpoint.open_model import open_model, with_own_head
from gpu.checkpoint.packing import FORMATS
from gpu.checkpoint.reader import Checkpoint
from gpu.checkpoint.tensor_names import tensor_map_of
from gpu.config import ModelConfig, Stage, cut_stages
from gpu.errors import ModelError
from gpu.kv.blocks import ENCODER_DECODER_SHAPE, ENCODER_SHAPE, block_bytes, fit_kv_cache
from gpu.kv.can_shift import expect_shiftable
from gpu.kv.groups import groups_of_stage
from gpu.load_options import LoadOptions
from gpu.lora.adapter import Lora
from gpu.lora.size import lora_bytes

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of all tensors by name."""

COUNT_BYTES = 2
"""Bytes of a token's count in a slot (`gpu.ops.sampling.SlotTexts`)."""

OVERHEAD = 0.1
"""Additional share of device memory: activations, tables, and what allocators round up."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a model, or of its largest stage if it has several, in bytes.

    dense         weights that are always on the device
    expert_bytes  one expert of every layer that has experts
    n_experts     experts per layer
    expert_slots  limit of resident experts per layer; None: all are resident
    adapters      LoRA adapters
    kv_cache      KV cache in the format `kv_dtype`, with room for a text of `context` tokens
    counts        how often each slot's run wrote each token of the vocabulary, for penalties
    kv_offload    host memory for evicted KV blocks
    n_stages      stages of the model, on a device each
    """

    dense: int
    kv_cache: int
    context: int
    kv_dtype: str
    adapters: int = 0
    expert_bytes: int = 0
    n_experts: int = 0
    expert_slots: int | None = None
    counts: int = 0
    kv_offload: int = 0
    n_stages: int = 1

    @property
    def resident_experts(self) -> int:
        """Experts per layer that are on the device."""
        return min(self.n_experts, self.expert_slots or self.n_experts)

    @property
    def weights(self) -> int:
        """Weights on the device."""
        return self.dense + self.resident_experts * self.expert_bytes

    @property
    def waiting(self) -> int:
        """All experts in host memory, if some are not resident; else 0."""
        return self.n_experts * self.expert_bytes if self.resident_experts < self.n_experts else 0

    @property
    def host(self) -> int:
        """Host memory: waiting experts and evicted KV blocks."""
        return self.waiting + self.kv_offload

    @property
    def total(self) -> int:
        """Device memory including the overhead."""
        exact = self.weights + self.adapters + self.kv_cache + self.counts
        return math.ceil(exact * (1 + OVERHEAD))

    @classmethod
    def of(
        cls,
        path: str | Path,
        options: LoadOptions,
        *,
        shapes: Shapes | None = None,
    ) -> Footprint:
        """Return the memory that the model at `path` needs. `shapes`: those of its weights, if
        they are not there yet. Adapters that do not fit the model are not counted. Raises
        ModelError for a model that cannot be run and DeviceError for a context that its KV cache
        cannot hold."""
        if shapes is None:
            return cls.of_checkpoint(*open_model(path), options)
        checkpoint = Checkpoint.of_shapes(Path(path), shapes)
        config = with_own_head(ModelConfig.from_folder(path), checkpoint)
        return cls.of_checkpoint(config, checkpoint, options)

    @classmethod
    def of_encoder(cls, path: str | Path) -> Footprint:
        """Return the memory of an embedding model, whose weights, keys and values are float32."""
        config, n_weights = ModelConfig.of_encoder(path), Checkpoint.open(path).parameters()
        kv_cache = ENCODER_SHAPE.n_blocks * block_bytes(config, "f32")
        return cls(4 * n_weights, kv_cache, ENCODER_SHAPE.context, "f32")

    @classmethod
    def of_encoder_decoder(cls, path: str | Path) -> Footprint:
        """Return the memory of an encoder-decoder: float32 weights, and the keys and values of its
        encoder, of cross-attention and of its decoder."""
        encoder, decoder = ModelConfig.of_encoder_decoder(path)
        n_weights = Checkpoint.open(path).parameters()
        shape = ENCODER_DECODER_SHAPE
        of_block = block_bytes(encoder, "f32") + 2 * block_bytes(decoder, "f32")
        return cls(4 * n_weights, shape.n_blocks * of_block, shape.context, "f32")

    @classmethod
    def of_checkpoint(
        cls,
        config: ModelConfig,
        checkpoint: Checkpoint,
        options: LoadOptions,
        inventory: Inventory | None = None,
    ) -> Footprint:
        """Return the memory of a model that has been opened; see `of`. `inventory`: its own for
        `options.dtype`, if it was made before."""
        dtype = options.dtype
        if dtype not in FORMATS:
            raise ModelError(f"dtype {dtype!r} is not supported; supported: {', '.join(FORMATS)}")
        of_torch = options.backend == "torch"  # rounds weights to `dtype` but stores float32
        if of_torch:
            expect_torch_runs(config.model_type)
        expect_shiftable(config, options.cache_reuse)
        kv = options.kv_dtype or FORMATS[dtype].kv
        cut = fit_kv_cache(
            config,
            kv,
            options.slots,
            context=options.context,
            kv_memory_bytes=options.kv_memory_bytes,
            hybrid=options.hybrid_kv_cache and options.backend == "wgpu",
        )
        stages = cut_stages(config.n_layers, options.pipeline_parallel_size)
        if inventory is None or of_torch:
            inventory = Inventory.of(config, checkpoint, "f32" if of_torch else dtype)
        adapters = tuple(_usable(options.loras, config, checkpoint))
        n_experts = config.experts.n_experts if config.experts else 0

        def of_stage(stage: Stage) -> Footprint:
            weights, experts = _weights(config, checkpoint, inventory, stage)
            groups = groups_of_stage(cut.groups, stage)
            return replace(
                whole,
                dense=weights - experts,
                kv_cache=cut.n_blocks * block_bytes(config.of_stage(stage), kv, groups),
                expert_bytes=experts // n_experts if n_experts else 0,
                counts=whole.counts if stage.is_last else 0,
            )

        whole = cls(
            dense=0,
            kv_cache=0,
            context=cut.context,
            kv_dtype=kv,
            adapters=sum(4 * lora.info.parameters for lora in adapters)
            if of_torch
            else lora_bytes(adapters, config, checkpoint),
            n_experts=n_experts,
            expert_slots=None if of_torch else options.expert_slots,
            counts=0 if of_torch else COUNT_BYTES * config.vocab_size * (options.slots + 1),
            kv_offload=options.kv_offload_bytes // len(stages),
            n_stages=len(stages),
        )
        return max(map(of_stage, stages), key=lambda footprint: footprint.total)


def _weights(
    config: ModelConfig, checkpoint: Checkpoint, inventory: Inventory, stage: Stage
) -> tuple[int, int]:
    """Return the device bytes of all weights of a stage, and of those of experts."""
    tensors = tensor_map_of(config, checkpoint)
    n_bytes = experts = 0
    for tensor in inventory.tensors:
        if not _is_of_stage(tensor, stage):
            continue
        found = tensors.find(tensor.name)
        n_bytes += tensor.device_bytes or 0
        if found and found.role.routed:
            experts += tensor.device_bytes or 0
    return n_bytes, experts


def _is_of_stage(tensor: TensorEntry, stage: Stage) -> bool:
    """Return whether a stage has a tensor: of a layer, before the layers or after them. A tied
    embedding is both."""
    if tensor.layer is not None:
        return tensor.layer in stage.layers
    before = bool({"embed", "positions"} & set(tensor.read_by))
    after = bool(set(tensor.read_by) - {"embed", "positions"}) or not before
    return (before and stage.is_first) or (after and stage.is_last)


def _usable(
    folders: Mapping[str, str | Path], config: ModelConfig, checkpoint: Checkpoint
) -> Iterator[Lora]:
    for name, folder in folders.items():
        try:
            yield Lora.open(name, Path(folder), config, checkpoint)
        except ModelError:
            continue
