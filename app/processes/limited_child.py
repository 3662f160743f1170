"""The inside of a limited process (see `app.limited_process`): limits on itself, and a loop that
answers requests on its standard input and output.

It knows the standard library only, so a process has what its own module imports and no more.

    request  u32 bytes, u32 milliseconds that it may take, then the bytes (all little-endian); an
             empty one only asks whether the process is there
    reply    u32 bytes, then the bytes; `OUT_OF_MEMORY` bytes: none follow, and the process ends;
             with `LAST` added to the number, the process ends after this reply
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import struct
from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

REQUEST_HEAD = struct.Struct("<II")
REPLY_HEAD = struct.Struct("<I")
OUT_OF_MEMORY = 0x7FFFFFFF
LAST = 0x80000000
GRACE_SECONDS = 1.0
"""The server ends a process that is late; one that has lost its server ends so much later."""

MAPPED_BYTES = 512 << 20
"""Address space, beside the memory, for the files of the interpreter and its libraries."""

Answer = Callable[[bytes], bytes]


def main(module: str, memory_bytes: int) -> None:
    """Answer requests with the function `answer` of `module` until the input ends. A module that
    needs no files sets `NO_FILES`, and has a `prepare` that is called while there are files;
    `MOST_KEPT_BYTES` of one is the memory with which it goes on."""
    reader, writer = _own_pipes()
    held = _memory_reader()
    if hasattr(signal, "pthread_sigmask"):  # what the server's thread blocked is blocked here too
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    found = importlib.import_module(module)
    for name, most in (("DATA", memory_bytes), ("FSIZE", 0), ("CORE", 0)):
        _limit(name, most)
    if getattr(found, "NO_FILES", False):
        found.prepare()
        _limit("AS", memory_bytes + MAPPED_BYTES)
        forbid_files()
    most_kept = getattr(found, "MOST_KEPT_BYTES", None)
    _serve(found.answer, reader, writer, lambda: most_kept is not None and held() > most_kept)


def forbid_files() -> None:
    """From now on this process opens no file and no socket, and starts no process and no thread."""
    for name in ("NOFILE", "NPROC"):
        _limit(name, 0)


def _limit(name: str, most: int) -> None:
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:  # not of this system
        return
    _, greatest = resource.getrlimit(number)
    if greatest != resource.RLIM_INFINITY:
        most = min(most, greatest)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(number, (most, most))


def _own_pipes() -> tuple[int, int]:
    """Standard input and output, out of reach of what prints or reads by accident."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return reader, writer


def _serve(answer: Answer, reader: int, writer: int, is_last: Callable[[], bool]) -> None:
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
    """Return a function that reads this process's resident bytes; 0 where there is no /proc.
    (`getrusage` will not do: its peak begins with what the server held.)"""
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return lambda: 0
    page = os.sysconf("SC_PAGE_SIZE")
    return lambda: int(os.pread(statm, 128, 0).split()[1]) * page


def _end_after(seconds: float | None) -> None:
    """Have the system end this process after so many seconds, whatever it is doing then, or, with
    None, not any more."""
    if resource is None:
        if seconds is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True)
        return
    signal.setitimer(signal.ITIMER_REAL, 0 if seconds is None else seconds + GRACE_SECONDS)
    if seconds is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime + seconds + GRACE_SECONDS) + 1
        _, greatest = resource.getrlimit(resource.RLIMIT_CPU)
        if greatest == resource.RLIM_INFINITY or most <= greatest:
            resource.setrlimit(resource.RLIMIT_CPU, (most, greatest))


def _read(reader: int, n_bytes: int) -> bytes:
    """Exactly so many bytes. Raises EOFError."""
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
