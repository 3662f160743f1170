"""Progress and cancelling of downloads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REPORT_SECONDS = 0.25
MIN_RATE = 1e3
"""Bytes per second below which no time left is shown."""


class Cancelled(Exception):
    """The download, or the change of the model, was cancelled."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """Progress of a download.

    file               name of the current file
    n_done, n_bytes    bytes of this file: received, total
    all_done, all_bytes  bytes of all files: received, total
    rate               bytes per second of this file
    """

    file: str
    n_done: int
    n_bytes: int
    all_done: int
    all_bytes: int
    rate: float

    @property
    def share(self) -> float:
        """Share of all bytes that has been received, in [0, 1]."""
        return self.all_done / self.all_bytes if self.all_bytes else 1.0

    @property
    def seconds_left(self) -> float:
        """Time that the rest of all files takes at this rate."""
        return (self.all_bytes - self.all_done) / max(self.rate, 1e-3)

    def __str__(self) -> str:
        return f"downloading {self.file}, {self.amounts}"

    def of_model(self, name: str) -> str:
        """Return what stands after "Downloading NAME: "."""
        return self.amounts if self.file == name else f"{self.file}, {self.amounts}"

    @property
    def amounts(self) -> str:
        """Bytes, rate and time left, in words."""
        parts = [f"{self.n_done / 1e6:.1f} of {self.n_bytes / 1e6:.1f} MB"]
        if self.all_bytes != self.n_bytes:
            parts.append(f"{self.all_done / 1e6:.1f} of {self.all_bytes / 1e6:.1f} MB in all")
        left = f", {_duration(self.seconds_left)} left" if self.rate > MIN_RATE else ""
        return f"{', '.join(parts)} ({self.rate / 1e6:.1f} MB/s{left})"


OnTransfer = Callable[[Transfer], None]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def progress_bar(
    file: str,
    n_bytes: int,
    before: int,
    all_bytes: int,
    on_transfer: OnTransfer,
    cancelled: Callable[[], bool],
) -> type[Any]:
    """Return a class for `tqdm_class` of `huggingface_hub` that calls `on_transfer` a few times per
    second. It prints nothing.

    `before` is the number of bytes of the files before this one. The download raises Cancelled once
    `cancelled()` is true.
    """

    class Bar:
        def __init__(self, *args: Any, total: int | None = None, initial: int = 0, **_: Any):
            self.total = total
            self.n = initial
            self._first = initial
            self._began = time.monotonic()
            self._reported_at = float("-inf")
            self._report()

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            if cancelled():
                raise Cancelled
            now = time.monotonic()
            if now - self._reported_at > REPORT_SECONDS or self.n >= n_bytes:
                self._reported_at = now
                self._report()

        def _report(self) -> None:
            seconds = max(time.monotonic() - self._began, 1e-3)
            rate = (self.n - self._first) / seconds
            on_transfer(Transfer(file, self.n, n_bytes, before + self.n, all_bytes, rate))

        # The client calls these too; only `update` counts bytes.
        def update_transfer(self, n: float | None = 1) -> None: ...
        def set_postfix_str(self, *args: Any, **_: Any) -> None: ...
        def set_transfer_postfix_str(self, *args: Any, **_: Any) -> None: ...
        def refresh(self, *args: Any, **_: Any) -> None: ...
        def close(self) -> None: ...

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *error: object) -> None: ...

    return Bar
