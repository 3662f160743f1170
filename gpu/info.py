"""Information that the engine gives about itself: model, device, limits and memory.

These structs are the only schema of it. The engine fills them in; the pipe, the page's `hello` and
the HTTP API send them on under the names that `rename` gives their fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from gpu.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes on the device."""

    weights: int
    kv_cache: int
    work: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The device that a runner uses. `lacks`: wanted features that it does not have. `clock_ms`: a
    browser rounds GPU times to multiples of it; 0: they are not rounded."""

    name: str
    driver: str
    backend: str
    kind: str
    software: bool
    features: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    clock_ms: float = field(default=0.0, kw_only=True)

    def is_chosen(self, wanted: str, index: int) -> bool:
        """Return whether `--adapter wanted` chooses this device, which has that index: by the index
        or by a part of its name or driver. A number of three digits or more may be a word of the
        name, as in RTX 4070; a smaller one is no part of any."""
        if not wanted.isdecimal():
            return wanted.lower() in f"{self.name} {self.driver}".lower()
        is_named = len(wanted) > 2 and wanted in re.findall(r"\w+", self.name)
        return int(wanted) == index or is_named


@dataclass(frozen=True, slots=True)
class AdapterInfo(DeviceInfo):
    """A WebGPU adapter: its limits by WebGPU's names, its vendor ("": unknown) and the lanes of its
    smallest and largest subgroups (0: unknown)."""

    limits: dict[str, int] = field(default_factory=dict)
    vendor: str = ""
    subgroup_sizes: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class LoraInfo:
    """A loaded LoRA adapter. `rank`: the largest of its `modules`; `parameters`: weights of all of
    them."""

    name: str
    rank: int
    parameters: int
    modules: int


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Limits of a runner.

    slots                sequences at once
    context              tokens of one sequence
    max_rows             rows of one step
    max_samples          samples of one step
    n_blocks             KV blocks of all sequences together
    block_tokens         tokens of a block
    block_bytes          bytes of a block
    max_captured_rows    rows of a step whose statistics are captured
    windows              of each group of layers with a block table of its own (`gpu.kv.groups`):
                         keys that a row reads at most in any of them; None: all
    n_host_blocks        KV blocks in host memory, for those that are evicted from the device
    n_stages             devices that work at the same time on steps of different sequences
    """

    slots: int
    context: int
    max_rows: int
    max_samples: int
    n_blocks: int
    block_tokens: int
    block_bytes: int
    max_captured_rows: int
    windows: tuple[int | None, ...] = (None,)
    n_host_blocks: int = 0
    n_stages: int = 1

    @property
    def inspection_slot(self) -> int:
        """The slot after those of the runs, for recomputing tokens while all others are taken."""
        return self.slots


class StageInfo(msgspec.Struct, frozen=True):
    """A stage of a model that runs on several devices: its layers, its device and what it has
    there."""

    first_layer: int
    n_layers: int
    device: str
    memory: MemoryInfo


class KvGroupInfo(msgspec.Struct, frozen=True):
    """Layers that share a block table. `window`: keys that a row reads at most in any of them; the
    blocks of a text before it are free for others. None: all are kept."""

    n_layers: int
    window: int | None


