"""Main loop of a limited process (see `app.processes.limited_process`): it limits itself, then
answers requests from its standard input on its standard output.

It imports only the standard library, so the process loads nothing that its own module does not.

    request  u32 length, u32 time limit in milliseconds, then `length` bytes (all little-endian);
             length 0 only checks that the process is running
    reply    u32 length, then `length` bytes; the length `OUT_OF_MEMORY` means that no bytes follow
             and the process ends; with the bit `LAST` set, the process ends after this reply
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import struct
from collections.abc import Callable

from app.processes.parent import end_with_parent

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

REQUEST_HEAD = struct.Struct("<II")
REPLY_HEAD = struct.Struct("<I")
OUT_OF_MEMORY = 0x7FFFFFFF
LAST = 0x80000000
GRACE_SECONDS = 1.0
"""Time after its time limit at which a process without a server ends itself."""

MAPPED_BYTES = 512 << 20
"""Extra address space for mapped files of the interpreter and its libraries."""

RequestFunction = Callable[[bytes], bytes]


def main(module: str, memory_bytes: int) -> None:
    """Answer requests with the function `answer` of `module` until the input ends.

    A module that sets `NO_FILES` has a function `prepare`, called before files are forbidden. A
    process that uses more than the module's `MAX_IDLE_BYTES` after a request ends.
    """
    end_with_parent()
    reader, writer = _own_pipes()
    resident_bytes = _memory_reader()
    if hasattr(signal, "pthread_sigmask"):  # the signal mask is inherited from the server's thread
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    loaded = importlib.import_module(module)
    for name, value in (("DATA", memory_bytes), ("FSIZE", 0), ("CORE", 0)):
        _set_limit(name, value)
    if getattr(loaded, "NO_FILES", False):
        loaded.prepare()
        _set_limit("AS", memory_bytes + MAPPED_BYTES)
        forbid_files()
    max_idle = getattr(loaded, "MAX_IDLE_BYTES", None)
    _serve(
        loaded.answer,
        reader,
        writer,
        lambda: max_idle is not None and resident_bytes() > max_idle,
    )


def forbid_files() -> None:
    """Forbid this process to open files and sockets and to start processes and threads."""
    for name in ("NOFILE", "NPROC"):
        _set_limit(name, 0)


def _set_limit(name: str, value: int) -> None:
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:  # this system does not have it
        return
    _, hard_limit = resource.getrlimit(number)
    if hard_limit != resource.RLIM_INFINITY:
        value = min(value, hard_limit)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(number, (value, value))


def _own_pipes() -> tuple[int, int]:
    """Return descriptors of the pipes; standard input and output become /dev/null, so that prints
    do not disturb them."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return reader, writer


def _serve(answer: RequestFunction, reader: int, writer: int, is_last: Callable[[], bool]) -> None:
    last = False
    while not last:
        try:
            n_bytes, milliseconds = REQUEST_HEAD.unpack(_read(reader, REQUEST_HEAD.size))
            request = _read(reader, n_bytes)
        except EOFError:
            return
        _end_after(milliseconds / 1000)
        try:
            reply = answer(request) if request else b""
        except MemoryError:
            os.write(writer, REPLY_HEAD.pack(OUT_OF_MEMORY))
            return
        last = is_last()
        _write(writer, REPLY_HEAD.pack(len(reply) | LAST * last) + reply)
        _end_after(None)


def _memory_reader() -> Callable[[], int]:
    """Return a function that reads this process's resident bytes; 0 without /proc.

    The peak of `getrusage` does not serve: it starts at that of the server.
    """
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return lambda: 0
    page = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(os.pread(statm, 128, 0).split()[1]) * page


def _end_after(seconds: float | None) -> None:
    """Have the system end this process after `seconds`, whatever it does; None cancels that."""
    if resource is None:
        if seconds is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True)
        return
    signal.setitimer(signal.ITIMER_REAL, 0 if seconds is None else seconds + GRACE_SECONDS)
    if seconds is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_seconds = int(used.ru_utime + used.ru_stime + seconds + GRACE_SECONDS) + 1
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
        if hard_limit == resource.RLIM_INFINITY or cpu_seconds <= hard_limit:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, hard_limit))


def _read(reader: int, n_bytes: int) -> bytes:
    """Read exactly `n_bytes` bytes. Raises EOFError."""
    parts: list[bytes] = []
    while n_bytes:
        part = os.read(reader, min(n_bytes, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


def _write(writer: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(writer, left) :]
