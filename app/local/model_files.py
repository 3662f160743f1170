"""Files of a model for the engine in the browser: plans, weights, tokenizer, and a manifest that
names them. docs/plan-format.md has every field."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from app.engine_client import Tokenizer
from app.models.known import card_settings
from app.prompt.limited_tokenizer import tokenizer_json
from gpu import (
    ExportedFile,
    ExportedModel,
    GenerationDefaults,
    Inventory,
    LoadOptions,
    SamplingParams,
    expect_inside,
    export_model,
    recommended_settings,
)

FORMAT = "tokenglass-export"
VERSION = 1
MANIFEST = "manifest.json"
SLOTS = 2
"""Sequences at once in a browser, not counting those of questions."""
MODEL = "model"
"""Folder of the model's files."""
TOKENIZER = "tokenizer.json"
INVENTORY = "inventory.json"
"""List of the model's tensors, for the instrument of the weights."""
COPIED = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "generation_config.json",
)
"""Files of a model that are exported as they are, if it has them. The first is made of the model's
tokenizer if it is not there, as in a GGUF file."""

Progress = Callable[[float, str], None]


class ChatFormat(msgspec.Struct, frozen=True):
    """Parts of a tokenizer that make a prompt of a conversation; templates are Jinja sources.

    special_tokens  texts of the special tokens by their names, bos_token and eos_token among them
    eos_ids         the end token that the tokenizer names
    """

    special_tokens: dict[str, str]
    bos_token: str | None
    eos_token: str | None
    eos_ids: tuple[int, ...]
    chat_template: str | None
    tool_template: str | None

    @classmethod
    def of(cls, t: Tokenizer) -> ChatFormat:
        named = t.special_tokens
        bos, eos = named.get("bos_token"), named.get("eos_token")
        return cls(named, bos, eos, t.eos_ids, t.chat_template, t.tool_template)


class Manifest(msgspec.Struct, frozen=True):
    """Description of an export, MANIFEST in its folder.

    files      the model's other files, by their names
    inventory  list of its tensors, `gpu.checkpoint.inventory.Inventory`; None in older exports
    defaults   sampling settings that the model's makers recommend
    """

    format: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [FORMAT]})]
    version: Annotated[int, msgspec.Meta(extra_json_schema={"enum": [VERSION]})]
    tokenglass: str
    name: str
    model: ExportedModel
    files: dict[str, ExportedFile]
    chat: ChatFormat
    defaults: SamplingParams
    inventory: ExportedFile | None = None


class ManifestHead(msgspec.Struct, frozen=True):
    """Fields of a manifest that name the model and the version of Tokenglass, and its chat."""

    tokenglass: str
    name: str
    chat: ChatFormat


def write_model_files(
    path: Path,
    head: ManifestHead,
    options: LoadOptions,
    folder: Path,
    progress: Progress = lambda fraction, message: None,
) -> Manifest:
    """Write all files of the model at `path`, its folder or GGUF file, to `folder`, the manifest
    last. Raises ModelError for a model that cannot be exported, OSError for a disk that cannot be
    written."""
    files = {}
    (folder / MODEL).mkdir(exist_ok=True)
    for name in COPIED:
        copy = folder / MODEL / name
        if (path / name).is_file():
            expect_inside(path / name)
            shutil.copyfile(path / name, copy)
        elif name == TOKENIZER:
            copy.write_text(tokenizer_json(path), "utf-8")
        else:
            continue
        files[name] = ExportedFile.of(folder, copy)
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        tokenglass=head.tokenglass,
        name=head.name,
        model=export_model(path, folder, options, progress),
        files=files,
        chat=head.chat,
        defaults=recommended_settings(
            GenerationDefaults.from_folder(path).or_those_of(card_settings(head.name))
        ),
        inventory=_write_inventory(path, options, folder),
    )
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST).write_bytes(text)
    return manifest


def _write_inventory(path: Path, options: LoadOptions, folder: Path) -> ExportedFile:
    inventory = Inventory.from_folder(path, options.dtype)
    written = folder / MODEL / INVENTORY
    written.write_bytes(msgspec.json.encode(inventory))
    return ExportedFile.of(folder, written)
