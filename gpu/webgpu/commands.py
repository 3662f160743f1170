"""One command buffer as data, and who turns it into GPU calls.

A step is the same commands every time: dispatches in one compute pass, copies of the results, GPU
times. `StepCommands` lists them; `Calls` encodes and submits them. There are two of those:
`gpu.webgpu.native.NativeCalls` for speed, `gpu.webgpu.calls.PublicCalls` for checking, and for a
wgpu-py whose internals are not the ones that `gpu.webgpu.native` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

PassDispatch = tuple[Any, Any, int, int, int]
"""(pipeline, bind group, grid x, y, z)"""


@dataclass(frozen=True, slots=True)
class Copy:
    """`n_bytes` of a buffer, from `offset` on, go to the readback buffer, `at` bytes from its
    start."""

    source: Any
    n_bytes: int
    at: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """GPU times: queries 0 and 1 are written at the begin and the end of the pass, the next ones
    between its segments. The first `n` are resolved into a buffer and copied like `Copy`."""

    query_set: Any
    n: int
    resolved: Any
    at: int


@dataclass(frozen=True, slots=True)
class StepCommands:
    """A compute pass of `segments` of dispatches, then `copies`. `first_mark`: the query written
    between the first two segments, or None for no times inside the pass."""

    segments: tuple[tuple[PassDispatch, ...], ...]
    copies: tuple[Copy, ...] = ()
    timing: Timing | None = None
    first_mark: int | None = None


class Readback(Protocol):
    """A persistent buffer that GPU results are copied into and the host reads.

    Cycle: commands that copy into it are submitted with it (`Calls.submit`); `wait`; `read`, which
    makes it writable by the GPU again.
    """

    def wait(self) -> None:
        """Block, without holding the interpreter lock, until the submission is done."""
        ...

    def read(self, n_bytes: int) -> bytes:
        """The first `n_bytes`. Raises DeviceError when the device was lost."""
        ...


class Calls(Protocol):
    """The GPU calls of a step on one device. Used by one thread."""

    def prepare(self, commands: StepCommands) -> Any:
        """These commands as `encode` takes them; made once and used for every step."""
        ...

    def writer(self, buffer: Any, data: bytearray) -> Callable[[int], None]:
        """A function that writes the first n bytes of `data`, as they are then, into `buffer` for
        the commands submitted next. `data` must not be resized."""
        ...

    def readback(self, size: int, label: str) -> Any:
        """A `Readback` of `size` bytes."""
        ...

    def encode(self, prepared: Any, to: Any | None = None) -> Any:
        """A command buffer; its copies go to the readback `to`, which only commands without copies
        may leave out. It is `record`, then `finish`."""
        ...

    def record(self, prepared: Any, to: Any | None = None) -> Any:
        """An encoder that has been given all commands: one call after another from Python."""
        ...

    def finish(self, encoder: Any) -> Any:
        """Its command buffer: one call, in which wgpu checks what was recorded and the driver
        translates it."""
        ...

    def submit(self, command_buffer: Any, to: Any | None = None) -> None:
        """Hand a command buffer to the queue, once. `to`: the readback it copies into."""
        ...

    def flush(self) -> Any:
        """Hand writes to buffers to the device that wait for the next commands. Returns what `wait`
        takes, never None."""
        ...

    def wait(self, flushed: Any = None) -> None:
        """Block, without holding the interpreter lock, until what was submitted up to a `flush` is
        done, or everything (None). Some wait for everything always."""
        ...
