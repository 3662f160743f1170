"""A mixture-of-experts checkpoint with fewer experts, written beside the one it was made of.

The experts that stay keep their order and are numbered anew; the router loses the rows of those
that go. All other tensors are copied byte by byte, in the files they were in.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpu.checkpoint.files import INDEX, WEIGHTS, Tensor
from gpu.checkpoint.reader import Checkpoint, Progress
from gpu.checkpoint.writer import Entry, write_safetensors
from gpu.errors import ModelError
from gpu.gguf.file import is_gguf
from gpu.json_object import JsonObject

CONFIG = "config.json"
COUNTS = ("num_local_experts", "num_experts")
"""What config.json calls the number of experts: the first in Mixtral's and in what transformers
saves of Qwen 3's, the second elsewhere."""
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack")
"""Other weights in a folder are of the whole model, and are not copied."""

_OF_EXPERT = re.compile(
    r"(.+\.(\d{1,9})\.(?:mlp|block_sparse_moe)\.experts\.)(\d{1,9})(\..+)", re.ASCII
)
_ROW_EACH = re.compile(
    r".+\.(\d{1,9})\.(?:mlp|block_sparse_moe)\.(gate\.weight|experts\.(?:gate_up|down)_proj)",
    re.ASCII,
)
"""Routers, and the matrices of all experts of a layer as one tensor."""

Kept = Mapping[int, Sequence[int]]
"""Of each layer with experts: those that stay, by their numbers, in order."""


def write_pruned(
    source: Path,
    out: Path,
    kept: Kept,
    notes: Mapping[str, str] | None = None,
    progress: Progress = lambda fraction, message: None,
) -> None:
    """Write the model of the folder `source` with the experts `kept` alone into the folder `out`,
    which must not be there, or be empty. `notes`: further files, text by name.

    Everything is written to a folder beside `out` that takes its name at the end: `out` is whole or
    not there. Raises ModelError for what is no folder of safetensors, for a layer whose experts are
    not named or not there, for an `out` that has something in it, and when it cannot be written.
    """
    if is_gguf(source):
        raise ModelError(f"{source}: experts are pruned in a folder of safetensors, not in GGUF")
    checkpoint = Checkpoint.open(source)
    entries = _entries(checkpoint, kept)
    texts = {CONFIG: _json(_config(JsonObject.read(source / CONFIG), kept)), **(notes or {})}
    if not (source / WEIGHTS).exists():
        texts[INDEX] = _json(_index(JsonObject.read(source / INDEX), entries))
    expect_empty(out)
    with _moved_at_the_end(out, sum(e.n_bytes for of in entries.values() for e in of)) as folder:
        _write_weights(folder, entries, progress)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
        _copy_others(source, folder)


def expect_empty(out: Path) -> None:
    """Raises ModelError where a model cannot be written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out}: exists and is not an empty folder; name another, or remove it")
    if not out.absolute().parent.is_dir():
        raise ModelError(f"{out.absolute().parent}: not found; make this folder first")


# ---- tensors ---------------------------------------------------------------------------------


def _entries(checkpoint: Checkpoint, kept: Kept) -> dict[str, list[Entry]]:
    """The tensors of each file, by its name. A file of pruned experts alone has none, and goes."""
    numbers = {layer: {old: new for new, old in enumerate(kept[layer])} for layer in kept}
    routers: set[int] = set()
    files: dict[str, list[Entry]] = {}
    for tensor in checkpoint.tensors.values():
        name, shape, data = tensor.name, tensor.shape, [tensor.data]
        if row_each := _ROW_EACH.fullmatch(name):
            layer = int(row_each[1])
            places = _places(tensor, kept.get(layer))
            rows = tensor.data.reshape(shape[0], -1)
            shape, data = (len(places), *shape[1:]), [rows[place] for place in places]
            if row_each[2] == "gate.weight":
                routers.add(layer)
        elif of_expert := _OF_EXPERT.fullmatch(name):
            before, inside, number, after = of_expert.groups()
            new = numbers.get(int(inside), {}).get(int(number))
            if new is None:
                continue
            name = f"{before}{new}{after}"
        files.setdefault(tensor.path.name, []).append(Entry(name, tensor.dtype, shape, data))
    if routers != set(kept):
        raise ModelError(
            f"{checkpoint.folder}: experts of the layers {sorted(kept)} were named, but those with "
            f"experts are {sorted(routers)}"
        )
    return files


def _places(tensor: Tensor, kept: Sequence[int] | None) -> Sequence[int]:
    """The rows that stay of a tensor that has one for each expert."""
    n = tensor.shape[0] if tensor.shape else 0
    if not kept or list(kept) != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < n:
        shown = "none" if kept is None else list(kept)
        raise ModelError(
            f"{tensor.where} has rows for {n} experts; those that stay must be some of 0 to "
            f"{n - 1}, in order, but are {shown}"
        )
    return kept


def _write_weights(folder: Path, entries: dict[str, list[Entry]], progress: Progress) -> None:
    sizes = {file: sum(entry.n_bytes for entry in of_file) for file, of_file in entries.items()}
    done, total = 0, sum(sizes.values())
    for file, of_file in entries.items():
        progress(done / total, f"writing weights, {done / 1e6:.0f} of {total / 1e6:.0f} MB")
        write_safetensors(folder / file, of_file)
        done += sizes[file]
    progress(1.0, f"wrote {total / 1e6:.0f} MB of weights")


# ---- the other files -------------------------------------------------------------------------


def _config(config: JsonObject, kept: Kept) -> dict[str, object]:
    """With the number of experts that stay, which must be the same in all layers."""
    counts = {len(experts) for experts in kept.values()}
    if len(counts) != 1:
        raise ModelError(
            f"every layer must keep as many experts, but they keep from {min(counts)} to "
            f"{max(counts)}: a config has one number for all"
        )
    names = [name for name in COUNTS if name in config] or COUNTS
    return config.values | dict.fromkeys(names, counts.pop())


def _index(index: JsonObject, entries: dict[str, list[Entry]]) -> dict[str, object]:
    weight_map = {entry.name: file for file, of_file in entries.items() for entry in of_file}
    tensors = [entry for of_file in entries.values() for entry in of_file]
    metadata = dict(index.object("metadata").values)
    metadata["total_size"] = sum(entry.n_bytes for entry in tensors)
    if "total_parameters" in metadata:
        metadata["total_parameters"] = sum(int(np.prod(entry.shape)) for entry in tensors)
    return {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}


def _json(values: dict[str, object]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def _copy_others(source: Path, folder: Path) -> None:
    """What a model folder holds beside weights: tokenizer, chat template, licence, card."""
    for path in sorted(source.iterdir()):
        there = folder / path.name
        is_weight = path.name.endswith((*WEIGHT_SUFFIXES, ".index.json"))
        if path.is_file() and not is_weight and not there.exists():
            shutil.copyfile(path, there)


@contextmanager
def _moved_at_the_end(out: Path, n_bytes: int) -> Iterator[Path]:
    """A new folder on the disk of `out`, which it becomes; gone where something went wrong.
    `n_bytes`: what will be written, at least."""
    parent = out.absolute().parent
    free = shutil.disk_usage(parent).free
    if free < n_bytes:
        raise ModelError(
            f"{out}: needs {n_bytes / 1e9:.2f} GB, but its disk has {free / 1e9:.2f} GB free"
        )
    folder = parent / f".{out.name}-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        yield folder
        if out.exists():
            out.rmdir()
        folder.rename(out)
    except OSError as error:
        raise ModelError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
