"""Every setting of the server: one row each, with its default and its help.

A setting is taken from its flag, else from its environment variable, else from its default.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

Dtype = Literal["f32", "f16", "q8", "q4"]
KvDtype = Literal["f32", "f16", "q8", "q8q4", "rotated4"]
Backend = Literal["wgpu", "torch"]
Products = Literal["auto", "float", "bytes"]
LogLevel = Literal["debug", "info", "warning", "error"]

ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[a-zA-Z0-9_.-]+)(:[0-9]{1,5})?")
MIB = 1024 * 1024
GIB = 1024 * MIB


class SettingsError(ValueError):
    """Settings that do not go together; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one server: name, type, help, range where there is one, and default."""

    model: Annotated[
        str | None,
        "Folder with config.json, *.safetensors and tokenizer.json (or SentencePiece's "
        "tokenizer.model), a GGUF file, or OWNER/MODEL of the Hugging Face hub, of GGUF files "
        "as OWNER/MODEL:Q4_K_M or OWNER/MODEL:FILE; the bundled model if left out.",
    ] = None
    revision: Annotated[
        str | None, "Branch, tag or commit of a model of the hub; main if left out."
    ] = None
    dtype: Annotated[
        Dtype, "How weights are stored on the device, the number is bits; sums are always f32."
    ] = "f16"
    kv_dtype: Annotated[
        KvDtype | None,
        "How keys and values are stored: floats, 8 bits, 8 and 4 bits, or turned and 4 bits; f16 "
        "if left out (f32 with --dtype f32).",
    ] = None
    backend: Annotated[Backend, "Run the model with WGSL on a GPU, or PyTorch on the CPU."] = "wgpu"
    adapter: Annotated[
        str | None, "Which GPU: its number or part of its name, as `tokenglass devices` lists them."
    ] = None
    lora: Annotated[
        tuple[str, ...],
        "A LoRA adapter as PEFT saves it, NAME=FOLDER or NAME=OWNER/ADAPTER of the hub, that each "
        "request can switch on, turn up and blend; may be repeated.",
    ] = ()
    expert_slots: Annotated[
        int | None,
        "For mixtures of experts: of each layer's experts, so many lie on the GPU at a time, the "
        "others wait in the host's memory; all on the GPU if left out.",
        (1, 1024),
    ] = None
    products: Annotated[
        Products,
        "What products with q8 and q4 weights are given: float32, or bytes, rounded in blocks of "
        "32, which costs some quality; auto: bytes where they were measured to be faster.",
    ] = "auto"
    context: Annotated[
        int | None,
        "Tokens one text may have, with its prompt; as the model was made if left out.",
        (2, 2**26),
    ] = None
    kv_memory: Annotated[
        int | None,
        "MiB for the KV cache of all texts; the engine chooses if left out.",
        (1, 2**24),
    ] = None
    weight_cache: Annotated[
        int,
        "GiB on the disk, in the folder TOKENGLASS_CACHE, for weights as q8 and q4 store them, so "
        "that the next start need not quantise them; 0 keeps none.",
        (0, 2**16),
    ] = 16
    slots: Annotated[int, "Texts written at the same time.", (1, 256)] = 4
    prefix_cache: Annotated[
        bool,
        "Keep what was computed, and begin a prompt that starts like an earlier text from where "
        "they part.",
    ] = True
    switching: Annotated[bool, "Let the page change the model, for all who use this server."] = True
    queue: Annotated[int, "Requests that may wait for a slot; more are refused.", (0, 4096)] = 16
    engine_timeout: Annotated[
        int,
        "Seconds that the GPU may take for one step; an engine that takes longer hangs, and is "
        "started again.",
        (10, 86400),
    ] = 180
    host: Annotated[
        str, "Address to listen on. One that others can reach needs --token as well."
    ] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0 takes a free one.", (0, 65535)] = 8000
    token: Annotated[
        str | None, "Secret that every request must carry; safer in the environment than as a flag."
    ] = None
    allow_host: Annotated[
        tuple[str, ...], "Another name under which this server may be addressed; may be repeated."
    ] = ()
    allow_origin: Annotated[
        tuple[str, ...],
        "Address at which a proxy in front of this server serves its page, as "
        "https://chat.example.org; may be repeated.",
    ] = ()
    compare_tokenizer: Annotated[
        Path | None,
        "A tokenizer.json, a tokenizer.model or a model's folder: the page shows how else a text "
        "could be cut into tokens. The bundled model's if left out.",
    ] = None
    log_level: Annotated[LogLevel, "How much to log. Prompts and texts are never logged."] = "info"

    def checked(self) -> Settings:
        """Return self, or raise `SettingsError`."""
        if not is_loopback(self.host) and not self.token:
            raise SettingsError(
                f"--host {self.host} lets other machines in, and without a token they could all "
                "use this server; give one with --token or TOKENGLASS_TOKEN, or leave --host out"
            )
        if self.token is not None and (not self.token or not self.token.isprintable()):
            raise SettingsError("--token must have at least one character, all printable")
        for origin in self.allow_origin:
            if not ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"--allow-origin takes an address without a path, such as "
                    f"https://chat.example.org or http://box.lan:8080, but got {origin!r}"
                )
        return self

    @property
    def kv_bytes(self) -> int | None:
        return None if self.kv_memory is None else self.kv_memory * MIB

    @property
    def keep_bytes(self) -> int:
        return self.weight_cache * GIB


@dataclass(frozen=True)
class Row:
    """One setting as `Settings` declares it. `range`: least and greatest value."""

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
        """Switches off what can only be on or off."""
        return f"--no-{self.name.replace('_', '-')}" if self.type is bool else None

    @property
    def env(self) -> str:
        return f"TOKENGLASS_{self.name.upper()}"


def rows() -> list[Row]:
    """All settings, in the order of `--help`."""
    hints = get_type_hints(Settings, include_extras=True)
    defaults = {field.name: field.default for field in fields(Settings)}
    found = []
    for name, default in defaults.items():
        type, help, *range = get_args(hints[name])
        found.append(Row(name, type, help, range[0] if range else None, default))
    return found


def is_loopback(host: str) -> bool:
    """Is `host` (a name or an address, no port) this machine talking to itself?"""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
