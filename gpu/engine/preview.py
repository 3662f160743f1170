"""Preview of a paused run (`gpu.pace`): the result of its next step, held until the token may be
written.

A change of the run's settings drops the preview, and the step runs again: the same row writes the
same place in the KV cache, and the draw depends on seed and index alone. Nothing on the host has
moved until then, and of the text on the device `Decoding.text_is_stale`.
"""

from __future__ import annotations

from gpu.engine.decoding import Decoding, Draws
from gpu.engine.run_text import RunText
from gpu.pace import RunPace


class Preview:
    """Preview of one run. It is submitted like every sample, read, shown and held, and in the end
    written or dropped."""

    def __init__(self, text: RunText, decoding: Decoding, pace: RunPace) -> None:
        self._text = text
        self._decoding = decoding
        self._pace = pace
        self._held: Draws | None = None

    @property
    def is_submitted(self) -> bool:
        """Return whether the last sample that was submitted is a preview."""
        last = self._decoding.n_submitted - 1
        return not self._decoding.settled and not self._pace.may_write(last)

    @property
    def is_held(self) -> bool:
        """Return whether the preview was read."""
        return self._held is not None

    def hold(self, draws: Draws) -> None:
        """Hold what was read, and send what the next token will be drawn from."""
        self._held = draws
        self._text.events.clock.wait()
        self._text.events.preview(draws.samples[0], self._text.n_written, self._text.n_allowed)

    def take(self) -> Draws | None:
        """Return what is held, to be written now."""
        held, self._held = self._held, None
        return held

    def drop(self) -> None:
        """Have the step of the preview run again, if there is one."""
        if self.is_submitted:
            self._decoding.rewind(n_in_flight=0 if self.is_held else 1)
            self._held = None
            self._text.is_green = None  # the next draw may have no watermark