class EngineLimits(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"slots": "active", "n_blocks": "kv_blocks", "block_bytes": "kv_block_bytes"},
):
    """Limits that clients see. `queue`: requests that may wait; `in_flight`: steps submitted ahead
    of the one that is read; `kv_groups`: groups of layers, each with blocks of its own for a text;
    (): all layers share theirs and none has a window; the rest as in `RunnerLimits`."""

    context: int
    slots: int
    queue: int
    n_blocks: int
    block_tokens: int
    block_bytes: int
    in_flight: int
    kv_groups: tuple[KvGroupInfo, ...] = ()


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The loaded model.

    kv_dtype    how keys and values are stored, one of `kv_formats`
    kv_formats  bytes of a KV block of this model in every format
    parameters  number of weights, tied ones once
    eos_ids     tokens that end a text
    loras       adapters that a run can switch on
    n_experts   experts of each layer that has some; 0: none has
    conversion  how the types of a file with quantised weights are stored, such as "Q5_K, Q6_K
                converted to q8"; "" without quantised weights
    dtype_reason  why `dtype` was chosen; "": it was asked for
    """

    name: str
    dtype: str
    kv_dtype: str
    kv_formats: dict[str, int]
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    parameters: int
    eos_ids: tuple[int, ...]
    loras: tuple[LoraInfo, ...] = ()
    n_experts: int = 0
    conversion: str = ""
    dtype_reason: str = ""


class DraftInfo(msgspec.Struct, frozen=True):
    """The draft model of the loaded one; `n_bytes`: all that it takes on the device."""

    n_layers: int
    hidden_size: int
    n_bytes: int


class EmbeddingInfo(msgspec.Struct, frozen=True):
    """The embedding model loaded in addition to the model that writes.

    max_tokens  tokens of a text, special ones included; what a text has more is left out
    pooling     "mean" of the last states of all tokens, or that of the first one, "cls"
    normalize   its vectors have length 1
    n_bytes     all that it takes on the device
    similarity  how alike two texts are: the "cosine" of their vectors, or the inner product, "dot"
    """

    name: str
    n_layers: int
    hidden_size: int
    vocab_size: int
    max_tokens: int
    pooling: str
    normalize: bool
    n_bytes: int
    similarity: str = "cosine"


class EncoderDecoderInfo(msgspec.Struct, frozen=True):
    """The encoder-decoder beside the loaded model.

    n_layers, n_decoder_layers  of its encoder and of its decoder
    max_tokens      tokens of a text that it reads, special ones included
    max_written     tokens that it writes for a text
    start_id        token that the decoder reads first
    kv_token_bytes  of its decoder's keys and values: of a token that it wrote, and, once more for
                    cross-attention, of one that the encoder read
    n_bytes         all that it takes on the device
    """

    name: str
    n_layers: int
    n_decoder_layers: int
    n_heads: int
    hidden_size: int
    vocab_size: int
    max_tokens: int
    max_written: int
    start_id: int
    kv_token_bytes: int
    n_bytes: int


class EngineStats(msgspec.Struct, frozen=True):
    """Counts of runs, KV blocks and tokens: those now, and totals since the engine was loaded.

    n_running, n_waiting   runs that have a slot, and those that wait for one, without paused ones
    used_blocks, n_blocks  KV blocks that runs have, of all
    prompt_tokens          tokens of the prompts that started, with what was written of them on
                           another engine; `reused_tokens` of them were found in the prefix cache
    n_preemptions          times that a run gave its blocks to another
    loaded_tokens          those of `reused_tokens` that came from host memory
    used_host_blocks, n_host_blocks  KV blocks in host memory, of all places there
    stored_bytes, loaded_bytes  bytes of KV blocks copied to host memory, and back
    n_paused               runs that write nothing until somebody asks for it
    """

    n_running: int = 0
    n_waiting: int = 0
    used_blocks: int = 0
    n_blocks: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    n_preemptions: int = 0
    loaded_tokens: int = 0
    used_host_blocks: int = 0
    n_host_blocks: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    n_paused: int = 0


class EngineInfo(msgspec.Struct, frozen=True):
    """Description of a running engine. `defaults`: the sampling settings that the model's makers
    recommend, or ours if not `recommended`. `dispatches_per_token`: those of a decode step of one
    sequence. `activations`: input of matmuls with q8 and q4 weights, "f32" or "q8". `draft`: None
    without a draft model. `stages`: those of a model that runs on several devices; () on one.
    `embedding`, `encoder_decoder`: None without an embedding model, or an encoder-decoder."""

    model: ModelInfo
    device: DeviceInfo
    limits: EngineLimits
    memory: MemoryInfo
    defaults: SamplingParams
    dispatches_per_token: int
    activations: str = "f32"
    draft: DraftInfo | None = None
    stages: tuple[StageInfo, ...] = ()
    recommended: bool = True
    embedding: EmbeddingInfo | None = None
    encoder_decoder: EncoderDecoderInfo | None = None
