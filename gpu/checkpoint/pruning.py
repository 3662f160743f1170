"""Pruning of experts: writes a mixture-of-experts checkpoint with fewer experts into a new folder.

The remaining experts keep their order and are renumbered; the router loses the rows of the pruned
ones. All other tensors are copied byte by byte, in the same files.
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

from gpu.checkpoint.reader import Checkpoint, Progress
from gpu.checkpoint.safetensors_files import INDEX, WEIGHTS, Tensor
from gpu.checkpoint.writer import TensorToWrite, write_safetensors
from gpu.errors import ModelError
from gpu.files.json_object import JsonObject
from gpu.files.regular_file import expect_inside
from gpu.gguf.file import is_gguf

CONFIG = "config.json"
N_EXPERTS_KEYS = ("num_local_experts", "num_experts")
"""Names of the number of experts in config.json: the first in Mixtral's and in Qwen 3's as saved by
transformers, the second elsewhere."""
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack")
"""Other weight files, which hold the whole model and are not copied."""
MORE_TEMPLATES = "additional_chat_templates/*.jinja"
"""Files that are copied from a folder of their own."""

_OF_EXPERT = re.compile(
    r"(.+\.(\d{1,9})\.(?:mlp|block_sparse_moe)\.experts\.)(\d{1,9})(\..+)", re.ASCII
)
_ROW_EACH = re.compile(
    r".+\.(\d{1,9})\.(?:mlp|block_sparse_moe)\.(gate\.weight|experts\.(?:gate_up|down)_proj)",
    re.ASCII,
)
"""Routers, and tensors that stack the matrices of all experts of a layer."""

KeptExperts = Mapping[int, Sequence[int]]
"""Remaining experts by layer: their numbers in ascending order."""


def write_pruned(
    source: Path,
    out: Path,
    kept: KeptExperts,
    notes: Mapping[str, str] | None = None,
    progress: Progress = lambda fraction, message: None,
) -> None:
    """Write the model in the folder `source` to `out`, with only the experts `kept`.

    `out` must be missing or empty. `notes`: further files, text by name. Everything is written to a
    temporary folder that is renamed to `out` at the end, so `out` is complete or missing. Raises
    ModelError for a source that is not a folder of safetensors, for missing or unknown layers or
    experts, for an `out` that is not empty, and for write errors.
    """
    if is_gguf(source):
        raise ModelError(
            f"{source}: expected a folder with safetensors, but got a GGUF file; prune the "
            "original model instead"
        )
    checkpoint = Checkpoint.open(source)
    entries = _entries(checkpoint, kept)
    texts = {CONFIG: _json(_config(JsonObject.read(source / CONFIG), kept)), **(notes or {})}
    if not (source / WEIGHTS).exists():
        texts[INDEX] = _json(_index(JsonObject.read(source / INDEX), entries))
    expect_empty(out)
    with _renamed_at_the_end(out, sum(e.n_bytes for of in entries.values() for e in of)) as folder:
        _write_weights(folder, entries, progress)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
        _copy_others(source, folder)


def expect_empty(out: Path) -> None:
    """Raise ModelError if a model cannot be written to `out`."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out}: exists and is not an empty folder; name another, or remove it")
    if not out.absolute().parent.is_dir():
        raise ModelError(f"{out.absolute().parent}: not found; make this folder first")


# ---- tensors ---------------------------------------------------------------------------------


def _entries(checkpoint: Checkpoint, kept: KeptExperts) -> dict[str, list[TensorToWrite]]:
    """Return the tensors of each file by file name. A file with only pruned experts is left out."""
    numbers = {layer: {old: new for new, old in enumerate(kept[layer])} for layer in kept}
    routers: set[int] = set()
    files: dict[str, list[TensorToWrite]] = {}
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
        files.setdefault(tensor.path.name, []).append(
            TensorToWrite(name, tensor.dtype, shape, data)
        )
    if routers != set(kept):
        raise ModelError(
            f"{checkpoint.folder}: expected experts to keep for the layers {sorted(routers)}, but "
            f"got them for {sorted(kept)}"
        )
    return files


def _places(tensor: Tensor, kept: Sequence[int] | None) -> Sequence[int]:
    """Return the remaining rows of a tensor that has one row per expert."""
    n = tensor.shape[0] if tensor.shape else 0
    if not kept or list(kept) != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < n:
        shown = "none" if kept is None else list(kept)
        raise ModelError(
            f"{tensor.where} has rows for {n} experts; expected those to keep in ascending order, "
            f"from 0 to {n - 1}, but got {shown}"
        )
    return kept


def _write_weights(
    folder: Path, entries: dict[str, list[TensorToWrite]], progress: Progress
) -> None:
    sizes = {file: sum(entry.n_bytes for entry in of_file) for file, of_file in entries.items()}
    done, total = 0, sum(sizes.values())
    for file, of_file in entries.items():
        progress(done / total, f"writing weights, {done / 1e6:.0f} of {total / 1e6:.0f} MB")
        write_safetensors(folder / file, of_file)
        done += sizes[file]
    progress(1.0, f"wrote {total / 1e6:.0f} MB of weights")


# ---- the other files -------------------------------------------------------------------------


def _config(config: JsonObject, kept: KeptExperts) -> dict[str, object]:
    """Return the config with the new number of experts, which must be the same in all layers."""
    counts = {len(experts) for experts in kept.values()}
    if len(counts) != 1:
        raise ModelError(
            f"expected the same number of experts in every layer, but got {min(counts)} to "
            f"{max(counts)}: the config has one number for all layers"
        )
    names = [name for name in N_EXPERTS_KEYS if name in config] or N_EXPERTS_KEYS
    return config.values | dict.fromkeys(names, counts.pop())


def _index(index: JsonObject, entries: dict[str, list[TensorToWrite]]) -> dict[str, object]:
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
    """Copy the files of a model folder that are not weights: tokenizer, chat templates, licence,
    card."""
    for path in sorted((*source.iterdir(), *source.glob(MORE_TEMPLATES))):
        there = folder / path.relative_to(source)
        is_weight = path.name.endswith((*WEIGHT_SUFFIXES, ".index.json"))
        if path.is_file() and not is_weight and not there.exists():
            expect_inside(path)
            there.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, there)


@contextmanager
def _renamed_at_the_end(out: Path, n_bytes: int) -> Iterator[Path]:
    """Yield a temporary folder on the disk of `out` that is renamed to `out` at the end, or removed
    after an error. `n_bytes`: least space needed."""
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
