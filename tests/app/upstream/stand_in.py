"""A server that answers as an upstream would, or misbehaves as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = (" a", " fox", " and", " an", " owl", " went", " home", ".")
Answer = Callable[["Handler"], None]


class StandIn:
    """Upstream on a free port. `bodies`: requests it got; `answer` replaces how it answers POST,
    and `models` what it serves. `gone` is set when a client went away in mid-stream."""

    def __init__(self, owned_by: str = "somebody") -> None:
        self.models: Any = {"data": [{"id": "stand-in", "owned_by": owned_by}]}
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answer = lambda handler: handler.stream(WORDS)
        self.answer_get: Answer = lambda handler: handler.json(200, self.models)
        self.gone = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.stand_in = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    body: dict[str, Any]

    @property
    def stand_in(self) -> StandIn:
        return self.server.stand_in  # type: ignore[attr-defined, no-any-return]

    def log_message(self, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self.stand_in.paths.append(self.path)
        self.stand_in.headers.append(dict(self.headers))
        self.stand_in.answer_get(self)

    def do_POST(self) -> None:
        self.body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.stand_in.paths.append(self.path)
        self.stand_in.headers.append(dict(self.headers))
        self.stand_in.bodies.append(self.body)
        try:
            self.stand_in.answer(self)
        except OSError:
            self.stand_in.gone.set()

    # ---- answers -----------------------------------------------------------------------------

    def json(self, status: int, body: Any, **headers: str) -> None:
        self.raw(status, json.dumps(body).encode(), "application/json", **headers)

    def raw(self, status: int, data: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send_event(self, event: Any) -> None:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        self.wfile.write(b"data: " + data + b"\n\n")

    def stream(
        self,
        words: Sequence[str],
        *,
        finish: str | None = "stop",
        delay: float = 0.0,
        logprobs: bool = True,
        usage: dict[str, Any] | None = None,
    ) -> None:
        """Answer with `words`, at most `max_tokens` of them; `finish` None breaks off."""
        limit = self.body.get("max_tokens", 10**6)
        self.begin_stream()
        self.wfile.write(b": still here\n\n")
        for word in words[:limit]:
            self.send_event({"choices": [self.choice(word, logprobs)]})
            time.sleep(delay)
        if finish is None:
            return
        finish = "length" if limit < len(words) else finish
        self.send_event({"choices": [{**self.choice("", False), "finish_reason": finish}]})
        self.send_event({"choices": [], "usage": usage or {"prompt_tokens": 7}})
        self.send_event(b"[DONE]")

    def choice(self, word: str, logprobs: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        chat = "messages" in self.body
        choice |= {"delta": {"content": word}} if chat else {"text": word}
        if not logprobs or not self.body.get("logprobs"):
            return choice
        if not chat:
            top = {word: -0.25, " the": -2.0}
            told = {"tokens": [word], "token_logprobs": [-0.25], "top_logprobs": [top]}
            return choice | {"logprobs": told}
        best = [self.entry(" the", -0.1), self.entry(word, -2.5)]
        return choice | {"logprobs": {"content": [{**best[1], "top_logprobs": best}]}}

    @staticmethod
    def entry(word: str, logprob: float) -> dict[str, Any]:
        return {"token": word, "logprob": logprob, "bytes": list(word.encode())}


def forever() -> Iterator[str]:
    """Yield words without an end."""
    while True:
        yield from WORDS
