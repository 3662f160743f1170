"""Client of an upstream server: what the page needs of an engine, from another one's answers."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import msgspec

from app.config import Settings
from app.engine_client import EngineClient, OnEvent, Run, Tokenizer, UnavailableError
from app.protocol.messages import Hello, Status, Upstream
from app.upstream.address import Address
from app.upstream.dialect import OPENAI, ModelList, ServedModel
from app.upstream.lacks import lacks_of, why_not
from app.upstream.request_body import BodyWriter
from app.upstream.run import UpstreamRun
from app.upstream.tgi import Info
from app.upstream.tokenizer import TokenIds, WordTokenizer
from app.upstream.transport import HttpExchange
from gpu import (
    DeviceInfo,
    EngineError,
    EngineInfo,
    EngineLimits,
    EngineStats,
    InvalidRequest,
    MemoryInfo,
    ModelError,
    ModelInfo,
    Places,
    Request,
    SamplingParams,
)
from gpu.inspection.requests import Answer, Question

T = TypeVar("T")

log = logging.getLogger(__name__)

ASK_SECONDS = 10.0
"""Longest silence of the upstream when it is asked for its models."""
RETRY_SECONDS = 2
DEFAULT_CONTEXT = 32768
"""Context assumed for an upstream that does not report its own; `--context` replaces it."""
SEED_BITS = 31


class UpstreamEngine(EngineClient):
    """The engine is another server. It is asked for its model at the start, and again after it
    could not be reached, until it answers.

    `tokenizer`: that of its model, if it is known here.
    """

    def __init__(self, settings: Settings, tokenizer: Tokenizer | None = None) -> None:
        """Raises SettingsError for an address that is none."""
        tokenizer = tokenizer or WordTokenizer()
        super().__init__(tokenizer)
        self.address = Address.of(settings)
        self._settings = settings
        vocab_size = getattr(tokenizer, "vocab_size", 0)
        self._tokens = TokenIds(tokenizer, vocab_size)
        self._places: Places[UpstreamRun] = Places(
            settings.max_num_seqs + settings.queue,
            "texts are being written by the upstream, the most that --max-num-seqs and --queue "
            "allow",
        )
        self._writer: BodyWriter | None = None
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="upstream", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def stats(self) -> EngineStats | None:
        if self.hello is None:
            return None
        paused = [run.paused_since is not None for run in self._places.runs]
        return EngineStats(n_running=paused.count(False), n_paused=paused.count(True))

    # ---- state -------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Ask for the model until there is an answer, and again whenever a run could not reach the
        upstream. One that never had the model is not asked again."""
        state: str = "loading"
        self._set_state(Status("loading", f"asking the upstream at {self.address}"))
        while True:
            self._lost.clear()
            if self._closing.is_set():
                return
            try:
                served = self._ask_model()
            except EngineError as error:
                if state == "loading" and isinstance(error, ModelError | InvalidRequest):
                    self._set_state(Status("failed", str(error)))
                    return
                self._set_state(Status(state, str(error), None, RETRY_SECONDS))  # type: ignore[arg-type]
                self._closing.wait(RETRY_SECONDS)
                continue
            state = "restarting"
            self._publish(served)
            self._lost.wait()

    def _ask_model(self) -> ServedModel:
        """Return the model of `--model`, or the first. Raises ModelError if there is none, and what
        `Exchange.get` raises."""
        models = self._get("/v1/models", ModelList).data
        wanted = self._settings.model
        found = next((each for each in models if wanted in (None, each.id)), None)
        if found is None:
            names = ", ".join(each.id for each in models[:20]) or "none"
            missing = "no model" if wanted is None else f"no model {wanted!r}; it has: {names}"
            raise ModelError(f"the upstream at {self.address} has {missing}")
        if found.dialect is OPENAI:
            # TGI's list of models looks like anybody's.
            with contextlib.suppress(EngineError):
                info = self._get("/info", Info)
                found = ServedModel(info.model_id, "tgi", info.max_total_tokens)
        return found

    def _get(self, path: str, kind: type[T]) -> T:
        exchange = HttpExchange(self.address, ASK_SECONDS)
        try:
            return exchange.get(path, kind)
        finally:
            exchange.release()

    def _publish(self, served: ServedModel) -> None:
        context = self._settings.context or served.context or DEFAULT_CONTEXT
        self._writer = BodyWriter(served.id, served.dialect, self._tokens, context)
        upstream = Upstream(str(self.address), served.dialect.name, lacks_of(self._tokens.exact))
        hello = Hello.of(self._info(served, context), self.chat)
        self._set_state(Status("ready", "ready"), msgspec.structs.replace(hello, upstream=upstream))

    def _info(self, served: ServedModel, context: int) -> EngineInfo:
        """Return the description of the upstream. What it does not report is 0 or empty."""
        settings = self._settings
        return EngineInfo(
            model=ModelInfo(
                name=served.id,
                dtype="",
                kv_dtype="",
                kv_formats={},
                n_layers=0,
                n_heads=0,
                n_kv_heads=0,
                head_dim=0,
                hidden_size=0,
                vocab_size=self._tokens.vocab_size,
                parameters=0,
                eos_ids=tuple(getattr(self.tokenizer, "eos_ids", ())),
            ),
            device=DeviceInfo(str(self.address), "", served.dialect.name, "upstream", False),
            limits=EngineLimits(
                context=context,
                slots=settings.max_num_seqs,
                queue=settings.queue,
                n_blocks=0,
                block_tokens=1,
                block_bytes=0,
                in_flight=0,
            ),
            memory=MemoryInfo(0, 0, 0),
            defaults=SamplingParams(),
            dispatches_per_token=0,
            activations="",
        )

    # ---- runs --------------------------------------------------------------------------------

    def submit(self, request: Request, on_event: OnEvent) -> Run:
        self.require_ready()
        assert self._writer is not None
        if not request.ids:
            raise InvalidRequest("the prompt is empty; give at least one token", "ids")
        seed = request.params.seed
        params = msgspec.structs.replace(
            request.params.validate(), seed=secrets.randbits(SEED_BITS) if seed is None else seed
        )
        request = msgspec.structs.replace(request, params=params)
        writer = self._writer
        while True:
            try:
                run = self._start(request, on_event, writer)
            except InvalidRequest as error:
                # Some servers of this API return fewer log-probabilities, or none.
                fewer = writer.with_fewer_logprobs()
                if "logprobs" not in str(error) or fewer is None:
                    raise
                writer = fewer
            else:
                self._writer = writer  # not before: a refusal may only quote the field
                return run

    def _start(self, request: Request, on_event: OnEvent, writer: BodyWriter) -> Run:
        open_exchange = partial(HttpExchange, self.address, float(self._settings.engine_timeout))

        def on_end(error: EngineError | None) -> None:
            self._places.release(run)
            if isinstance(error, UnavailableError):
                self._lost.set()

        run = UpstreamRun(request, on_event, writer, open_exchange, on_end)
        self._places.take(run)
        try:
            return run.start()
        except BaseException:
            self._places.release(run)
            raise

    # ---- questions ---------------------------------------------------------------------------

    def inspect(self, question: Question, asker: int = 0) -> Future[Answer]:
        raise InvalidRequest(why_not(str(question.__struct_config__.tag)))

    def cancel_questions(self, asker: int) -> None:
        """Do nothing: an upstream is asked no questions."""

    def close(self) -> None:
        self._closing.set()
        self._lost.set()
        for run in self._places.runs:
            run.cancel()
        if self._thread.ident is not None:
            self._thread.join(ASK_SECONDS)
