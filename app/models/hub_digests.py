"""Check of a model's files in the hub's cache, which notices what a disk or a crash did to them.

The cache names each file's content by its SHA-256, or by its git blob id if the repository keeps it
without LFS. So files can be checked at every start, without a network and without a record of our
own. Where the system has no links (Windows without its developer mode) the names are lost, and
nothing is checked.
"""

from __future__ import annotations

import glob
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from app.models.hub import INDEX, SENTENCE_PIECE, SMALL_FILES, WEIGHTS, digest_like, shards
from gpu import ModelError, gguf_part

DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
SMALL = (*SMALL_FILES, SENTENCE_PIECE, INDEX)
TEMPLATES = "additional_chat_templates/*.jinja"

Progress = Callable[[float, str], None]


def expect_small_files_whole(folder: Path) -> None:
    """Check the files of a snapshot that are read before its weights. See `expect_whole`."""
    expect_whole([*(folder / name for name in SMALL), *sorted(folder.glob(TEMPLATES))])


@contextmanager
def checked_beside(
    models: Iterable[Path], progress: Progress = lambda share, message: None
) -> Iterator[None]:
    """Check the weights of models of the hub while the block reads them; what else is in `models`
    is left out. `progress` hears of a check that takes longer than the block.

    Raises ModelError for a damaged file, also in place of a ModelError of the block.
    """
    files = [file for model in models for file in _weight_files(model)]
    ended = threading.Event()
    with ThreadPoolExecutor(1, "digests") as thread:
        check = thread.submit(expect_whole, files, ended.is_set)
        try:
            yield
        except ModelError:
            check.result()
            raise
        except BaseException:
            ended.set()
            raise
        if not check.done():
            progress(1.0, "checking the weights against the hub's checksums")
        check.result()


def _weight_files(model: Path) -> list[Path]:
    """Return the files with the weights of a model in the hub's cache; none if it is elsewhere."""
    if not any(parent.name == "snapshots" for parent in model.absolute().parents):
        return []
    if model.is_file():
        part = gguf_part(model.name)
        pattern = model.name if part is None else f"{glob.escape(part.name)}-*-of-*.gguf"
        return sorted(model.parent.glob(pattern))
    if (model / INDEX).exists() and not (model / WEIGHTS).exists():
        return [model / name for name in shards(model / INDEX)]
    return [model / WEIGHTS]


def expect_whole(files: Iterable[Path], cancelled: Callable[[], bool] = lambda: False) -> None:
    """Raise ModelError, with the command that helps, for the first file whose content is not that
    which the hub's cache names it by. Missing files, and those that are no links of the cache, are
    left out. Raises Cancelled."""
    for file in files:
        expected = _expected_digest(file)
        if expected is None or (found := digest_like(expected, file, cancelled)) == expected:
            continue
        snapshot = next(parent for parent in file.parents if parent.parent.name == "snapshots")
        name = file.relative_to(snapshot).as_posix()
        repository = "/".join(snapshot.parents[1].name.split("--")[1:])
        raise ModelError(
            f"{repository}: {name} is damaged on the disk: expected the checksum {expected[:12]}, "
            f"but it has {found[:12]}; download it again with: hf download {repository} {name} "
            f"--revision {snapshot.name} --force-download"
        )


def _expected_digest(file: Path) -> str | None:
    """Return the digest in the name of the blob that a file of a snapshot links to; None if there
    is none."""
    if not (file.is_symlink() and file.is_file()):
        return None
    blob = file.parent / os.readlink(file)
    return blob.name if blob.parent.name == "blobs" and DIGEST.fullmatch(blob.name) else None
