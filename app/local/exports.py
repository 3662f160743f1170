"""Exports of the running model for visitors' browsers: written when first asked for, kept until the
model changes or the server ends."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import msgspec

from app.engine_client import EngineClient
from app.local.model_files import SLOTS, ChatFormat, ManifestHead, write_model_files
from app.processes.parent import end_with_parent
from app.protocol.messages import Hello
from gpu import DeviceError, Footprint, InvalidRequest, LoadOptions, ModelError

log = logging.getLogger(__name__)

DTYPES = ("f32", "f16", "q8", "q4")
SPARE_BYTES = 256 << 20
"""Disk space that an export leaves free."""
KEY_CHARS = 16
DONE = 1.0

State = Literal["absent", "writing", "ready", "failed"]


class ExportState(msgspec.Struct, frozen=True):
    """State of the export of one storage type.

    progress  share done while it is written
    message   what is being done, or why it failed
    base      address of its manifest's folder once it is ready, relative to the page
    """

    state: State
    progress: float = 0.0
    message: str = ""
    base: str = ""


class DtypeOffer(msgspec.Struct, frozen=True):
    """The running model in one storage type: `weights` to fetch, with those of its adapters, and
    `memory` that it needs in all, in bytes."""

    dtype: str
    weights: int
    memory: int
    export: ExportState


class DtypeOffers(msgspec.Struct, frozen=True):
    """Storage types in which a page can run the model itself. `why_not`: a sentence that says why
    there is none, or "". `loras`: adapters that every export has."""

    model: str
    dtype: str
    offers: tuple[DtypeOffer, ...] = ()
    why_not: str = ""
    loras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportJob:
    """An export to write: arguments of `write_model_files`."""

    path: Path
    head: ManifestHead
    options: LoadOptions
    folder: Path


class BrowserExports:
    """Exports of the model that `engine` runs. Thread-safe. `loras`: folders of adapters by name;
    those that are loaded are exported with the model.

    They are written one at a time, each in a process of its own, so that neither the time nor the
    memory that it takes is the server's.
    """

    def __init__(
        self, engine: EngineClient, version: str, loras: Mapping[str, Path] | None = None
    ) -> None:
        self._engine = engine
        self._version = version
        self._folders = loras or {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._root: tempfile.TemporaryDirectory[str] | None = None
        self._key = ""
        self._states: dict[str, ExportState] = {}
        self._needs: dict[str, Footprint] = {}

    def offers(self) -> DtypeOffers:
        """Return what is offered. Raises UnavailableError while the engine is not ready."""
        hello = self._engine.require_ready()
        model, dtype = hello.model.name, hello.model.dtype
        if hello.upstream is not None:
            why = f"the model runs at {hello.upstream.url}, and its weights are not on this server"
            return DtypeOffers(model, dtype, why_not=why)
        try:
            with self._lock:
                self._follow(hello)
                states: Mapping[str, ExportState] = dict(self._states)
                needs = self._needs = self._needs or self._read_needs(hello)
        except (ModelError, DeviceError) as error:
            return DtypeOffers(model, dtype, why_not=str(error))
        absent = ExportState("absent")
        return DtypeOffers(
            model,
            dtype,
            tuple(
                DtypeOffer(name, need.weights + need.adapters, need.total, states.get(name, absent))
                for name, need in needs.items()
            ),
            loras=tuple(self._loras(hello)),
        )

    def begin(self, dtype: str) -> ExportState:
        """Begin to write the export of a storage type, unless it is there or being written. Raises
        InvalidRequest if nothing can be exported; why this export failed is in its state."""
        offers = self.offers()
        if offers.why_not:
            raise InvalidRequest(offers.why_not, "dtype")
        hello = self._engine.require_ready()
        with self._lock:
            self._follow(hello)
            known = self._states.get(dtype)
            if known is not None and known.state != "failed":
                return known
            key, job = self._key, self._job(hello, dtype)
            state = self._states[dtype] = ExportState("writing", 0.0, "waiting for its turn")
        threading.Thread(
            target=self._write, args=(key, dtype, job), name="write export", daemon=True
        ).start()
        return state

    def folder(self, key: str, dtype: str) -> Path:
        """Return the folder of a finished export. Raises InvalidRequest if there is none."""
        with self._lock:
            state = self._states.get(dtype) if key == self._key else None
            if state is None or state.state != "ready" or self._root is None:
                raise InvalidRequest(
                    "this export is gone, perhaps because the server runs another model now; "
                    "choose again where the model runs",
                    "dtype",
                )
            return Path(self._root.name) / key / dtype

    def _read_needs(self, hello: Hello) -> dict[str, Footprint]:
        """Return what the model needs in each storage type. Pages ask often, so it is kept."""
        return {dtype: Footprint.of(self._path, self._options(hello, dtype)) for dtype in DTYPES}

    def _loras(self, hello: Hello) -> dict[str, Path]:
        """Return the folders of the adapters that are loaded, in their order."""
        loaded = (lora.name for lora in hello.model.loras)
        return {name: self._folders[name] for name in loaded if name in self._folders}

    def _options(self, hello: Hello, dtype: str) -> LoadOptions:
        """Return the options of an export. Keys and values are stored as the server stores them
        where the weights are, so that the ids are the same."""
        kv_dtype = hello.model.kv_dtype if dtype == hello.model.dtype else None
        return LoadOptions(dtype=dtype, kv_dtype=kv_dtype, slots=SLOTS, loras=self._loras(hello))

    @property
    def _path(self) -> Path:
        return self._engine.require_path()

    def _follow(self, hello: Hello) -> None:
        """Drop the exports of another model than the one that runs. The lock is held."""
        model, loras = hello.model, self._loras(hello).items()
        described = (str(self._path), model.name, model.dtype, model.kv_dtype, *loras)
        key = hashlib.sha256(repr(described).encode()).hexdigest()[:KEY_CHARS]
        if key == self._key:
            return
        if self._root is not None:
            shutil.rmtree(Path(self._root.name) / self._key, ignore_errors=True)
        self._key, self._states, self._needs = key, {}, {}

    def _job(self, hello: Hello, dtype: str) -> ExportJob:
        if self._root is None:
            self._root = _temporary_folder()
        head = ManifestHead(self._version, hello.model.name, ChatFormat.of(self._engine.tokenizer))
        folder = Path(self._root.name) / self._key / dtype
        return ExportJob(self._path, head, self._options(hello, dtype), folder)

    def _write(self, key: str, dtype: str, job: ExportJob) -> None:
        def tell(state: ExportState) -> bool:
            """Set the state; return False if another model runs by now."""
            with self._lock:
                if key == self._key:
                    self._states[dtype] = state
                return key == self._key

        with self._writing:
            if not tell(ExportState("writing", 0.0, "starting")):
                return
            try:
                _expect_room(job)
                job.folder.mkdir(parents=True, exist_ok=True)
                _write_in_process(job, tell)
            except (ModelError, DeviceError, OSError) as error:
                shutil.rmtree(job.folder, ignore_errors=True)
                tell(ExportState("failed", message=str(error)))
                return
        if not tell(ExportState("ready", 1.0, base=f"api/local/{key}/{dtype}/")):
            shutil.rmtree(job.folder, ignore_errors=True)


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for exports. Raises InvalidRequest if none can be made."""
    try:
        return tempfile.TemporaryDirectory(prefix="tokenglass-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InvalidRequest(
            f"no folder for the export can be made in {tempfile.gettempdir()} "
            f"({error.strerror}); set TMPDIR to one that the server may write to",
            "dtype",
        ) from None


