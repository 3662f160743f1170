"""Cache of `huggingface_hub` on this machine: its repositories, folders and refs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name


@dataclass(frozen=True, slots=True)
class CachedRepository:
    """Cached repository of a model.

    n_bytes    size on disk
    snapshots  per commit: file name to size in bytes
    """

    name: str
    n_bytes: int
    snapshots: tuple[Mapping[str, int], ...]


def cached_repositories() -> Iterator[CachedRepository]:
    """Yield the model repositories in the cache, by name; none if there is no cache. Files that a
    download moves or deletes meanwhile are left out; huggingface_hub's own scan fails on them."""
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        sizes: dict[tuple[int, int], int] = {}  # snapshots may share files
        snapshots = []
        for snapshot in sorted(folder.glob("snapshots/*")):
            files = dict(_files(snapshot))
            sizes |= {(stat.st_dev, stat.st_ino): stat.st_size for stat in files.values()}
            snapshots.append({name: stat.st_size for name, stat in files.items()})
        name = "/".join(folder.name.split("--")[1:])
        yield CachedRepository(name, sum(sizes.values()), tuple(snapshots))


def _files(snapshot: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path in the snapshot and the stat result of each file."""
    for parent, _, names in os.walk(snapshot):
        for path in (Path(parent, name) for name in sorted(names)):
            with contextlib.suppress(OSError):
                yield path.relative_to(snapshot).as_posix(), path.stat()


def snapshot_folder(repository: str, commit: str) -> Path:
    """Return the folder of a commit's files; it need not exist."""
    return _storage(repository) / "snapshots" / commit


def write_ref(repository: str, revision: str, commit: str) -> None:
    """Record the commit of a branch in the client's format, for when the hub is unreachable."""
    ref = _storage(repository) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


def read_ref(repository: str, revision: str) -> str:
    """Return the recorded commit of a branch; `revision` itself if there is no record."""
    ref = _storage(repository) / "refs" / revision
    return ref.read_text().strip() if ref.is_file() else revision


def _storage(repository: str) -> Path:
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / folder
