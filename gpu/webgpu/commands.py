"""Command buffer of a step as data, and the protocol that encodes and submits it.

A step has the same commands every time: dispatches in one compute pass, copies of the results, GPU
times. `StepCommands` lists them, `Calls` encodes and submits them. `gpu.webgpu.native.NativeCalls`
is fast; `gpu.webgpu.calls.PublicCalls` checks, and serves versions of wgpu-py whose internals are
unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

PassDispatch = tuple[Any, Any, int, int, int]
"""(pipeline, bind group, grid x, y, z)"""


@dataclass(frozen=True, slots=True)
class BufferCopy:
    """Copy of `n_bytes` of a buffer, from `offset`, to the readback buffer at `at`."""

    source: Any
    n_bytes: int
    at: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PassTimestamps:
    """Timestamps of a pass: queries 0 and 1 at its begin and end, the next ones between its
    segments. The first `n` are resolved into a buffer and copied to the readback at `at`."""

    query_set: Any
    n: int
    resolved: Any
    at: int


@dataclass(frozen=True, slots=True)
class StepCommands:
    """A compute pass of `segments` of dispatches, then `copies`.

    `first_mark` is the query written between the first two segments; None: no timestamps inside the
    pass.
    """

    segments: tuple[tuple[PassDispatch, ...], ...]
    copies: tuple[BufferCopy, ...] = ()
    timing: PassTimestamps | None = None
    first_mark: int | None = None


class Readback(Protocol):
    """Persistent buffer for results of the GPU, read by the host.

    Cycle: `Calls.submit` commands that copy into it; `wait`; `read`, which unmaps it for the next
    submission.
    """

    def wait(self) -> None:
        """Block, without holding the interpreter lock, until the results are there or are late."""
        ...

    def read(self, n_bytes: int) -> bytes:
        """Return the first `n_bytes`. Raises DeviceError if the device was lost."""
        ...


class Calls(Protocol):
    """GPU calls of a step on one device, for one thread."""

    def prepare(self, commands: StepCommands) -> Any:
        """Return the commands in the form that `encode` takes; made once, used for every step."""
        ...

    def writer(self, buffer: Any, data: bytearray) -> Callable[[int], None]:
        """Return a function that writes the first n bytes of `data` into `buffer` for the commands
        submitted next. `data` must not be resized."""
        ...

    def readback(self, size: int, label: str) -> Any:
        """Return a `Readback` of `size` bytes."""
        ...

    def encode(self, prepared: Any, to: Any | None = None) -> Any:
        """Return a command buffer: `record`, then `finish`. Copies go to the readback `to`, which
        is required if there are any."""
        ...

    def record(self, prepared: Any, to: Any | None = None) -> Any:
        """Return an encoder with all commands recorded, one call each from Python."""
        ...

    def finish(self, encoder: Any) -> Any:
        """Return the encoder's command buffer: one call, in which wgpu validates and the driver
        translates."""
        ...

    def submit(self, command_buffer: Any, to: Any | None = None) -> None:
        """Submit a command buffer, once. `to`: the readback it copies into."""
        ...

    def flush(self) -> Any:
        """Submit pending buffer writes. Returns a value for `wait`, never None."""
        ...

    def wait(self, flushed: Any = None) -> None:
        """Block, without holding the interpreter lock, until everything submitted up to `flushed`
        is done; None: everything. An implementation may always wait for everything."""
        ...
