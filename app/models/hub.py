"""Models on the Hugging Face hub: list a repository and download the files that a model needs.

`huggingface_hub` does the work, with its cache folder (HF_HOME, HF_HUB_CACHE), its tokens
(HF_TOKEN, `hf auth login`), its endpoint (HF_ENDPOINT), its offline mode (HF_HUB_OFFLINE) and its
resuming of interrupted downloads. This module adds the choice of files (never a pickle), checks of
size and hash, progress, cancelling, and errors that say what to do.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, but not by its types
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from app.models.hub_cache import read_ref, snapshot_folder, write_ref
from app.models.hub_errors import TRANSPORT_ERROR, HubError, NotOnHub, hub_errors
from app.models.transfer import Cancelled, Transfer, progress_bar

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""Files that are read besides the weights; the first is required."""
MORE_TEMPLATES = re.compile(r"additional_chat_templates/[\w.-]+\.jinja", re.ASCII)
MAX_TEMPLATES = 64
"""Most files of MORE_TEMPLATES that are fetched."""
TOKENIZER, SENTENCE_PIECE = "tokenizer.json", "tokenizer.model"
"""The second is used if the first is missing."""
MAX_SMALL_BYTES = 256 << 20
"""Limit on the size of such a file; far above the largest real tokenizer.json."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
GGUF = ".gguf"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
LOOK_UP_SECONDS = 10.0
HASH_BYTES = 1 << 20
GIT_ID_LENGTH = 40
SPARE_BYTES = 64 << 20
"""Disk space that a download must leave free."""

if "HF_HUB_DISABLE_XET" not in os.environ:
    # Downloads through hf_xet run in threads that cannot be cancelled. HF_HUB_DISABLE_XET=0 turns
    # them on again.
    constants.HF_HUB_DISABLE_XET = True

constants.DOWNLOAD_CHUNK_SIZE = 1 << 20
"""An interrupted download loses one chunk, and cancelling takes effect after one: on a slow
connection the client's default of 10 MiB is too much for both."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """File of a repository, with its SHA-256, or its git blob id if the hub has only that."""

    name: str
    n_bytes: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository. `files` is None if the hub could not be reached: then only the
    files in the cache can be used."""

    repository: str
    commit: str
    folder: Path
    files: Mapping[str, HubFile] | None
    branch: str | None = None
    """Branch to record in the cache for this commit, so that it is found when offline."""

    def missing(self, names: tuple[str, ...]) -> tuple[HubFile, ...]:
        """Return the files among `names` that are in the repository but not in the cache."""
        files = self.files or {}
        return tuple(
            files[name] for name in names if name in files and not (self.folder / name).is_file()
        )

    def missing_small(self) -> tuple[HubFile, ...]:
        """Return the missing files needed besides the weights, the index of the weights included.

        Raises NotOnHub for one that is too large.
        """
        files = self.files or {}
        fallback = () if TOKENIZER in files else (SENTENCE_PIECE,)
        more = sorted(name for name in files if MORE_TEMPLATES.fullmatch(name))[:MAX_TEMPLATES]
        missing = self.missing((*SMALL_FILES, *more, *fallback, INDEX))
        for file in missing:
            if file.n_bytes > MAX_SMALL_BYTES:
                raise NotOnHub(
                    f"{self.repository}: {file.name} has {file.n_bytes:,} bytes, but at most "
                    f"{MAX_SMALL_BYTES:,} are expected of such a file; choose another model"
                )
        return missing

    def weight_names(self) -> tuple[str, ...]:
        """Return the names of the weight files; the index must have been downloaded.

        Raises NotOnHub if there are no safetensors, HubError if some are not in the cache and the
        hub cannot be reached.
        """
        cached = {path.name for path in self.folder.iterdir() if path.is_file()}
        available = cached if self.files is None else self.files
        names: tuple[str, ...] = ()
        if WEIGHTS in available:
            names = (WEIGHTS,)
        elif INDEX in available:
            names = (INDEX, *shards(self.folder / INDEX))
        if self.files is None and not (names and cached.issuperset(names)):
            raise HubError(
                f"only part of {self.repository} is in the cache ({self.folder}), and the hub "
                "cannot be reached; connect to the network and start again to download the rest"
            )
        if names:
            return names
        pickles = sorted(name for name in available if name.endswith(PICKLES))
        hint = f"; {pickles[0]} is a pickle, which can run code, and is never read"
        raise NotOnHub(
            f"{self.repository} has neither {WEIGHTS} nor {INDEX}{hint if pickles else ''}; choose "
            "a model that is saved as safetensors or GGUF"
        )

    def fetch(
        self,
        files: tuple[HubFile, ...],
        on_transfer: Callable[[Transfer], None] = lambda transfer: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Download files into the cache and check them.

        An interrupted file is resumed during this call; a cancelled one starts again next time.
        Raises HubError, NotOnHub, Cancelled.
        """
        total = sum(file.n_bytes for file in files)
        _check_disk_space(total)
        done = 0
        for file in files:
            bar = progress_bar(file.name, file.n_bytes, done, total, on_transfer, cancelled)
            if cancelled():
                raise Cancelled
            with hub_errors(self.repository, self.commit):
                path = Path(
                    huggingface_hub.hf_hub_download(
                        self.repository, file.name, revision=self.commit, tqdm_class=bar
                    )
                )
            _check_file(self.repository, file, path)
            done += file.n_bytes
        if self.branch is not None and self.branch != self.commit and files:
            write_ref(self.repository, self.branch, self.commit)

    def read(self, file: HubFile, at: int, n_bytes: int) -> bytes:
        """Return `n_bytes` bytes of a remote file, from offset `at`. Raises HubError, NotOnHub."""
        if not n_bytes:
            return b""
        url = huggingface_hub.hf_hub_url(self.repository, file.name, revision=self.commit)
        headers = {**build_hf_headers(), "Range": f"bytes={at}-{at + n_bytes - 1}"}
        with (
            hub_errors(self.repository, self.commit),
            get_session().stream("GET", url, headers=headers, timeout=LOOK_UP_SECONDS) as answer,
        ):
            if answer.status_code >= 400:
                answer.read()
            hf_raise_for_status(answer)
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                raise HubError(
                    f"{self.repository}: the hub does not send parts of {file.name}, so the model "
                    "cannot be checked before it is downloaded; download the file and give its path"
                )
            data = answer.read()
        if len(data) != n_bytes:
            raise HubError(
                f"{self.repository}: expected {n_bytes} bytes of {file.name}, but the hub sent "
                f"{len(data)}; try again"
            )
        return bytes(data)

    def has_safetensors(self) -> bool:
        """Return whether the repository has weights as safetensors, so that none need choosing."""
        names = self.files if self.files is not None else {p.name for p in self.folder.iterdir()}
        return WEIGHTS in names or INDEX in names

    def shapes(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, read from the headers of the remote weight files."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name in names:
            if not name.endswith(".safetensors"):
                continue
            with hub_errors(self.repository, self.commit):
                header = huggingface_hub.HfApi().parse_safetensors_file_metadata(
                    self.repository, name, revision=self.commit
                )
            for tensor, info in header.tensors.items():
                if not all(type(size) is int and size >= 0 for size in info.shape):
                    raise NotOnHub(f"{self.repository}: {name}: the shape of {tensor} is invalid")
                shapes[tensor] = tuple(info.shape)
        return shapes


def is_hub_id(name: str) -> bool:
    """Return whether `name` has the form OWNER/MODEL of the hub."""
    return bool(REPOSITORY.fullmatch(name)) and ".." not in name and "--" not in name


def look_up(repository: str, revision: str | None = None, config: str = SMALL_FILES[0]) -> Snapshot:
    """Look up a revision (branch, tag or commit; main if None) and download only its `config`.

    From a repository with GGUF files only, nothing is downloaded. Without a network, or in offline
    mode, the snapshot is that of the cache. Raises NotOnHub and HubError.
    """
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
        raise NotOnHub(f"--revision must be a branch, tag or commit, but got {revision!r}")
    branch = revision or constants.DEFAULT_REVISION
    is_model = config == SMALL_FILES[0]
    with hub_errors(repository, branch, "model" if is_model else "adapter"):
        try:
            commit, files = _list_files(repository, branch)
        except (OfflineModeIsEnabled, HfHubHTTPError, TRANSPORT_ERROR) as error:
            return _cached_snapshot(repository, branch, config, error)
        if is_model and config not in files and any(name.lower().endswith(GGUF) for name in files):
            folder = snapshot_folder(repository, commit)
            return Snapshot(repository, commit, folder, files, branch=branch)
        if config not in files:
            kind = "a language model" if is_model else "an adapter"
            raise NotOnHub(f"{repository} has no {config}; check that it is {kind}")
        if files[config].n_bytes > MAX_SMALL_BYTES:
            raise NotOnHub(
                f"{repository}: {config} has {files[config].n_bytes:,} bytes, but a config has at "
                f"most {MAX_SMALL_BYTES:,}"
            )
        # By the name of the branch, so that the cache records its commit.
        path = Path(huggingface_hub.hf_hub_download(repository, config, revision=branch))
        if path.parent.name != commit:  # the branch moved between the two requests
            commit, files = _list_files(repository, path.parent.name)
        _check_file(repository, files[config], path)
        return Snapshot(repository, commit, path.parent, files)


def _list_files(repository: str, revision: str) -> tuple[str, dict[str, HubFile]]:
    info = huggingface_hub.HfApi().model_info(
        repository, revision=revision, files_metadata=True, timeout=LOOK_UP_SECONDS
    )
    files = {
        file.rfilename: HubFile(
            file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None, file.blob_id
        )
        for file in info.siblings or ()
    }
    return str(info.sha), files


def _cached_snapshot(repository: str, revision: str, config: str, error: BaseException) -> Snapshot:
    """Return the snapshot in the cache after the hub failed with `error`.

    Raises `error` again if there is none, or if the hub was reached and refused.
    """
    if isinstance(error, HfHubHTTPError) and error.response.status_code < 500:
        raise error
    try:
        path = Path(
            huggingface_hub.hf_hub_download(
                repository, config, revision=revision, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        commit = read_ref(repository, revision)
        folder = snapshot_folder(repository, commit)
        if config == SMALL_FILES[0] and any(folder.rglob(f"*{GGUF}")):
            return Snapshot(repository, commit, folder, None)
        raise error from None
    return Snapshot(repository, path.parent.name, path.parent, None)


def shards(index: Path) -> tuple[str, ...]:
    """Return the weight files that an index names, in its order."""
    try:
        names = dict.fromkeys(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotOnHub(
            f'{index}: expected an index of weight files ({{"weight_map": …}})'
        ) from None
    for name in names:
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise NotOnHub(
                f"{index}: expected weight files named NAME.safetensors, but got {name!r}"
            )
    return tuple(names)


# ---- checks of downloads ---------------------------------------------------------------------


def _check_file(repository: str, file: HubFile, path: Path) -> None:
    """Compare size and hash of a downloaded file with the hub's; delete it and raise HubError if
    they differ."""
    n_bytes, expected = path.stat().st_size, file.sha256 or file.git_id or ""
    found = digest_like(expected, path) if expected else ""
    if found == expected and n_bytes == file.n_bytes:
        return
    path.resolve().unlink()
    path.unlink(missing_ok=True)
    raise HubError(
        f"{repository}: the download of {file.name} is damaged: expected {file.n_bytes:,} bytes "
        f"with checksum {expected[:12]}, but got {n_bytes:,} bytes with {found[:12]}; the file was "
        "deleted, try again"
    )


def digest_like(expected: str, path: Path, cancelled: Callable[[], bool] = lambda: False) -> str:
    """Return the SHA-256 of a file, or its git blob id if `expected` is as long as one. Raises
    Cancelled."""
    digest = hashlib.sha256()
    if len(expected) == GIT_ID_LENGTH:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
            if cancelled():
                raise Cancelled
    return digest.hexdigest()


def _check_disk_space(n_bytes: int) -> None:
    folder = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if n_bytes and n_bytes + SPARE_BYTES > free:
        raise HubError(
            f"the download needs {n_bytes / 1e9:.2f} GB, but the disk of the cache "
            f"({constants.HF_HUB_CACHE}) has {free / 1e9:.2f} GB free; free some space, or set "
            "HF_HUB_CACHE to a folder on another disk"
        )