def _expect_room(job: ExportJob) -> None:
    """Raise ModelError if the disk has no room for an export."""
    need = Footprint.of(job.path, job.options)
    needed = need.weights + need.adapters + SPARE_BYTES
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed:
        raise ModelError(
            f"the export needs {needed / 1e6:,.0f} MB in {tempfile.gettempdir()}, which has "
            f"{free / 1e6:,.0f} MB left; free some, or set TMPDIR to a larger disk"
        )


def _write_in_process(job: ExportJob, tell: Callable[[ExportState], object]) -> None:
    """Write an export in a process; `tell` is called with its progress. Raises ModelError."""
    context = multiprocessing.get_context("spawn")  # the server has threads
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, writer), name="export", daemon=True)
    process.start()
    writer.close()
    try:
        while True:
            fraction, message = reader.recv()
            if fraction is None:
                raise ModelError(message)
            tell(ExportState("writing", fraction, message))
            if fraction == DONE:
                return
    except EOFError:
        process.join()
        raise ModelError(
            f"the process that writes the export ended (exit status {process.exitcode}); the "
            "machine may be out of memory"
        ) from None
    finally:
        reader.close()
        process.join()


def _child(job: ExportJob, pipe: Connection) -> None:
    """Write an export, and send (share done, what is done) on the way, or (None, error)."""
    end_with_parent()  # it was started by the thread of `BrowserExports` that waits for it

    def progress(fraction: float, message: str) -> None:
        pipe.send((min(fraction, 0.999), message))

    try:
        write_model_files(job.path, job.head, job.options, job.folder, progress)
    except (ModelError, DeviceError) as error:
        pipe.send((None, str(error)))
    except OSError as error:
        pipe.send((None, f"{job.folder}: cannot be written ({error.strerror or error})"))
    else:
        pipe.send((DONE, ""))
