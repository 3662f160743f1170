"""Models of the hub that are GGUF files: which of a repository's files are meant, and their
outlines, by which they are judged before they are fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from app.hub import HubFile, Snapshot, is_hub_id
from app.hub_errors import NotOnHub
from gpu import gguf_part, write_gguf_outline

SAFE = re.compile(r"(?:[\w+-][\w.+-]*/){0,4}[\w+-][\w.+-]*\.gguf", re.ASCII | re.IGNORECASE)
"""Names of files that are looked at: no way out of the cache's folder."""
NOT_MODELS = ("mmproj", "imatrix")
"""What lies beside models: of images, and of how they were quantised."""

NAME = re.compile(r"([^:]+):([\w./+-]{1,200})", re.ASCII)

Choices = dict[str, tuple[HubFile, ...]]


def name_parts(name: str) -> tuple[str, str | None]:
    """OWNER/MODEL, and of OWNER/MODEL:WHAT also what."""
    found = NAME.fullmatch(name)
    return (found[1], found[2]) if found else (name, None)


def is_hub_name(name: str) -> bool:
    """Could `name` be OWNER/MODEL or OWNER/MODEL:WHAT on the hub?"""
    return is_hub_id(name_parts(name)[0])


def choices(files: Iterable[HubFile]) -> Choices:
    """The models among a repository's files, by the name of their (first) file without `.gguf`;
    the files of each in order. Of one that was split all files are there."""
    parts: dict[str, dict[int, HubFile]] = {}
    n_parts: dict[str, int] = {}
    for file in files:
        path = PurePosixPath(file.name)
        if not SAFE.fullmatch(file.name) or path.name.lower().startswith(NOT_MODELS):
            continue
        part = gguf_part(path.name)
        stem = str(path.with_name(part.name)) if part else file.name[: -len(".gguf")]
        parts.setdefault(stem, {})[part.number if part else 0] = file
        n_parts[stem] = part.n_parts if part else 1
    return {
        stem: tuple(found[i] for i in sorted(found))
        for stem, found in sorted(parts.items())
        if len(found) == n_parts[stem]
    }


def chosen(repository: str, found: Choices, wanted: str | None) -> tuple[HubFile, ...]:
    """The files of the model that `wanted` names: a file, or a type such as Q4_K_M that one of the
    names has. Raises NotOnHub with all there are, when it is not exactly one."""
    if wanted is None:
        matching = list(found.values())
    else:
        matching = [
            files for stem, files in found.items() if any(f.name == wanted for f in files)
        ] or [files for stem, files in found.items() if _has_type(stem, wanted)]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(f"{stem} ({_gb(files)})" for stem, files in found.items()) or "none"
    if wanted is None:
        problem = f"{repository} has several GGUF models"
    else:
        problem = f"{repository} has {'no' if not matching else 'several'} GGUF models {wanted!r}"
    raise NotOnHub(f"{problem}: {there}; name one as {repository}:Q4_K_M, or its file")


def _has_type(stem: str, wanted: str) -> bool:
    pattern = rf"(?:^|[-._/]){re.escape(wanted)}(?:$|[-._/])"
    return re.search(pattern, stem, re.IGNORECASE) is not None


def _gb(files: Sequence[HubFile]) -> str:
    return f"{sum(file.n_bytes for file in files) / 1e9:.2f} GB"


def write_outlines(snapshot: Snapshot, files: Sequence[HubFile], folder: Path) -> Path:
    """Outlines of the files of a model in `folder`; the path of the first."""
    for file in files:

        def fetch(at: int, n_bytes: int, file: HubFile = file) -> bytes:
            return snapshot.read(file, at, n_bytes)

        write_gguf_outline(folder / PurePosixPath(file.name).name, file.n_bytes, fetch)
    return folder / PurePosixPath(files[0].name).name


def cached(folder: Path) -> Mapping[str, HubFile]:
    """The GGUF files in a folder of the cache."""
    found = {}
    for path in sorted(folder.rglob("*.gguf")):
        name = path.relative_to(folder).as_posix()
        found[name] = HubFile(name, path.stat().st_size, None, None)
    return found
