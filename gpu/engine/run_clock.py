"""Times at which a run was requested, started and wrote; the timings reported at its end."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from gpu.events import Timings


@dataclass(slots=True)
class RunClock:
    """Points in time, in seconds: request, start, first and latest token; and how long the run has
    waited because of its pace: before the first token, since the latest one, and in all."""

    asked: float = 0.0
    began: float | None = None
    first: float | None = None
    latest: float | None = None
    paced_before_first: float = 0.0
    paced_since_latest: float = 0.0
    paced: float = 0.0
    _waits_since: float | None = None

    def __post_init__(self) -> None:
        self.asked = time.perf_counter()

    def start(self) -> None:
        self.began = time.perf_counter()

    def since_start_ms(self) -> float:
        return (time.perf_counter() - (self.began or self.asked)) * 1e3

    def wait(self) -> None:
        """Note that the run waits because of its pace from now on, if it does not already."""
        if self._waits_since is None:
            self._waits_since = time.perf_counter()

    def go_on(self, at: float = math.inf) -> None:
        """Note that it waits no longer, since the time `at` if that has passed."""
        if self._waits_since is None:
            return
        seconds = max(0.0, min(time.perf_counter(), at) - self._waits_since)
        self._waits_since = None
        self.paced += seconds
        self.paced_since_latest += seconds
        if self.first is None:
            self.paced_before_first += seconds

    def token_ms(self) -> tuple[float, float]:
        """Return the milliseconds since the token before (since the request for the first), and how
        many of them the run waited because of its pace."""
        now = time.perf_counter()
        since = self.latest if self.latest is not None else self.asked
        self.first = self.first if self.first is not None else now
        self.latest = now
        paced, self.paced_since_latest = self.paced_since_latest, 0.0
        return (now - since) * 1e3, paced * 1e3

    def timings(self, n_reused: int, n_moved: int, n_computed: int, n_written: int) -> Timings:
        """Return the timings at the end, from the prompt tokens found in the KV cache, those moved
        there from another text, those computed, and the tokens written."""
        self.go_on()  # a run may end while it waits
        now = time.perf_counter()
        began = self.began if self.began is not None else now
        first = self.first if self.first is not None else now
        before_first, predicted_ms = self.paced_before_first, 0.0
        prompt_ms = (first - began - before_first) * 1e3
        if self.latest is not None:
            after_first = self.paced - before_first - self.paced_since_latest
            predicted_ms = (self.latest - first - after_first) * 1e3
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
            ttft_ms=(first - self.asked - before_first) * 1e3,
            tpot_ms=predicted_ms / max(1, n_written - 1),
            paced_ms=self.paced * 1e3,
        )
