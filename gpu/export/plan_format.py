"""The plan format as structs: plans of one model for one profile of devices, as JSON.

docs/plan-format.md explains every field. Numbers that name an entry of a list are indices from 0.
Tuples are written as arrays.
"""

from __future__ import annotations

import gzip
from typing import Annotated

import msgspec

from gpu.errors import ModelError
from gpu.info import LoraInfo

FORMAT = "tokenglass-plan"
VERSION = 1


def _one_of(*values: str | int) -> msgspec.Meta:
    """Say in a field's schema that it has one of these values, for the types of the page's code."""
    return msgspec.Meta(extra_json_schema={"enum": values})


Word = Annotated[str, _one_of("u32", "f32")]
"""WGSL type of 32 bits."""
StorageType = Annotated[str, _one_of("f32", "f16", "q8", "q4")]
BindingType = Annotated[str, _one_of("uniform", "storage", "read-only-storage")]
StepSizeName = Annotated[
    str, _one_of("one", "rows", "samples", "seen", "cached", "cached_blocks", "splits", "power")
]
Field = tuple[str, Word]
"""Name and type of a word."""
Run = tuple[int, int]
"""First entry and number of entries."""


class PlanModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sizes that a scheduler and the instruments need. `loras`: the adapters, in the order of their
    strengths."""

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    expert_layers: tuple[int, ...]
    n_experts: int
    experts_per_token: int
    loras: tuple[LoraInfo, ...] = ()


class PlanLimits(msgspec.Struct, frozen=True):
    """Limits of steps, sequences and the KV cache; see `gpu.info.RunnerLimits`."""

    slots: int
    inspection_slot: int
    context: int
    max_rows: int
    max_samples: int
    max_captured_rows: int
    n_blocks: int
    block_tokens: int
    max_blocks: int
    window: int | None


class PlanLookup(msgspec.Struct, frozen=True):
    """How a step finds its plan: sizes are rounded up to one that is recorded."""

    rows: tuple[int, ...]
    samples: tuple[int, ...]
    split_tokens: int
    split_rows: int


class StepLayout(msgspec.Struct, frozen=True):
    """The uniform buffer of a step; offsets and sizes in bytes. `greedy_below`: temperatures below
    it are written as 0 (older files have none)."""

    bytes: int
    samples_at: int
    rows_at: int
    max_samples: int
    max_rows: int
    header: tuple[Field, ...]
    sample: tuple[Field, ...]
    row: tuple[Field, ...]
    from_gpu: int
    staged_kv: bool
    greedy_below: float = 0.0


class ResultLayout(msgspec.Struct, frozen=True):
    """The result of one sample, in words of 32 bits, and what captured plans keep."""

    words: int
    sample: tuple[Field, ...]
    candidate: tuple[Field, ...]
    n_candidates: int
    cuts: tuple[str, ...]
    stats_per_layer: tuple[str, ...]


class Needs(msgspec.Struct, frozen=True):
    """Features and limits that an adapter must have, by WebGPU's names. `bytes`: size of all
    buffers together."""

    bytes: int
    features: tuple[str, ...]
    limits: dict[str, int]


class PlanPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows of one tensor of the checkpoint; see `gpu.checkpoint.recipe.TensorRows`."""

    tensor: str
    runs: tuple[Run, ...]
    transposed: bool = False
    head_order: tuple[int, ...] = ()


class PlanWeight(msgspec.Struct, frozen=True, omit_defaults=True):
    """Contents of buffers: bytes `at` … `at + bytes − 1` of the weights' data, and the recipe that
    makes them (`gpu.checkpoint.recipe.Recipe`); without parts, numbers that are in no checkpoint
    or those of LoRA adapters."""

    name: str
    dtype: StorageType
    bytes: int
    at: int
    n: int
    k: int = 0
    parts: tuple[PlanPart, ...] = ()
    each: int = 1
    plus: float = 0.0


class PlanBuffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A buffer. `weight`: it begins with rows `first` … `first + rows − 1` of this weight,
    `interleaved` rows together; None: zeros."""

    name: str
    bytes: int
    uniform: bool = False
    weight: int | None = None
    first: int = 0
    rows: int = 0
    interleaved: int = 1


class PlanView(msgspec.Struct, frozen=True, array_like=True):
    """A range of a buffer that is bound: buffer, offset, bytes; then, for information, the tensor
    there: its name, type and dimensions."""

    buffer: int
    offset: int
    bytes: int
    name: str
    dtype: str
    shape: tuple[int, ...]


class PlanTensor(msgspec.Struct, frozen=True):
    """A tensor that the host reads or writes between dispatches: view, dimensions, type."""

    view: int
    shape: tuple[int, ...]
    dtype: str


class PlanKernel(msgspec.Struct, frozen=True):
    """A compute pipeline: WGSL source, its overrides, binding numbers and types in the order of a
    dispatch's views, invocations of a workgroup. The entry point is `main`."""

    name: str
    source: int
    constants: dict[str, int | float]
    bindings: tuple[tuple[int, BindingType], ...]
    workgroup: tuple[int, int, int]


class PlanDispatch(msgspec.Struct, frozen=True, array_like=True):
    """label, kernel, workgroups (x, y, z), views, and its cost: None is not known."""

    label: str
    kernel: int
    grid: tuple[int, int, int]
    views: tuple[int, ...]
    cost: int | None


class CostTerm(msgspec.Struct, frozen=True, array_like=True):
    """coefficient × size: a size of a step by its name and arguments."""

    coefficient: float
    size: StepSizeName
    arguments: tuple[float, ...]


class PlanCost(msgspec.Struct, frozen=True, array_like=True):
    """Operations and bytes of a dispatch in a step of any size (`gpu.ops.cost`): sums of terms."""

    flops: tuple[CostTerm, ...]
    n_bytes: tuple[CostTerm, ...]


class KeptResult(msgspec.Struct, frozen=True):
    """Statistics that are copied behind the samples: from a view to byte `at` of the readback;
    `parts` arrays that begin `stride` words after each other."""

    name: str
    view: int
    at: int
    parts: int
    stride: int
    dtype: Word


class RecordedStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One plan: its key, the runs of dispatches that it consists of, and its results. `loras`: it
    adds adapters; `tensors`: those that the host reads or writes for this plan alone."""

    kind: str
    rows: int
    samples: int
    splits: int
    dispatches: tuple[Run, ...]
    result_bytes: int
    interventions: bool = False
    loras: bool = False
    marks: tuple[tuple[int, str], ...] = ()
    kept: tuple[KeptResult, ...] = ()
    tensors: dict[str, PlanTensor] = {}


class PlanFile(msgspec.Struct, frozen=True):
    """All plans of one model for one profile."""

    format: Annotated[str, _one_of(FORMAT)]
    version: Annotated[int, _one_of(VERSION)]
    profile: str
    dtype: str
    kv_dtype: str
    needs: Needs
    model: PlanModel
    limits: PlanLimits
    lookup: PlanLookup
    step: StepLayout
    results: ResultLayout
    tensors: dict[str, PlanTensor]
    weights: tuple[PlanWeight, ...]
    buffers: tuple[PlanBuffer, ...]
    views: tuple[PlanView, ...]
    sources: tuple[str, ...]
    kernels: tuple[PlanKernel, ...]
    costs: tuple[PlanCost, ...]
    dispatches: tuple[PlanDispatch, ...]
    plans: tuple[RecordedStep, ...]


def encode_plan(plan: PlanFile) -> bytes:
    """Return the file's bytes: JSON, compressed by gzip. The same plan gives the same bytes."""
    return gzip.compress(msgspec.json.encode(plan), 9, mtime=0)


def decode_plan(data: bytes) -> PlanFile:
    """Return the plan of a file. Raises ModelError for anything else."""
    try:
        return msgspec.json.decode(gzip.decompress(data), type=PlanFile)
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise ModelError(f"not a plan of version {VERSION}: {error}") from None
