"""Export of a model, with the page, to a folder that any file server hosts.

The folder is written under another name and renamed at the end, so it is complete or not there. An
export that was interrupted goes on with the pieces of weights that it has. docs/plan-format.md has
the files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from app import assets, version
from app.config import Settings
from app.http.static_page import write_page
from app.load_options import load_options
from app.local.model_files import (
    FORMAT,
    MANIFEST,
    SLOTS,
    ChatFormat,
    Manifest,
    ManifestHead,
    Progress,
    write_model_files,
)
from app.models.find_model import Model
from gpu import LoadOptions, ModelError

INPUTS = "inputs.json"
"""File of an unfinished export: what it is made from."""


@dataclass(frozen=True, slots=True)
class ExportedSite:
    """A finished export: its folder, its manifest and the bytes of all files."""

    folder: Path
    manifest: Manifest
    n_bytes: int


def export(
    settings: Settings,
    model: Model,
    out: Path,
    progress: Progress = lambda fraction, message: None,
    *,
    loras: Mapping[str, Path] | None = None,
) -> ExportedSite:
    """Write the export of a model to `out`; an older export there is replaced. `loras`: folders of
    adapters by name.

    Raises ModelError for a model that cannot be exported, for an adapter that does not fit it, and
    for an `out` that is something else or cannot be written.
    """
    out = out.absolute()
    expect_replaceable(out)
    options = replace(load_options(settings, loras, model.dtype), slots=SLOTS)
    partial = out.parent / f".{out.name}.partial"
    try:
        _begin(partial, _inputs(model, options))
        write_page(partial, assets("static"), assets("templates"), version())
        head = ManifestHead(version(), model.name, ChatFormat.of(model.tokenizer))
        manifest = write_model_files(model.path, head, options, partial, progress)
        (partial / INPUTS).unlink()
        _put_in_place(partial, out)
    except OSError as error:
        raise ModelError(f"{out}: cannot be written ({error.strerror or error})") from error
    n_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return ExportedSite(out, manifest, n_bytes)


def expect_replaceable(out: Path) -> None:
    """Raise ModelError if an export cannot be written to `out`: it must be missing, empty, or an
    older export."""
    if not out.parent.is_dir():
        raise ModelError(f"{out.parent}: not found; make this folder first")
    if not out.exists() or (out.is_dir() and (not any(out.iterdir()) or _is_export(out))):
        return
    raise ModelError(f"{out}: exists and is no export; name another folder, or remove it")


def _is_export(folder: Path) -> bool:
    try:
        found = msgspec.json.decode((folder / MANIFEST).read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


# ---- atomic, and resumed ---------------------------------------------------------------------


def _inputs(model: Model, options: LoadOptions) -> bytes:
    """Return what decides the bytes of an export: options, version, and the files of the model and
    its adapters."""
    stats = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for place in (model.path, *options.loras.values())
        for path in _files(Path(place))
    ]
    described = {"version": version(), "options": asdict(options), "files": stats}
    return msgspec.json.encode({"sha256": hashlib.sha256(repr(described).encode()).hexdigest()})


def _files(place: Path) -> Iterator[Path]:
    """Yield the files of a folder in order, or the one file at a place."""
    yield from sorted(place.iterdir()) if place.is_dir() else (place,)


def _begin(partial: Path, inputs: bytes) -> None:
    """Make the folder of an unfinished export; what another export left there is removed."""
    known = partial / INPUTS
    if not known.is_file() or known.read_bytes() != inputs:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(exist_ok=True)
    known.write_bytes(inputs)


def _put_in_place(partial: Path, out: Path) -> None:
    """Rename the finished folder to `out`; an older export is removed after it has made way."""
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.rename(out, old)
    os.rename(partial, out)
    shutil.rmtree(old, ignore_errors=True)
