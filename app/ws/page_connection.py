"""WebSocket of the page: one thread per connection reads, and `app.ws.send_queue` sends.

A message is checked here for its form and for fields that exclude each other. The engine validates
the request itself (`gpu.engine.validation`).
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec
from flask import Flask
from flask_sock import Sock
from simple_websocket import Server
from wsproto.frame_protocol import CloseReason

from app.engine_client import EngineClient
from app.http.client_limits import client, salted
from app.http.connections import max_connections
from app.http.security import browser_session
from app.prompt.conversation import Tool, Turn
from app.prompt.grammar_check import check_grammar
from app.prompt.prompts import prompt_ids
from app.prompt.tokenizing import TokenizeHandler
from app.prompt.tool_calls.writer import AnswerReader
from app.prompt.tools import call_grammar, call_writer, offered_tools, required_tools
from app.prompt.truncation import Room, Truncated, n_keep, read_conversation
from app.prompt.turns import conversation_turns
from app.protocol.messages import (
    MAX_MESSAGE_BYTES,
    MESSAGE_BYTES,
    UPDATE_SECONDS,
    Count,
    Counted,
    Error,
    FromPage,
    Generate,
    Inspect,
    Resume,
    Segment,
    Stop,
    Tokenize,
    Update,
)
from app.ws import websocket
from app.ws.continuation import answer_length, continuation_length, continuation_texts
from app.ws.incoming import BadMessageError, UpdateMerger, decode, given_settings, merge
from app.ws.questions import Questions, error_about
from app.ws.send_queue import SendQueue
from app.ws.sessions import Additions, RequestClock, Sessions
from app.ws.websocket import WebSocket, WebSocketClosed
from gpu import Grammar, InvalidRequest, Request

PATH = "/ws"
MAX_PAGES = 64
ORDER_SECONDS = 0.25
"""Longest wait of another message for the updates before it. An update may have to compute what
it needs, and meanwhile a run must be stopped."""
MAX_TRANSPORT_BYTES = 2 * MAX_MESSAGE_BYTES
"""Size from which a message closes the connection; below it, one too large gets an error."""


class PagePlaces:
    """Places for `most` connections; one client may take three quarters. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._n_pages: Counter[str] = Counter()

    def take(self, client: str) -> str:
        """Take a place; return "", or why there is none."""
        share = max(1, 3 * self._most // 4)
        with self._lock:
            if self._n_pages.total() >= self._most:
                return f"more than {self._most} pages are open; close some"
            if self._n_pages[client] >= share:
                return f"you have {share} pages open, the limit for one browser; close some"
            self._n_pages[client] += 1
        return ""

    def release(self, client: str) -> None:
        """Free a place."""
        with self._lock:
            self._n_pages[client] -= 1
            if not self._n_pages[client]:
                del self._n_pages[client]


class PageConnection:
    """Connection of one page. Runs on the thread of its route."""

    def __init__(
        self,
        ws: WebSocket,
        owner: str,
        engine: EngineClient,
        sessions: Sessions,
        tokenize_handler: TokenizeHandler,
    ) -> None:
        """To be made inside the request, which identifies the client."""
        self._ws = ws
        self._client = client()
        self._owner = owner
        self._engine = engine
        self._sessions = sessions
        self._tokenize_handler = tokenize_handler
        self._send_queue = SendQueue(ws)
        self._questions = Questions(engine, self._send_queue.reply)
        self._updates = UpdateMerger()
        self._updater = ThreadPoolExecutor(1, "updates")
        self._applying: Future[None] | None = None  # the updates that were due last

    def serve(self) -> None:
        """Read and handle messages until the page goes away, then end its questions."""
        self._send_queue.start()
        unlisten = self._engine.listen(self._send_queue.set_status)
        try:
            while True:
                self._handle(self._ws.receive(timeout=self._seconds_left()))
        except WebSocketClosed:
            pass
        finally:
            self._updater.shutdown(wait=False)
            self._questions.close()
            unlisten()
            self._send_queue.close()
            self._ws.finish()
            self._send_queue.join()

    def _handle(self, raw: str | bytes | None) -> None:
        """Handle a message after the updates that are due before it; None: only those."""
        message = None
        if raw is not None:
            try:
                message = decode(raw, self._max_message_bytes)
            except BadMessageError as error:
                self._send_queue.reply(
                    Error("bad_message", str(error), error.id, error.param, error.request)
                )
                return
        seconds = 0.0 if isinstance(message, Update | None) else ORDER_SECONDS
        if self._are_applied(seconds):
            for updates in self._updates.due(before=message):
                update = functools.partial(self._update, updates)
                self._applying = self._updater.submit(self._reply_on_error, updates[0], update)
            self._are_applied(seconds)
        if message is not None:
            self._reply_on_error(message, lambda: self._dispatch(message))

    def _are_applied(self, seconds: float) -> bool:
        """Return whether the updates that were due are applied, or will be within `seconds`. Those
        that come before they are wait, and are merged."""
        return self._applying is None or bool(wait([self._applying], seconds).done)

    def _seconds_left(self) -> float | None:
        """Return the seconds until updates may be due; None when none wait."""
        left = self._updates.seconds_left()
        return left if left is None or self._are_applied(0) else max(left, UPDATE_SECONDS)

    @property
    def _max_message_bytes(self) -> int:
        hello = self._engine.hello
        return hello.limits.message_bytes if hello else MESSAGE_BYTES

    def _reply_on_error(self, message: FromPage, act: Callable[[], None]) -> None:
        """Call `act`; reply to the message with an error if it raises."""
        try:
            act()
        except WebSocketClosed:
            raise
        except Exception as error:
            id, number = getattr(message, "id", ""), getattr(message, "request", None)
            self._send_queue.reply(error_about(error, id, number))

    def _dispatch(self, message: FromPage) -> None:
        match message:
            case Generate():
                self._generate(message)
            case Update():
                self._updates.add(message)
            case Stop(id=id):
                self._updates.drop(id)
                self._sessions.get(self._owner, id).cancel()
            case Resume(id=id, after=after):
                self._send_queue.follow(self._sessions.get(self._owner, id), after)
            case Count(request=number):
                self._send_queue.reply(Counted(number, self._count(message)))
            case Inspect(question=question):
                self._check_grammar(getattr(question, "grammar", None))
                self._questions.inspect(msgspec.structs.replace(message, question=salted(question)))
            case Tokenize():
                self._questions.answer(lambda: self._tokenize_handler.answer(message))
            case Segment():
                self._questions.answer(lambda: self._tokenize_handler.segment(message))

    def _update(self, updates: list[Update]) -> None:
        """Apply updates of one generation together. If the engine refuses their interventions,
        apply each alone, so that a bad update does not undo the good ones sent with it."""
        update = merge(updates)
        generation = self._sessions.get(self._owner, update.id)
        try:
            generation.update(
                update.capture, given_settings(update), update.interventions, update.pace_change
            )
        except InvalidRequest as error:
            if len(updates) == 1 or not error.param.startswith("reach"):
                raise
            for one in updates:
                self._reply_on_error(one, functools.partial(self._update, [one]))

    def _count(self, message: Count) -> int:
        messages = None if message.messages is None else conversation_turns(message.messages)
        tools = offered_tools(message.tools or (), None)
        return len(prompt_ids(self._engine.tokenizer, message.prompt, messages, tools=tools))

    def _generate(self, message: Generate) -> None:
        clock, tokenizer = RequestClock(), self._engine.tokenizer
        tools = offered_tools(message.tools or (), message.tool_choice)
        ids, dropped = self._read_prompt(message, tools)
        grammar = self._grammar_of(message, tools)
        self._check_grammar(grammar)
        if message.spans and message.ids is None:
            raise InvalidRequest(
                "reached names the interventions that ids were computed with; send ids, or leave "
                "reached out",
                "reached",
            )
        clock.prepared = clock.now()
        generation = self._sessions.start(
            self._owner,
            message.id,
            request_of(message, ids, grammar),
            clock=clock,
            n_continued=continuation_length(message),
            additions=Additions(
                dropped=dropped,
                grammar=grammar if message.grammar is None else None,
                reader=self._answer_reader(tools, ids, answer_length(message)),
            ),
            client=self._client,
            tokenizer=tokenizer,
        )
        self._send_queue.follow(generation, after=0)

    def _grammar_of(self, message: Generate, tools: Sequence[Tool]) -> Grammar | None:
        """Return what the text must follow: the message's grammar, or that of the calls that it
        requires, of which the ids of the answer are a part."""
        required = required_tools(tools, message.tool_choice)
        if message.grammar is not None and tools:
            raise InvalidRequest(
                "an answer that follows a grammar cannot call tools; leave tools out, or send "
                'tool_choice: "none"',
                "grammar",
            )
        if not required:
            return message.grammar
        return call_grammar(self._engine.tokenizer, required, parallel=False).after(
            answer_length(message)
        )

    def _answer_reader(
        self, tools: Sequence[Tool], ids: list[int], n_read: int
    ) -> AnswerReader | None:
        """Return the reader of an answer of which the last `n_read` ids are a part."""
        if not tools:
            return None
        tokenizer = self._engine.tokenizer
        reader = AnswerReader(call_writer(tokenizer, tools, parallel=True))
        texts = continuation_texts(tokenizer, ids, n_read)
        for id, text in zip(ids[len(ids) - n_read :], texts, strict=True):
            reader.push(id, text)
        return reader

    def _check_grammar(self, grammar: Grammar | None) -> None:
        if grammar is not None:
            vocab_size = self._engine.require_ready().model.vocab_size
            check_grammar(grammar, self._engine.tokenizer, vocab_size)

    def _read_prompt(self, message: Generate, tools: Sequence[Tool]) -> Truncated:
        """Return the prompt of a generation, without the turns that are too much for the context
        if the message says so."""
        hello = self._engine.require_ready()

        def encode(messages: Sequence[Turn] | None) -> list[int]:
            return prompt_ids(
                self._engine.tokenizer,
                message.prompt,
                messages,
                message.ids,
                continue_final=message.continue_final,
                tools=tools,
            )

        if message.messages is not None:
            room = Room(hello.limits.context, message.params.max_tokens)
            turns = conversation_turns(message.messages)
            return read_conversation(turns, encode, room, message.truncation)
        if message.truncation == "auto":
            raise InvalidRequest(
                "truncation auto applies to messages only; leave it out, or send messages",
                "truncation",
            )
        return Truncated(encode(None))


def request_of(message: Generate, ids: list[int], grammar: Grammar | None) -> Request:
    """Return the engine's request for a message whose prompt is `ids`."""
    return Request(
        ids,
        message.params,
        message.capture,
        message.changes,
        message.interventions,
        message.spans,
        grammar=grammar,
        cache_reuse=message.cache_reuse,
        n_keep=n_keep(message.truncation),
        pace=message.pace,
    )


def register(
    app: Flask, engine: EngineClient, sessions: Sessions, tokenize_handler: TokenizeHandler
) -> None:
    """Add the WebSocket route."""
    websocket.register(app, PATH)
    places = PagePlaces(min(MAX_PAGES, max_connections() * 2 // 3))  # the rest: plain requests

    @Sock(app).route(PATH)  # type: ignore[untyped-decorator]
    def live(server: Server) -> None:
        ws = WebSocket(server, MAX_TRANSPORT_BYTES)
        mine = client()
        if refusal := places.take(mine):
            ws.close(CloseReason.TRY_AGAIN_LATER, refusal)
            ws.finish()
            return
        try:
            PageConnection(ws, browser_session(), engine, sessions, tokenize_handler).serve()
        finally:
            places.release(mine)
