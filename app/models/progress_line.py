"""Progress on the terminal: one line that is rewritten, or a line every ten seconds if the output
is not a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from app.config import Settings
from app.models.find_model import Model, find_model
from app.models.transfer import OnTransfer, Transfer
from app.terminal import printable

LINE_SECONDS = 10.0


class ProgressLine:
    """Line on the terminal that shows the latest text. `close` ends the line. What it tells of goes
    on without a terminal: one that is closed meanwhile gets no more, and one that was never there
    nothing."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out: TextIO | None = out or sys.stderr  # None if it was closed before the start
        self._rewrites = self._out is not None and self._out.isatty()
        self._width = 0
        self._shown = float("-inf")

    def show(self, text: str) -> None:
        text = printable(text)  # a hub names the files
        if self._rewrites:
            text = text[
                : shutil.get_terminal_size().columns - 1
            ]  # a wrapped line cannot be rewritten
            self._write("\r" + text.ljust(self._width))
            self._width = len(text)
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._write(text + "\n")
            self._shown = time.monotonic()

    def close(self) -> None:
        if self._width:
            self._write("\n")
            self._width = 0

    def _write(self, text: str) -> None:
        if self._out is None:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # ValueError: closed in this process
            self._out = None


@contextmanager
def transfer_line(on_transfer: OnTransfer = lambda transfer: None) -> Iterator[OnTransfer]:
    """Yield a function that shows a transfer on standard error, and passes it to `on_transfer`."""
    line = ProgressLine()

    def show(transfer: Transfer) -> None:
        line.show(str(transfer))
        on_transfer(transfer)

    try:
        yield show
    finally:
        line.close()


def find_with_line(settings: Settings, **how: Any) -> Model:
    """Call `find_model` for a command: show its progress on standard error, and its note."""
    with transfer_line() as show:
        model = find_model(settings, on_transfer=show, **how)
    if model.note:
        print(model.note, file=sys.stderr)
    return model


def fetch_with_line(
    model: Model,
    on_transfer: OnTransfer = lambda transfer: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Call `model.fetch` and show its progress on standard error."""
    with transfer_line(on_transfer) as show:
        model.fetch(show, cancelled)
