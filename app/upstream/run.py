"""Run whose tokens come from an upstream.

A thread reads the stream. A change of the settings ends the stream and begins another one from the
text so far, since no server of this API can change a request that runs. What it computed is in its
prefix cache, so that this costs little more than a round trip.

No server of this API can write slower either. A paced run reads the stream at its pace, and the
upstream writes ahead as far as the connection takes it; a change of the settings discards that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from app.engine_client import OnEvent
from app.upstream.chunks import Chunk, WrittenToken, tokens_of
from app.upstream.request_body import BodyWriter
from app.upstream.tgi import chunks_of
from app.upstream.transport import HttpExchange, stream_error
from gpu import (
    ENDED_IN_PAUSE,
    NO_INTERVENTIONS,
    EngineError,
    Interventions,
    InvalidRequest,
    PaceChange,
    Request,
    RunPace,
    ScheduledUpdate,
    StopMatcher,
)
from gpu.events import (
    Accepted,
    CandidateText,
    Done,
    Event,
    Prefill,
    Reason,
    StepTimes,
    Timings,
    Token,
    TokenText,
    Updated,
)

OPEN_SECONDS = 1.0
"""Time that a new run waits for the upstream, so that a refusal is the answer to the request and
not the end of a text. A long prompt takes longer than this and is accepted meanwhile."""
TIMINGS = tuple(field.name for field in msgspec.structs.fields(Timings))


class Restarted(Exception):
    """The stream was ended by a change of settings."""


class UpstreamRun:
    """Run of a request. `open_exchange` returns a new exchange with the upstream; `on_end` is
    called once with the error that ended the run, or None."""

    def __init__(
        self,
        request: Request,
        on_event: OnEvent,
        writer: BodyWriter,
        open_exchange: Callable[[], HttpExchange],
        on_end: Callable[[EngineError | None], None],
    ) -> None:
        self._request = request
        self._capture = request.capture
        self._on_event = on_event
        self._writer = writer
        self._open_exchange = open_exchange
        self._on_end = on_end
        self._lock = threading.RLock()
        self._woken = threading.Condition(self._lock)
        self._pace = RunPace(request.pace, 0)
        self._paced = 0.0  # seconds in which tokens waited for their time, and before the first
        self._paced_before_first = 0.0
        self._opened = threading.Event()
        self._refusal: EngineError | None = None
        self._end_message = ""
        self._accepted = self._cancelled = self._restart = False
        self._exchange: HttpExchange | None = None
        self._written: list[int] = []
        self._n_rest = 0  # of them, those that the upstream did not count: `WrittenToken.is_rest`
        self._scheduled = deque(sorted(request.updates, key=lambda update: update.index))
        self._began = time.perf_counter()
        self._first = self._last = 0.0  # seconds from the beginning to the first and last token
        self._reason: Reason | None = None
        self._told: Chunk = Chunk()  # the last usage and timings
        self._n_before_told = 0  # tokens of the answer in the prompt of their stream

    def start(self) -> UpstreamRun:
        """Begin, and return once the upstream has accepted the request or is taking its time.
        Raises what `Exchange.open_stream` raises, and what `BodyWriter.write` raises."""
        self._apply_scheduled()
        self._writer.write(self._request)
        threading.Thread(target=self._work, name="upstream run", daemon=True).start()
        self._opened.wait(OPEN_SECONDS)
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            self._accept()
        return self

    # ---- as its caller uses it ---------------------------------------------------------------

    def update(
        self,
        *,
        capture: bool | None = None,
        interventions: Interventions | None = None,
        pace: PaceChange | None = None,
        **changes: Any,
    ) -> int:
        """Change settings from the next token on; return its index."""
        with self._lock:
            if self._reason is not None:
                raise InvalidRequest("this run has ended; its settings cannot change any more")
            if interventions not in (None, NO_INTERVENTIONS):
                raise InvalidRequest(
                    "an upstream server cannot change heads, layers or adapters while it writes",
                    "reach",
                )
            if pace is None or changes or capture is not None:
                self._change(ScheduledUpdate(len(self._written), changes, capture))
            if pace is not None:
                self._change_pace(pace.validate())
            self._woken.notify()
            return len(self._written)

    @property
    def paused_since(self) -> float | None:
        """Time of the last press or change of pace if the run is paused now, else None."""
        return None if self._pace.may_write(len(self._written)) else self._pace.changed_at

    def end_paused(self) -> None:
        """End the run if it is paused: others need its place."""
        with self._lock:
            if self.paused_since is not None and self._reason is None:
                self._end_message = ENDED_IN_PAUSE
                self.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            self._woken.notify()
            if self._exchange is not None:
                self._exchange.close()

    # ---- settings ----------------------------------------------------------------------------

    def _change(self, update: ScheduledUpdate) -> None:
        """Apply a change; if it is one of the sampling, the stream has to begin again."""
        if update.params:
            params = self._request.params.updated(update.params)
            if not self._writer.can_go_on(self._request):
                raise InvalidRequest(
                    f"this upstream ({self._writer.dialect.name}) cannot go on with an answer "
                    "that has begun, so its settings cannot change; they act on the next answer"
                )
            request = replace(self._request, params=params)
            self._body(request)
            self._request = request
            self._restart = True
            if self._exchange is not None and self._written:
                self._exchange.close()
        self._capture = self._capture if update.capture is None else update.capture
        if self._accepted:
            index = len(self._written)
            self._on_event(Updated(index, self._request.params, self._capture))

    def _change_pace(self, change: PaceChange) -> None:
        before, index = self._pace.rate, len(self._written)
        self._pace.change(change, index)
        if self._pace.rate != before and self._accepted:
            params, rate = self._request.params, self._pace.rate
            self._on_event(Updated(index, params, self._capture, pace=rate))

    def _apply_scheduled(self) -> None:
        """Apply the updates that act on the next token."""
        while self._scheduled and self._scheduled[0].index <= len(self._written):
            self._change(self._scheduled.popleft())

    # ---- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        error: EngineError | None = None
        try:
            while self._reason is None:
                try:
                    self._read_stream()
                except Restarted:
                    continue
        except EngineError as failure:
            error = None if self._cancelled else failure
        except Exception as failure:
            error = EngineError(f"the server made a mistake ({type(failure).__name__})")
            raise
        finally:
            self._end(error)

    def _read_stream(self) -> None:
        """Read one stream to its end. Raises Restarted if it was ended by a change of settings."""
        exchange = self._open_exchange()
        try:
            with self._lock:
                self._restart = False
                if self._cancelled:
                    self._reason = "cancelled"
                    return
                if self._is_full:
                    self._reason = "length"
                    return
                self._exchange = exchange
                path, body = self._body(self._request)
            self._read(exchange, path, body)
        except EngineError:
            if self._restart and not self._cancelled:
                raise Restarted from None
            raise
        finally:
            with self._lock:
                self._exchange = None
            exchange.release()

    @property
    def _n_counted(self) -> int:
        """Tokens of the answer as the upstream counts them."""
        return len(self._written) - self._n_rest

    @property
    def _is_full(self) -> bool:
        """Whether the upstream has written as many tokens as were asked for."""
        return self._n_counted >= self._request.params.max_tokens

    def _body(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Return route and body of a stream that goes on after what is written."""
        params = request.params
        params = replace(params, max_tokens=params.max_tokens + self._n_rest)
        return self._writer.write(replace(request, params=params), self._written)

    def _read(self, exchange: HttpExchange, path: str, body: dict[str, Any]) -> None:
        dialect = self._writer.dialect
        stops = StopMatcher[tuple[int, WrittenToken]](
            self._request.params.stop if dialect.native else ()
        )
        n_before = self._n_counted
        response = exchange.open_stream(path, body)
        if not dialect.native:
            self._open()
        for chunk in chunks_of(exchange, response, path):
            if chunk.error is not None:
                raise stream_error(chunk.error, begun=bool(self._written) or not dialect.native)
            self._open()
            if chunk.usage is not None or chunk.timings is not None:
                self._told, self._n_before_told = chunk, n_before
            for choice in chunk.choices[:1]:
                for id, token in self._tokens(chunk):
                    found, stopped = stops.push((id, token), token.text)
                    self._write_all(found)
                    if stopped:
                        self._reason = "stop"
                        return
                if choice.finish_reason is not None:
                    self._write_all(stops.flush())
                    self._reason = self._reason_of(choice.finish_reason, choice.stop_reason)
        if self._restart and not self._cancelled:
            self._reason = None
            raise Restarted
        if self._reason is None:
            self._reason = "eos"  # a server that only says [DONE]

    def _open(self) -> None:
        """The upstream has accepted the request."""
        if not self._opened.is_set():
            with self._lock:
                self._accept()
            self._opened.set()

    def _write_all(self, tokens: list[tuple[tuple[int, WrittenToken], str]]) -> None:
        """Hand on tokens with the texts that a stop string leaves them."""
        for (id, token), text in tokens:
            self._write(id, token if token.text == text else dataclasses.replace(token, text=text))

    def _tokens(self, chunk: Chunk) -> Iterator[tuple[int, WrittenToken]]:
        """Yield the tokens of a chunk with their ids."""
        choice, tokens = chunk.choices[0], self._writer.tokens
        found = tokens_of(choice)
        if not found and choice.new_text:
            yield from tokens.split(choice.new_text, choice.token_ids)
            return
        for token in found:
            unsaid = not token.text and not choice.new_text
            if tokens.words is not None and unsaid and choice.finish_reason is not None:
                yield tokens.words.eos_ids[0], token  # its name is no part of the text
            elif token.piece or token.data or token.id is not None:
                yield tokens.require(token), token

    def _write(self, id: int, token: WrittenToken) -> None:
        """Hand on a token at its time, unless a change of settings came before it."""
        with self._lock:
            paced = self._wait_turn()
            if self._restart:
                raise Restarted
            now = time.perf_counter() - self._began
            index = len(self._written)
            if self._is_full and not token.is_rest:
                asked = self._request.params.max_tokens
                raise EngineError(
                    f"the upstream wrote more than the {asked} tokens that were asked for"
                )
            if not self._first:
                self._first = now
                self._tell_prefill()
            interval = 1e3 * (now - self._last)
            self._last = now
            self._written.append(id)
            self._n_rest += token.is_rest
            self._on_event(self._event(index, id, token, interval, 1e3 * paced))
            self._apply_scheduled()

    def _wait_turn(self) -> float:
        """Wait until the next token may be handed on; return for how many seconds. The caller holds
        the lock."""
        began = time.perf_counter()
        while not (self._restart or self._cancelled):
            may_write = self._pace.may_write(len(self._written))
            if may_write and self._pace.is_due:
                self._pace.submitted()
                break
            left = self._pace.due_at - time.perf_counter()
            self._woken.wait(max(0.0, left) if may_write else None)
        seconds = time.perf_counter() - began
        self._paced += seconds
        if not self._written:
            self._paced_before_first += seconds
        return seconds

    @functools.cached_property
    def _n_top(self) -> int:
        return self._writer.n_top(self._request)

    def _event(
        self, index: int, id: int, token: WrittenToken, interval: float, paced: float
    ) -> Token:
        tokens = self._writer.tokens
        candidates = tuple(
            CandidateText(other, one.piece, math.exp(one.logprob), None, "")
            for one in token.top
            if (other := tokens.of(one)) is not None
        )
        eos_ids = getattr(tokens.tokenizer, "eos_ids", ())
        better = [one for one in token.top if one.logprob > (token.logprob or 0.0)]
        n_known = min(len(token.top), self._n_top)
        known = token.logprob is not None and len(better) < n_known
        return Token(
            index=index,
            id=id,
            text=token.text,
            logprob=math.nan if token.logprob is None else token.logprob,
            probability=None,
            rank=len(better) if known else None,
            n_kept=None,
            draw=None,
            mass=None,
            candidates=candidates,
            times=StepTimes(interval, None, 0.0, 0.0, 0.0, paced),
            kv_blocks=0,
            eos=id in eos_ids and not token.text,
        )

    def _tell_prefill(self) -> None:
        n = len(self._request.ids)
        self._on_event(Prefill(n, n, 0, 1e3 * self._first, None, 0))

    # ---- the beginning and the end -----------------------------------------------------------

    def _accept(self) -> None:
        if self._accepted:
            return
        self._accepted = True
        request, tokenizer = self._request, self._writer.tokens.tokenizer
        prompt = tuple(TokenText(id, tokenizer.piece(id)) for id in request.ids)
        context = self._writer.context
        self._on_event(Accepted(prompt, request.params, self._capture, 0, context))

    def _reason_of(self, finish: str, stop_reason: int | str | None) -> Reason:
        if finish == "length":
            return "length" if self._is_full else "context"
        stopped = isinstance(stop_reason, str)
        return "stop" if stopped or finish != "stop" else "eos"

    def _end(self, error: EngineError | None) -> None:
        with self._lock:
            if self._cancelled and error is None:
                self._reason = "cancelled"
            refused = error is not None and not self._accepted
            if refused:
                self._refusal = error
            else:
                self._accept()
                reason: Reason = "error" if error is not None else self._reason or "eos"
                self._reason = reason
                message = self._end_message if error is None else str(error)
                event: Event = Done(
                    reason, self._n_prompt, len(self._written), self._timings(), message
                )
        self._on_end(error)
        if not refused:
            self._on_event(event)
        self._opened.set()

    @property
    def _n_prompt(self) -> int:
        """Tokens of the prompt as the upstream counts them, if it says so."""
        usage = self._told.usage
        if usage is None or usage.prompt_tokens < self._n_before_told:
            return len(self._request.ids)
        return usage.prompt_tokens - self._n_before_told

    def _timings(self) -> Timings:
        """Return what the upstream said, unless it was about a part of the answer only, and what
        was measured here."""
        n, first = len(self._written), self._first
        first -= self._paced_before_first
        seconds = self._last - self._paced - first
        told = Chunk() if self._n_before_told else self._told
        cached = 0 if told.usage is None else told.usage.n_cached
        n_computed = max(0, self._n_prompt - cached)
        measured = Timings(
            cache_n=cached,
            prompt_n=n_computed,
            prompt_ms=1e3 * first,
            prompt_per_second=n_computed / first if first else 0.0,
            predicted_n=n,
            predicted_ms=1e3 * seconds,
            predicted_per_second=(n - 1) / seconds if seconds else 0.0,
            queue_ms=0.0,
            ttft_ms=1e3 * first,
            tpot_ms=1e3 * seconds / max(1, n - 1),
            paced_ms=1e3 * self._paced,
        )
        said = {k: v for k, v in (told.timings or {}).items() if k in TIMINGS and _is_measured(v)}
        try:
            return msgspec.convert(msgspec.structs.asdict(measured) | said, Timings)
        except msgspec.ValidationError:
            return measured


def _is_measured(value: Any) -> bool:
    """Can it be a count or a time, or a list of them? Metrics that only grow take nothing less."""
    if isinstance(value, list):
        return all(map(_is_measured, value))
    return isinstance(value, int | float) and 0 <= value < math.inf
