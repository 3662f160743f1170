"""Settings for loading a model: one struct through engine and runner. `app.load_options` makes it
from the settings of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SPEC_TYPES = ("none", "ngram")

MAX_PREFILL_SLOWDOWN = 1.8
"""The promise is 2; the rest is a reserve, because the times of steps vary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """Options to load and serve a model; `gpu.engine.backends.check_options` validates them.

    dtype               how weights are stored on the device, of `gpu.checkpoint.packing.FORMATS`;
                        for `Engine.load`, whose default it is, also "auto": nearest to the files
    dtype_reason        why that was chosen (`gpu.checkpoint.auto_dtype`); "": it was asked for
    kv_dtype            how keys and values are stored, of `gpu.kv.formats.KV_FORMATS`; None: f32
                        with weights in f32, else f16
    backend             "wgpu" or "torch"
    adapter             GPU by number or part of its name; None: the best one
    pipeline_parallel_size
                        stages in which the layers run, each on a device of its own
    stage_adapters      GPUs of the stages, which take them in turn; (): all on `adapter`
    context             tokens of one sequence; None: the model's own, or what the KV cache holds
    kv_memory_bytes     size of the KV cache of all sequences; None: the engine's choice
    kv_offload_bytes    host memory for KV blocks that are evicted from the prefix cache and copied
                        back when a prompt begins with them; 0: evicted blocks are lost
    hybrid_kv_cache     free KV blocks by groups of layers with the same sliding window
                        (`gpu.kv.groups`), if the model has several. Only for runners whose tables
                        the engine's scheduler sets; PyTorch has one group
    slots               sequences that run at once
    queue               requests that may wait for a slot
    expert_slots        experts of each layer that are on the GPU at once; the others wait in host
                        memory and replace the least recently used when a token is routed to them;
                        None: all experts are on the GPU
    activations         input of matmuls with q8 and q4 weights: "f32", or "q8" (blocks of 32
                        rounded with a scale each); "auto": with `autotune` what was measured to be
                        faster, else "f32"
    loras               folders of LoRA adapters, as PEFT saves them, by name
    weight_cache_bytes  limit of the files in the user's cache folder that hold weights packed as q8
                        and q4 for the next start; 0: no cache
    prefix_cache        reuse the KV blocks of a prompt's prefix that was computed before
    cache_reuse         `Request.cache_reuse` of requests without one
    max_prefill_slowdown
                        longest step with a chunk of a prompt, relative to one that only decodes,
                        unless many prompts are in work (`gpu.engine.chunk_size`)
    spec_type           speculative decoding: "ngram" verifies tokens that followed the same ones
                        earlier in the text, several in a step, where that is faster; "none"
    draft               folder or GGUF file of a draft model, whose tokens are verified instead of
                        those of `spec_type`; it has the tokenizer of the model; None: there is none
    draft_dtype         how the draft model's weights are stored; None: as those of the model
    embedding_model     folder of an encoder beside the model, for vectors of texts; None: there is
                        none
    encoder_decoder_model
                        folder of an encoder-decoder beside the model, for instruments; None: there
                        is none
    warm_up             compile the kernels of the first requests while the engine is idle
    autotune            use the kernels that were measured to be fastest on this adapter; a software
                        device is measured now, in a few seconds, if it never was
    """

    dtype: str = "f16"
    dtype_reason: str = ""
    kv_dtype: str | None = None
    backend: str = "wgpu"
    adapter: str | None = None
    pipeline_parallel_size: int = 1
    stage_adapters: tuple[str | None, ...] = ()
    context: int | None = None
    kv_memory_bytes: int | None = None
    kv_offload_bytes: int = 0
    hybrid_kv_cache: bool = False
    slots: int = 4
    queue: int = 16
    expert_slots: int | None = None
    activations: str = "auto"
    loras: Mapping[str, str | Path] = field(default_factory=dict)
    weight_cache_bytes: int = 0
    prefix_cache: bool = True
    cache_reuse: int = 0
    max_prefill_slowdown: float = MAX_PREFILL_SLOWDOWN
    spec_type: str = "none"
    draft: Path | None = None
    draft_dtype: str | None = None
    embedding_model: Path | None = None
    encoder_decoder_model: Path | None = None
    warm_up: bool = False
    autotune: bool = False

    def adapter_of_stage(self, i: int) -> str | None:
        """Return the GPU of stage i."""
        return (
            self.stage_adapters[i % len(self.stage_adapters)]
            if self.stage_adapters
            else self.adapter
        )


DEFAULT_OPTIONS = LoadOptions()
AUTO_OPTIONS = LoadOptions(dtype="auto")
