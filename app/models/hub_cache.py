"""Cache of `huggingface_hub` on this machine: its repositories, folders and refs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import CachedRepoInfo, constants
from huggingface_hub.file_download import repo_folder_name

SCANS = 3
"""Times that the cache is read while its files change."""


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
    """Yield the model repositories in the cache; none if there is no cache."""
    if not Path(constants.HF_HUB_CACHE).is_dir():
        return
    for repo in _scanned_repositories():
        if repo.repo_type != "model":
            continue
        snapshots = tuple(
            {
                file.file_path.relative_to(revision.snapshot_path).as_posix(): file.size_on_disk
                for file in revision.files
            }
            for revision in repo.revisions
        )
        yield CachedRepository(repo.repo_id, repo.size_on_disk, snapshots)


def _scanned_repositories() -> frozenset[CachedRepoInfo]:
    """Return what the client finds in the cache. A download may move or delete a file meanwhile;
    then it is read again."""
    for _ in range(SCANS):
        with contextlib.suppress(FileNotFoundError):
            return huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE).repos
    return frozenset()


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
