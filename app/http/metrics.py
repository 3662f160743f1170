"""`/metrics` for Prometheus: runs and tokens as the server saw them, and what the engine reported.

A metric with the meaning of one of vLLM's has its name, after `tokenglass:`. The engine reports its
own figures once a second, so a scrape never waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flask import Flask, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from app.engine_client import EngineClient, OnEvent
from gpu import EngineStats
from gpu.events import Accepted, Done, Event, Token

PREFIX = "tokenglass:"
TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5, 10, 20, 40)
INTER_TOKEN_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5,
)  # fmt: skip
LATENCY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)

Metric = GaugeMetricFamily | CounterMetricFamily


class RunMetrics:
    """Counters and histograms of all runs of this server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(PREFIX + name, text, buckets=buckets, registry=registry)

        self._registry = registry
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = counter("generation_tokens", "Tokens that were written.")
        self.ended = counter(
            "request_success", "Runs that ended, by the reason.", ("finished_reason",)
        )
        self.drafts = counter(
            "spec_decode_num_draft_tokens", "Drafts that speculative decoding verified."
        )
        self.accepted_drafts = counter(
            "spec_decode_num_accepted_tokens", "Drafts that speculative decoding accepted."
        )
        self.ttft = histogram(
            "time_to_first_token_seconds", "Time from request to first token.", TTFT_BUCKETS
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Time between two tokens.", INTER_TOKEN_BUCKETS
        )
        self.latency = histogram(
            "e2e_request_latency_seconds", "Time from request to end.", LATENCY_BUCKETS
        )
        self.queue_time = histogram(
            "request_queue_time_seconds", "Time that a run waited for a slot.", LATENCY_BUCKETS
        )

    def watch(self, on_event: OnEvent) -> OnEvent:
        """Return a receiver of a new run's events that measures them and hands them on."""
        return _WatchedRun(self, on_event)

    def count_kept(self, kept: Callable[[], tuple[int, int]]) -> None:
        """Export what `kept` returns: the number of generations kept for pages, and their bytes."""
        self._registry.register(KeptMetrics(kept))


@dataclass(slots=True)
class _WatchedRun:
    metrics: RunMetrics
    on_event: OnEvent
    asked: float = field(default_factory=time.monotonic)

    def __call__(self, event: Event) -> None:
        match event:
            case Token():
                self._count_token(event)
            case Accepted():
                self.metrics.prompt_tokens.inc(len(event.prompt))
            case Done():
                self._count_end(event)
        self.on_event(event)

    def _count_token(self, token: Token) -> None:
        metrics, seconds = self.metrics, token.times.interval / 1e3
        metrics.generation_tokens.inc()
        (metrics.inter_token if token.index else metrics.ttft).observe(seconds)

    def _count_end(self, done: Done) -> None:
        metrics = self.metrics
        metrics.ended.labels(done.reason).inc()
        metrics.latency.observe(time.monotonic() - self.asked)
        metrics.queue_time.observe(done.timings.queue_ms / 1e3)
        metrics.drafts.inc(done.timings.draft_n)
        metrics.accepted_drafts.inc(done.timings.draft_n_accepted)


class KeptMetrics(Collector):
    """Generations that pages may resume."""

    def __init__(self, kept: Callable[[], tuple[int, int]]) -> None:
        self._kept = kept

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus_client asks for them."""
        n, n_bytes = self._kept()
        yield _gauge("kept_generations", "Generations that are kept for pages.", n)
        yield _gauge("kept_generations_bytes", "Bytes of their messages.", n_bytes)


class EngineMetrics(Collector):
    """Figures of the engine's last heartbeat. Without an engine there are none but `engine_up`."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, as prometheus_client asks for them."""
        stats = self._engine.stats if self._engine.hello is not None else None
        yield _gauge("engine_up", "1 if the engine is ready.", float(stats is not None))
        if stats is not None:
            yield from _engine_metrics(stats)


def _engine_metrics(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("num_requests_running", "Runs that have a slot.", stats.n_running)
    yield _gauge("num_requests_waiting", "Runs that wait for a slot.", stats.n_waiting)
    yield _gauge("num_requests_paused", "Runs that are paused.", stats.n_paused)
    yield _gauge(
        "kv_cache_usage_perc",
        "Share of the KV blocks that runs have, from 0 to 1.",
        stats.used_blocks / max(1, stats.n_blocks),
    )
    n_on_device = stats.reused_tokens - stats.loaded_tokens
    yield _counter(
        "prefix_cache_queries", "Prompt tokens looked up in the cache.", stats.prompt_tokens
    )
    yield _counter("prefix_cache_hits", "Prompt tokens found in the cache.", n_on_device)
    yield _counter(
        "num_preemptions", "Times that a run gave its blocks to another.", stats.n_preemptions
    )
    if stats.n_host_blocks:
        yield from _offload_metrics(stats, stats.prompt_tokens - n_on_device)


def _offload_metrics(stats: EngineStats, n_missed: int) -> Iterator[Metric]:
    """Yield what `--kv-offload` does; `n_missed` prompt tokens were not found on the device."""
    yield _counter(
        "external_prefix_cache_queries", "Prompt tokens looked up in host memory.", n_missed
    )
    yield _counter(
        "external_prefix_cache_hits", "Prompt tokens found in host memory.", stats.loaded_tokens
    )
    yield _gauge(
        "kv_offload_cpu_cache_usage_perc",
        "Share of the host memory for KV blocks that is used, from 0 to 1.",
        stats.used_host_blocks / stats.n_host_blocks,
    )
    moved = CounterMetricFamily(
        PREFIX + "kv_offload_total_bytes",
        "Bytes of KV blocks copied between device and host memory.",
        labels=["transfer_type"],
    )
    moved.add_metric(["GPU_to_CPU"], stats.stored_bytes)
    moved.add_metric(["CPU_to_GPU"], stats.loaded_bytes)
    yield moved


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, value)


def register(app: Flask, engine: EngineClient) -> RunMetrics:
    """Add `/metrics`; return the metrics that runs are to be counted in."""
    registry = CollectorRegistry()
    registry.register(EngineMetrics(engine))
    runs = RunMetrics(registry)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)

    return runs
