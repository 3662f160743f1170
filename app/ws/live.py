"""The WebSocket: reads, validates, hands over. The thread that serves the route reads; what is
sent goes through `app.outgoing`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from flask import Flask
from flask_sock import Sock
from simple_websocket import Server
from wsproto.frame_protocol import CloseReason

from app import websocket
from app.connections import most_connections
from app.engines import EngineClient
from app.inbox import BadMessageError, PendingUpdates, changes_of, decode
from app.outgoing import Outgoing
from app.prompts import prompt_ids
from app.protocol import (
    MAX_MESSAGE_BYTES,
    MESSAGE_BYTES,
    Count,
    Counted,
    Error,
    FromPage,
    Generate,
    Inspect,
    Resume,
    Stop,
    Tokenize,
    Update,
)
from app.questions import Questions, error_about
from app.security import browser_session
from app.sessions import RequestClock, Sessions
from app.shares import client
from app.tokenizing import Tokenizing
from app.websocket import WebSocket, WebSocketClosed
from app.written import checked_written
from gpu import Interventions, InvalidRequest, encode_interventions, expect_in_turn

PATH = "/ws"
MAX_CONNECTIONS = 64
TRANSPORT_MESSAGE_BYTES = 2 * MAX_MESSAGE_BYTES
"""Past this the transport closes the connection; up to it, too large is answered by an error."""


class Connection:
    """One page, read on the route's thread."""

    def __init__(
        self,
        ws: WebSocket,
        owner: str,
        engine: EngineClient,
        sessions: Sessions,
        tokenizing: Tokenizing,
    ) -> None:
        """Within the request, which tells whose share the generations take."""
        self._ws = ws
        self._client = client()
        self._owner = owner
        self._engine = engine
        self._sessions = sessions
        self._tokenizing = tokenizing
        self._out = Outgoing(ws)
        self._questions = Questions(engine, self._out.reply)
        self._updates = PendingUpdates()

    def serve(self) -> None:
        """Read until the page goes away. After this, nothing of it is left."""
        self._out.start()
        unlisten = self._engine.listen(self._out.state)
        try:
            while True:
                self._handle(self._ws.receive(timeout=self._updates.seconds_left()))
        except WebSocketClosed:
            pass
        finally:
            self._questions.close()
            unlisten()
            self._out.close()
            self._ws.finish()
            self._out.join()

    def _handle(self, raw: str | bytes | None) -> None:
        """Carry out a message; None is only a look at the updates that wait."""
        message = None
        if raw is not None:
            try:
                message = decode(raw, self._most_bytes)
            except BadMessageError as error:
                self._out.reply(
                    Error("bad_message", str(error), error.id, error.param, error.request)
                )
                return
        for update in self._updates.due(before=message):
            self._guarded(update, functools.partial(self._update, update))
        if message is not None:
            self._guarded(message, lambda: self._dispatch(message))

    @property
    def _most_bytes(self) -> int:
        hello = self._engine.hello
        return hello.limits.message_bytes if hello else MESSAGE_BYTES

    def _guarded(self, message: FromPage, act: Callable[[], None]) -> None:
        """Answer what goes wrong with an error about the message."""
        try:
            act()
        except WebSocketClosed:
            raise
        except Exception as error:
            id, number = getattr(message, "id", ""), getattr(message, "request", None)
            self._out.reply(error_about(error, id, number))

    def _dispatch(self, message: FromPage) -> None:
        match message:
            case Generate():
                self._generate(message)
            case Update():
                self._check_reach(message.reach)
                self._updates.take(message)
            case Stop(id=id):
                self._sessions.get(self._owner, id).cancel()
            case Resume(id=id, after=after):
                self._out.follow(self._sessions.get(self._owner, id), after)
            case Count(request=number):
                ids = prompt_ids(self._engine.tokenizer, message.prompt, message.messages)
                self._out.reply(Counted(number, len(ids)))
            case Inspect():
                self._questions.inspect(message)
            case Tokenize():
                self._questions.answer(lambda: self._tokenizing.of(message))

    def _check_reached(self, message: Generate, n_prompt: int) -> None:
        """Raises `InvalidRequest` for what cannot have acted on the tokens of a message."""
        if message.reached and message.ids is None:
            raise InvalidRequest("reached says what ids were computed under; give ids", "reached")
        expect_in_turn(message.reached, message.reach, n_prompt - 1)
        for one in message.reached:
            self._check_reach(one.reach, n_prompt, "reached")

    def _check_reach(
        self, reach: Interventions | None, n_prompt: int | None = None, param: str = "reach"
    ) -> None:
        """Raises `InvalidRequest` for interventions that the model cannot be given."""
        if reach is not None:
            model = self._engine.require_ready().model
            encode_interventions(
                reach,
                model,
                self._engine.tokenizer.encode,
                param=param,
                n_prompt=n_prompt,
                loras=[lora.name for lora in model.loras],
            )

    def _update(self, update: Update) -> None:
        live = self._sessions.get(self._owner, update.id)
        live.update(update.capture, changes_of(update), update.reach)

    def _generate(self, message: Generate) -> None:
        clock = RequestClock()
        self._engine.require_ready()
        params = message.params.validate()
        ids = prompt_ids(
            self._engine.tokenizer,
            message.prompt,
            message.messages,
            message.ids,
            continue_final=message.continue_final,
        )
        self._check_reach(message.reach, len(ids))
        self._check_reached(message, len(ids))
        clock.prepared = clock.now()
        live = self._sessions.start(
            self._owner,
            message.id,
            ids,
            params,
            message.capture,
            clock,
            script=message.changes,
            n_written=checked_written(message),
            reach=message.reach,
            reached=message.reached,
            client=self._client,
        )
        self._out.follow(live, after=0)


def register(app: Flask, engine: EngineClient, sessions: Sessions, tokenizing: Tokenizing) -> None:
    """Add the WebSocket route."""
    websocket.register(app, PATH)
    most = min(MAX_CONNECTIONS, most_connections() * 2 // 3)  # the rest is for plain requests
    slots = threading.BoundedSemaphore(most)

    @Sock(app).route(PATH)  # type: ignore[untyped-decorator]
    def live(server: Server) -> None:
        ws = WebSocket(server, TRANSPORT_MESSAGE_BYTES)
        if not slots.acquire(blocking=False):
            ws.close(CloseReason.TRY_AGAIN_LATER, f"more than {most} pages are open; close some")
            ws.finish()
            return
        try:
            Connection(ws, browser_session(), engine, sessions, tokenizing).serve()
        finally:
            slots.release()
