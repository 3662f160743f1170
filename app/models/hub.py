"""Models of the Hugging Face hub: what a repository holds, and fetching the files a model needs.

`huggingface_hub` does the work: its cache folder (HF_HOME, HF_HUB_CACHE), its tokens (HF_TOKEN,
`hf auth login`), its endpoint (HF_ENDPOINT), its offline mode (HF_HUB_OFFLINE), and going on after
a cut. Here is what it leaves open: which files are needed (never a pickle), that what arrived is
what the hub has, how far it is, cancelling, and errors that say what to do.
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
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, but not by its types
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from app.hub_cache import remember, remembered, snapshot_folder
from app.hub_errors import TRANSPORT_ERROR, HubError, NotOnHub, hub_errors
from app.transfer import Cancelled, Transfer, progress_bar

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
"""What is read beside the weights; the first must be there."""
TOKENIZER, SENTENCE_PIECE = "tokenizer.json", "tokenizer.model"
"""The second is read, and fetched, where the first is missing."""
MAX_SMALL_BYTES = 256 << 20
"""Far above the largest real tokenizer.json."""
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
GGUF = ".gguf"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
LOOK_UP_SECONDS = 10.0
HASH_BYTES = 1 << 20
SPARE_BYTES = 64 << 20
"""Room on the disk that a download leaves free."""

if "HF_HUB_DISABLE_XET" not in os.environ:
    # The client's other way to fetch, through hf_xet, runs in threads that a cancelled download
    # does not reach. HF_HUB_DISABLE_XET=0 brings it back.
    constants.HF_HUB_DISABLE_XET = True

constants.DOWNLOAD_CHUNK_SIZE = 1 << 20
"""A cut loses the piece that it falls in, and a cancelled download ends with one: on a slow line
the client's own 10 MiB would be too much of both."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `sha256` of its bytes, or `git_id` where the hub knows only that."""

    name: str
    n_bytes: int
    sha256: str | None
    git_id: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a repository. `files` is None when the hub could not be asked: then what is in
    the cache is all there is."""

    repository: str
    commit: str
    folder: Path
    files: Mapping[str, HubFile] | None
    branch: str | None = None
    """Under this name too it is found in the cache, once something of it is there."""

    def missing(self, names: tuple[str, ...]) -> tuple[HubFile, ...]:
        """Those of `names` that are in the repository and not in the cache."""
        files = self.files or {}
        return tuple(
            files[name] for name in names if name in files and not (self.folder / name).is_file()
        )

    def missing_small(self) -> tuple[HubFile, ...]:
        """As `missing`, of what is needed beside the weights, with their index."""
        instead = () if TOKENIZER in (self.files or {}) else (SENTENCE_PIECE,)
        found = self.missing((*SMALL_FILES, *instead, INDEX))
        for file in found:
            if file.n_bytes > MAX_SMALL_BYTES:
                raise NotOnHub(
                    f"{self.repository}: {file.name} has {file.n_bytes:,} bytes; "
                    f"{MAX_SMALL_BYTES:,} are the most that are fetched"
                )
        return found

    def weight_names(self) -> tuple[str, ...]:
        """The weight files; the index must have been fetched. Raises NotOnHub when there are no
        safetensors, and HubError when some are neither here nor to be had."""
        here = {path.name for path in self.folder.iterdir() if path.is_file()}
        has = here if self.files is None else self.files
        names: tuple[str, ...] = ()
        if WEIGHTS in has:
            names = (WEIGHTS,)
        elif INDEX in has:
            names = (INDEX, *_shards(self.folder / INDEX))
        if self.files is None and not (names and here.issuperset(names)):
            raise HubError(
                f"only part of {self.repository} is in the cache ({self.folder}), and the hub "
                "cannot be asked; connect, and start again to fetch the rest"
            )
        if names:
            return names
        pickles = sorted(name for name in has if name.endswith(PICKLES))
        hint = f"; {pickles[0]} may run code when it is read, and is not" if pickles else ""
        raise NotOnHub(f"{self.repository} has neither {WEIGHTS} nor {INDEX}{hint}")

    def fetch(
        self,
        files: tuple[HubFile, ...],
        on_transfer: Callable[[Transfer], None] = lambda transfer: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Fetch files into the cache and check them. A file that is cut off is gone on with while
        this runs; one that was cancelled begins anew next time. Raises HubError, NotOnHub,
        Cancelled."""
        total = sum(file.n_bytes for file in files)
        _check_room(total)
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
            _check(self.repository, file, path)
            done += file.n_bytes
        if self.branch is not None and self.branch != self.commit and files:
            remember(self.repository, self.branch, self.commit)

    def read(self, file: HubFile, at: int, n_bytes: int) -> bytes:
        """A few bytes of a remote file, from `at` on. Raises HubError, NotOnHub."""
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
                    f"{self.repository}: the hub gives {file.name} only as a whole, so it cannot "
                    "be judged before it is fetched; fetch it, and give its path"
                )
            data = answer.read()
        if len(data) != n_bytes:
            raise HubError(
                f"{self.repository}: {file.name} came with {len(data)} of {n_bytes} bytes"
            )
        return bytes(data)

    def has_safetensors(self) -> bool:
        """Are there weights that need no choosing?"""
        here = self.files if self.files is not None else {p.name for p in self.folder.iterdir()}
        return WEIGHTS in here or INDEX in here

    def shapes(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, from the headers of remote weight files: a few KB of each."""
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
                    raise NotOnHub(f"{self.repository}: {name}: {tensor} has no usable shape")
                shapes[tensor] = tuple(info.shape)
        return shapes


def is_hub_id(name: str) -> bool:
    """Could `name` be OWNER/MODEL on the hub?"""
    return bool(REPOSITORY.fullmatch(name)) and ".." not in name and "--" not in name


def look_up(repository: str, revision: str | None = None, config: str = SMALL_FILES[0]) -> Snapshot:
    """Ask the hub for a revision (branch, tag or commit; main if None) and fetch its `config`,
    nothing else; of a model where there are only GGUF files, nothing at all. Without a network, or
    in offline mode, what is in the cache.

    Raises NotOnHub and HubError.
    """
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
        raise NotOnHub(f"--revision {revision!r} is not a branch, a tag or a commit")
    wanted = revision or constants.DEFAULT_REVISION
    with hub_errors(repository, wanted):
        try:
            commit, files = _list(repository, wanted)
        except (OfflineModeIsEnabled, HfHubHTTPError, TRANSPORT_ERROR) as error:
            return _cached(repository, wanted, config, error)
        is_model = config == SMALL_FILES[0]
        if is_model and config not in files and any(name.lower().endswith(GGUF) for name in files):
            folder = snapshot_folder(repository, commit)
            return Snapshot(repository, commit, folder, files, branch=wanted)
        if config not in files:
            what = "a language model" if is_model else "an adapter"
            raise NotOnHub(f"{repository} has no {config}; is it {what}?")
        if files[config].n_bytes > MAX_SMALL_BYTES:
            raise NotOnHub(f"{repository}: {config} is too large to be a config")
        # By the name of the branch, so that the cache learns which commit it is at.
        path = Path(huggingface_hub.hf_hub_download(repository, config, revision=wanted))
        if path.parent.name != commit:  # it moved between the two requests
            commit, files = _list(repository, path.parent.name)
        _check(repository, files[config], path)
        return Snapshot(repository, commit, path.parent, files)


def _list(repository: str, revision: str) -> tuple[str, dict[str, HubFile]]:
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


def _cached(repository: str, revision: str, config: str, why: BaseException) -> Snapshot:
    """The cache's, because the hub cannot be asked; `why` is raised again when it has none or when
    the hub did answer."""
    answered = isinstance(why, HfHubHTTPError) and why.response.status_code < 500
    if answered:
        raise why
    try:
        path = Path(
            huggingface_hub.hf_hub_download(
                repository, config, revision=revision, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        commit = remembered(repository, revision)
        folder = snapshot_folder(repository, commit)
        if config == SMALL_FILES[0] and any(folder.rglob(f"*{GGUF}")):
            return Snapshot(repository, commit, folder, None)
        raise why from None
    return Snapshot(repository, path.parent.name, path.parent, None)


def _shards(index: Path) -> tuple[str, ...]:
    """The weight files that an index names, in its order."""
    try:
        names = dict.fromkeys(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotOnHub(f"{index}: not an index of weight files") from None
    for name in names:
        if not isinstance(name, str) or not SHARD.fullmatch(name):
            raise NotOnHub(f"{index}: names a weight file {name!r}; expected NAME.safetensors")
    return tuple(names)


# ---- what arrived, and where it lies ---------------------------------------------------------


def _check(repository: str, file: HubFile, path: Path) -> None:
    """Is the file what the hub has? What is not is thrown away, so that it can be fetched again."""
    n_bytes = path.stat().st_size
    if file.sha256 is not None:
        found, expected = _digest(path, hashlib.sha256()), file.sha256
    elif file.git_id is not None:
        blob = hashlib.sha1(b"blob %d\0" % n_bytes, usedforsecurity=False)
        found, expected = _digest(path, blob), file.git_id
    else:
        found = expected = ""
    if found == expected and n_bytes == file.n_bytes:
        return
    path.resolve().unlink()
    path.unlink(missing_ok=True)
    raise HubError(
        f"{repository}: {file.name} was damaged on the way: it has {n_bytes:,} bytes and checksum "
        f"{found[:12]}, but the hub says {file.n_bytes:,} and {expected[:12]}; it was thrown away, "
        "try again"
    )


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as file:
        while piece := file.read(HASH_BYTES):
            digest.update(piece)
    return str(digest.hexdigest())


def _check_room(n_bytes: int) -> None:
    folder = Path(constants.HF_HUB_CACHE).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if n_bytes and n_bytes + SPARE_BYTES > free:
        raise HubError(
            f"the model has {n_bytes / 1e9:.2f} GB to fetch, but the disk of the cache "
            f"({constants.HF_HUB_CACHE}) has {free / 1e9:.2f} GB free; make room, or set "
            "HF_HUB_CACHE to a folder on another disk"
        )
