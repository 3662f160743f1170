"""GGUF models on the hub: choose among a repository's files, and read the outlines by which a model
is checked before it is downloaded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from app.models.hub import HubFile, Snapshot, is_hub_id
from app.models.hub_errors import NotOnHub
from gpu import gguf_part, write_gguf_stub

SAFE_PATH = re.compile(r"(?:[\w+-][\w.+-]*/){0,4}[\w+-][\w.+-]*\.gguf", re.ASCII | re.IGNORECASE)
"""Accepted file names: none leads out of the cache's folder."""
NOT_MODELS = ("mmproj", "imatrix")
"""Prefixes of GGUF files that are not language models: image encoders, importance matrices."""

NAME = re.compile(r"([^:]+):([\w./+-]{1,200})", re.ASCII)

GGUFModels = dict[str, tuple[HubFile, ...]]


def split_name(name: str) -> tuple[str, str | None]:
    """Split OWNER/MODEL:VARIANT into repository and variant (None if there is none)."""
    match = NAME.fullmatch(name)
    return (match[1], match[2]) if match else (name, None)


def is_hub_name(name: str) -> bool:
    """Return whether `name` has the form OWNER/MODEL or OWNER/MODEL:VARIANT of the hub."""
    return is_hub_id(split_name(name)[0])


def group_gguf_files(files: Iterable[HubFile]) -> GGUFModels:
    """Return the models among a repository's files: name of the first file without `.gguf` to the
    files in order. Split models are left out unless all their files are there."""
    parts: dict[str, dict[int, HubFile]] = {}
    n_splits: dict[str, int] = {}
    for file in files:
        path = PurePosixPath(file.name)
        if not SAFE_PATH.fullmatch(file.name) or path.name.lower().startswith(NOT_MODELS):
            continue
        part = gguf_part(path.name)
        stem = str(path.with_name(part.name)) if part else file.name[: -len(".gguf")]
        parts.setdefault(stem, {})[part.number if part else 0] = file
        n_splits[stem] = part.n_splits if part else 1
    return {
        stem: tuple(numbered[i] for i in sorted(numbered))
        for stem, numbered in sorted(parts.items())
        if len(numbered) == n_splits[stem]
    }


def choose_files(repository: str, models: GGUFModels, variant: str | None) -> tuple[HubFile, ...]:
    """Return the files of the model that `variant` selects: a file name, or a type like Q4_K_M.

    Raises NotOnHub, listing all models, unless exactly one matches.
    """
    if variant is None:
        matching = list(models.values())
    else:
        matching = (
            [files for files in models.values() if any(f.name == variant for f in files)]
            or [files for stem, files in models.items() if _has_type(stem, variant, "(?<!UD-)")]
            or [files for stem, files in models.items() if _has_type(stem, variant)]
        )
    if len(matching) == 1:
        return matching[0]
    if not models:
        raise NotOnHub(f"{repository} has no complete GGUF model; choose another repository")
    available = ", ".join(f"{stem} ({_gb(files)})" for stem, files in models.items())
    if variant is None:
        problem = f"{repository} has several GGUF models"
    else:
        problem = f"{repository} has {'no' if not matching else 'several'} GGUF models {variant!r}"
    raise NotOnHub(
        f"{problem}; choose one as {repository}:Q4_K_M or {repository}:FILE from: {available}"
    )


def _has_type(stem: str, variant: str, before: str = "") -> bool:
    """Return whether the name of a file has a type. Q4_K_M has not the type Q4_K. `before`: pattern
    of what must be before it; names with UD- are another quantisation in the same type."""
    pattern = rf"(?:^|[-._/]){before}{re.escape(variant)}(?:$|[-./])"
    return re.search(pattern, stem, re.IGNORECASE) is not None


def _gb(files: Sequence[HubFile]) -> str:
    return f"{sum(file.n_bytes for file in files) / 1e9:.2f} GB"


def write_outlines(snapshot: Snapshot, files: Sequence[HubFile], folder: Path) -> Path:
    """Write the outlines of a model's files to `folder`; return the path of the first.

    An outline is a GGUF file with its header but without the data of its tensors.
    """
    for file in files:

        def fetch(at: int, n_bytes: int, file: HubFile = file) -> bytes:
            return snapshot.read(file, at, n_bytes)

        write_gguf_stub(folder / PurePosixPath(file.name).name, file.n_bytes, fetch)
    return folder / PurePosixPath(files[0].name).name


def cached_gguf_files(folder: Path) -> Mapping[str, HubFile]:
    """Return the GGUF files in a folder of the cache, by name."""
    files = {}
    for path in sorted(folder.rglob("*.gguf")):
        name = path.relative_to(folder).as_posix()
        files[name] = HubFile(name, path.stat().st_size, None, None)
    return files
