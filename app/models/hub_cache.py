"""The cache of `huggingface_hub` on this machine: what lies in it, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name


@dataclass(frozen=True, slots=True)
class CachedRepository:
    """Of models. `snapshots`: of each commit, the files that are there and their bytes; `n_bytes`:
    of all of it on the disk."""

    name: str
    n_bytes: int
    snapshots: tuple[Mapping[str, int], ...]


def cached_repositories() -> Iterator[CachedRepository]:
    """What is in the cache, if there is one."""
    if not Path(constants.HF_HUB_CACHE).is_dir():
        return
    for repo in huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE).repos:
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


def snapshot_folder(repository: str, commit: str) -> Path:
    """Where a commit's files are, whether there are any or not."""
    return _storage(repository) / "snapshots" / commit


def remember(repository: str, revision: str, commit: str) -> None:
    """That a branch is at a commit, as the client notes it: for when the hub cannot be asked."""
    ref = _storage(repository) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


def remembered(repository: str, revision: str) -> str:
    """The commit of a branch; a commit is one itself."""
    ref = _storage(repository) / "refs" / revision
    return ref.read_text().strip() if ref.is_file() else revision


def _storage(repository: str) -> Path:
    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / folder
