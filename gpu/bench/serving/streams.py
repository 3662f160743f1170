"""Streams of an engine or a peer, started together or while others run, and the times of their
tokens."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from gpu.bench.peers.peer import StreamTimes
from gpu.engine.engine import Engine
from gpu.errors import EngineError
from gpu.events import Done, Event, Token
from gpu.request import Request
from gpu.sampling_params import SamplingParams


class Streaming(Protocol):
    """An engine or a peer that writes several streams."""

    def streams(self, prompts: list[list[int]], n_tokens: int) -> StreamTimes: ...


@dataclass
class Stream:
    """One request. `asked`, `times`: seconds by `time.perf_counter`, of the request and of every
    token."""

    asked: float = 0.0
    times: list[float] = field(default_factory=list)
    fault: str = ""
    _done: threading.Event = field(default_factory=threading.Event)

    def start(self, engine: Engine, ids: list[int], n_tokens: int) -> None:
        self.asked = time.perf_counter()
        params = SamplingParams(temperature=0.8, seed=0, max_tokens=n_tokens, ignore_eos=True)
        engine.submit(Request(ids, params), self._on_event)

    def wait(self) -> None:
        """Wait for the end. Raises EngineError if the run failed."""
        self._done.wait()
        if self.fault:
            raise EngineError(self.fault)

    @property
    def ttft_ms(self) -> float:
        return 1e3 * (self.times[0] - self.asked)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Token):
            self.times.append(time.perf_counter())
        elif isinstance(event, Done):
            self.fault = event.message
            self._done.set()


@dataclass(frozen=True, slots=True)
class StreamsResult:
    """Streams that were started together: tokens per second of all, milliseconds of processor time
    for a token (all threads of this process, so the device too if it is a software one), and
    milliseconds."""

    streams: int
    tok_s: float
    cpu_ms: float
    ttft_p50: float
    ttft_p95: float
    inter_token_p50: float
    inter_token_p95: float

    @classmethod
    def of(cls, found: StreamTimes) -> StreamsResult:
        times = found.times
        n_tokens = sum(len(stream) for stream in times)
        seconds = max(stream[-1] for stream in times) - min(found.asked)
        ttft = [1e3 * (stream[0] - asked) for stream, asked in zip(times, found.asked, strict=True)]
        inter = [1e3 * (b - a) for stream in times for a, b in pairwise(stream)]
        return cls(
            len(times),
            n_tokens / seconds,
            1e3 * found.cpu_s / n_tokens,
            statistics.median(ttft),
            percentile(ttft, 95),
            statistics.median(inter),
            percentile(inter, 95),
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LongPromptResult:
    """A prompt of `n_prompt` tokens that arrives while `streams` others run: milliseconds between
    their tokens before and meanwhile, and until its own first token."""

    chunks: str
    streams: int
    n_prompt: int
    before_p50: float
    beside_p50: float
    beside_p95: float
    beside_max: float
    ttft: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Load:
    """Sends requests to an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rng = np.random.default_rng(0)

    def prompt(self, n: int) -> list[int]:
        return random_prompt(self._rng, self._engine.config.vocab_size, n)

    def streams(self, prompts: list[list[int]], n_tokens: int) -> StreamTimes:
        """Write `n_tokens` after each prompt, all started at once."""
        processor = time.process_time()
        streams = self._started(prompts, n_tokens)
        for stream in streams:
            stream.wait()
        processor = time.process_time() - processor
        return StreamTimes([s.asked for s in streams], [s.times for s in streams], processor)

    def long_prompt(
        self, chunks: str, n_streams: int, n_prompt: int, n_tokens: int
    ) -> LongPromptResult:
        """Let a long prompt arrive once every stream has written a quarter of `n_tokens`."""
        streams = self._started([self.prompt(16) for _ in range(n_streams)], n_tokens)
        while min(len(s.times) for s in streams) < n_tokens // 4:
            time.sleep(0.005)
        late = Stream()
        late.start(self._engine, self.prompt(n_prompt), 1)
        late.wait()
        for stream in streams:
            stream.wait()
        began, ended = late.asked, late.times[0]
        before: list[float] = []
        beside: list[float] = []
        for stream in streams:
            for a, b in pairwise(stream.times):
                (before if b < began else beside if b <= ended else []).append(1e3 * (b - a))
        return LongPromptResult(
            chunks,
            n_streams,
            n_prompt,
            statistics.median(before),
            statistics.median(beside),
            percentile(beside, 95),
            max(beside),
            late.ttft_ms,
        )

    def _started(self, prompts: list[list[int]], n_tokens: int) -> list[Stream]:
        streams = [Stream() for _ in prompts]
        for stream, ids in zip(streams, prompts, strict=True):
            stream.start(self._engine, ids, n_tokens)
        return streams


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(np.array(values), percent))


def random_prompt(rng: np.random.Generator, vocab_size: int, n: int) -> list[int]:
    found: list[int] = rng.integers(0, vocab_size, n).tolist()
    return found
