"""Options of the fake engine, and what it says of itself with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpu import (
    EngineInfo,
    SamplingParams,
)
from gpu.info import (
    DeviceInfo,
    EmbeddingInfo,
    EncoderDecoderInfo,
    EngineLimits,
    KvGroupInfo,
    LoraInfo,
    MemoryInfo,
    ModelInfo,
)
from tests.app.fake_tokenizer import STORY, FakeTokenizer

BLOCK_TOKENS = 16
PREFILL_CHUNK = 32
IN_FLIGHT = 2
HANGS_AT = 5
ENDLESS = 100_000
"""Context and `max_tokens` of a run that goes on until a test stops it."""
KV_BLOCK_BYTES = 65536
KV_BYTES = {"f32": 256, "f16": 128, "q8": 72, "q8q4": 56, "rotated4": 40}
"""Bytes of a key and a value of 32 numbers."""


@dataclass(frozen=True, kw_only=True)
class FakeOptions:
    """Options of the fake engine.

    delay         seconds per step
    n_kv_heads    0: half as many as heads
    text          output of greedy decoding, repeated unless `ends`
    script        texts that runs write, one after another, and the last one from then on; instead
                  of `text`
    fail          message with which loading fails; "" if it does not
    load_seconds  duration of loading
    loads_after   file that must exist before loading ends; None: none
    reused        tokens of a longer prompt that are found in the prefix cache
    ask_seconds   duration of a question about a run
    loras         names of adapters
    experts       expert-cache hits and misses per step, 1 MB each; None: all experts on the device
    n_experts     experts of every layer but the first; two per token
    conversion    conversion of the types of a file, as shown to users
    dtype_reason  why the storage type was chosen, as shown to users
    drafts        of every four tokens two are accepted drafts and the third was guessed wrong
    marks         special tokens of the model beside the usual ones
    kv_groups     groups of layers with blocks of their own
    name          name of the model
    hangs_with    seed of runs that hang forever before token `HANGS_AT`
    embedding     embedding model beside it
    """

    delay: float = 0.01
    n_layers: int = 8
    n_heads: int = 8
    n_kv_heads: int = 0
    head_dim: int = 32
    context: int = 512
    n_slots: int = 4
    queue: int = 16
    text: str = STORY
    ends: bool = False
    script: tuple[str, ...] = ()
    fail: str = ""
    load_seconds: float = 0.0
    loads_after: Path | None = None
    reused: int = 0
    ask_seconds: float = 0.0
    loras: tuple[str, ...] = ()
    experts: tuple[int, int] | None = None
    n_experts: int = 0
    conversion: str = ""
    dtype_reason: str = ""
    drafts: bool = False
    marks: tuple[str, ...] = ()
    kv_groups: tuple[KvGroupInfo, ...] = ()
    name: str = "fake-story"
    hangs_with: int | None = None
    embedding: EmbeddingInfo | None = None
    encoder_decoder: EncoderDecoderInfo | None = None


def info_of(options: FakeOptions) -> EngineInfo:
    """Return the info of an engine with these options."""
    n_blocks = options.n_slots * options.context // BLOCK_TOKENS
    return EngineInfo(
        model=ModelInfo(
            name=options.name,
            dtype="f16",
            kv_dtype="f16",
            kv_formats={name: KV_BLOCK_BYTES * bytes_ // 128 for name, bytes_ in KV_BYTES.items()},
            n_layers=options.n_layers,
            n_heads=options.n_heads,
            n_kv_heads=options.n_kv_heads or max(1, options.n_heads // 2),
            n_experts=options.n_experts,
            conversion=options.conversion,
            dtype_reason=options.dtype_reason,
            head_dim=options.head_dim,
            hidden_size=options.head_dim * options.n_heads,
            vocab_size=FakeTokenizer(marks=options.marks).vocab_size,
            parameters=7_412_736,
            eos_ids=FakeTokenizer().eos_ids,
            loras=tuple(LoraInfo(name, 8, 40_960, 32) for name in options.loras),
        ),
        device=DeviceInfo("Fake device", "no driver", "Vulkan", "CPU", True, ("subgroup",), ()),
        limits=EngineLimits(
            context=options.context,
            slots=options.n_slots,
            queue=options.queue,
            n_blocks=n_blocks,
            block_tokens=BLOCK_TOKENS,
            block_bytes=KV_BLOCK_BYTES,
            in_flight=IN_FLIGHT,
            kv_groups=options.kv_groups,
        ),
        memory=MemoryInfo(weights=14_825_472, kv_cache=n_blocks * KV_BLOCK_BYTES, work=2_097_152),
        dispatches_per_token=8 * options.n_layers + 5,
        defaults=SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
        embedding=options.embedding,
        encoder_decoder=options.encoder_decoder,
    )
