"""Times at which a run was requested, started and wrote; the timings reported at its end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpu.events import Timings


@dataclass(slots=True)
class RunClock:
    """Points in time, in seconds: request, start, first and latest token."""

    asked: float = 0.0
    began: float | None = None
    first: float | None = None
    latest: float | None = None

    def __post_init__(self) -> None:
        self.asked = time.perf_counter()

    def start(self) -> None:
        self.began = time.perf_counter()

    def since_start_ms(self) -> float:
        return (time.perf_counter() - (self.began or self.asked)) * 1e3

    def token_ms(self) -> float:
        """Milliseconds since the token before (since the request for the first)."""
        now = time.perf_counter()
        since = self.latest if self.latest is not None else self.asked
        self.first = self.first if self.first is not None else now
        self.latest = now
        return (now - since) * 1e3

    def timings(self, n_reused: int, n_moved: int, n_computed: int, n_written: int) -> Timings:
        """Return the timings at the end, from the prompt tokens found in the KV cache, those moved
        there from another text, those computed, and the tokens written."""
        now = time.perf_counter()
        began = self.began if self.began is not None else now
        first = self.first if self.first is not None else now
        latest = self.latest if self.latest is not None else first
        prompt_ms, predicted_ms = (first - began) * 1e3, (latest - first) * 1e3
        return Timings(
            cache_n=n_reused + n_moved,
            cache_moved_n=n_moved,
            prompt_n=n_computed,
            prompt_ms=prompt_ms,
            prompt_per_second=n_computed / max(prompt_ms, 1e-6) * 1e3,
            predicted_n=n_written,
            predicted_ms=predicted_ms,
            predicted_per_second=max(0, n_written - 1) / max(predicted_ms, 1e-6) * 1e3,
            queue_ms=(began - self.asked) * 1e3,
            ttft_ms=(first - self.asked) * 1e3,
            tpot_ms=predicted_ms / max(1, n_written - 1),
        )
