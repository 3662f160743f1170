"""HTTP to an upstream: bounded answers and server-sent events, with errors for people.

`http.client` follows no redirect and reads no proxy settings, so requests and the key go to the
host that the command line names and nowhere else.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from app.engine_client import UnavailableError
from app.upstream.address import Address
from gpu import EngineError, InvalidRequest, QueueFull

CONNECT_SECONDS = 10.0
MAX_BODY_BYTES = 4 << 20
MAX_ERROR_BYTES = 64 << 10
MAX_EVENT_BYTES = 1 << 20
MAX_STREAM_BYTES = 512 << 20
"""A token with twenty candidates takes about two thousand bytes."""
MAX_SHOWN = 300
DONE = b"[DONE]"

T = TypeVar("T")


class HttpExchange:
    """One request and its answer. `close` may be called on any thread and interrupts the others.

    `silence_seconds`: longest time without a byte of the answer.
    """

    def __init__(self, address: Address, silence_seconds: float) -> None:
        self._address = address
        self._silence_seconds = silence_seconds
        self._lock = threading.Lock()
        self._closed = False
        self._socket: socket.socket | None = None
        kind = (
            http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(address.host, address.port, timeout=CONNECT_SECONDS)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the exchange: the upstream sees that its client has gone."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def get(self, path: str, kind: type[T]) -> T:
        """Return the answer to a GET, decoded. Raises what `stream` raises."""
        with self._errors():
            response = self._open("GET", path, None)
            body = response.read(MAX_BODY_BYTES + 1)
            if len(body) > MAX_BODY_BYTES:
                raise self._nonsense(f"an answer to {path} of more than {MAX_BODY_BYTES:,} bytes")
            return self._decode(body, kind)

    def open_stream(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        """Send a POST and return its answer once the upstream has accepted it.

        Raises InvalidRequest for a request that it refuses, QueueFull if it is busy, and
        UnavailableError if it cannot be reached, refuses the key, or answers what no server of
        this API answers.
        """
        with self._errors():
            response = self._open("POST", path, body)
            kind = response.headers.get_content_type()
            if kind != "text/event-stream":
                raise self._nonsense(f"{kind} where a stream of events was expected")
            return response

    def events(self, response: http.client.HTTPResponse, kind: type[T]) -> Iterator[T]:
        """Yield the events of a stream up to `[DONE]`. Raises what `open_stream` raises, and
        UnavailableError for a stream that breaks off."""
        n_bytes = 0
        with self._errors():
            while line := response.readline(MAX_EVENT_BYTES + 1):
                n_bytes += len(line)
                if len(line) > MAX_EVENT_BYTES or n_bytes > MAX_STREAM_BYTES:
                    raise self._nonsense("more bytes than a text can have")
                if not line.startswith(b"data:"):
                    continue  # a comment that keeps the connection alive, or the end of an event
                data = line[5:].strip()
                if data == DONE:
                    return
                yield self._decode(data, kind)
        raise self._broken_off()

    # ---- one exchange ------------------------------------------------------------------------

    def _open(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        headers = {"Accept": "text/event-stream" if body is not None else "application/json"}
        if self._address.key is not None:
            headers["Authorization"] = f"Bearer {self._address.key}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        self._connection.connect()
        with self._lock:
            self._socket = self._connection.sock
            if self._closed:
                raise ConnectionAbortedError("it was cancelled")
        self._socket.settimeout(self._silence_seconds)
        self._connection.request(method, self._address.path + path, data, headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise self._refusal(response, path)
        return response

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the connection into errors for people, and release it on any."""
        try:
            yield
        except TimeoutError:
            raise self._unreachable(f"nothing came for {self._silence_seconds:g} s") from None
        except http.client.RemoteDisconnected:  # it ends, or a proxy stands in front of nobody
            raise self._unreachable("it closed the connection without an answer") from None
        except http.client.IncompleteRead:
            raise self._broken_off() from None
        except http.client.HTTPException as error:
            raise self._nonsense(f"no HTTP ({type(error).__name__})") from None
        except OSError as error:
            raise self._unreachable(error.strerror or str(error)) from None
        finally:
            pass

    def release(self) -> None:
        """Free the connection. To be called on the thread that uses it."""
        self._connection.close()
        with self._lock:
            self._socket = None
            self._closed = True

    # ---- errors ------------------------------------------------------------------------------

    def _unreachable(self, why: str) -> UnavailableError:
        return UnavailableError(
            f"the upstream at {self._address} cannot be reached ({why}); check that it runs there"
        )

    def _broken_off(self) -> UnavailableError:
        return UnavailableError(f"the answer of the upstream at {self._address} broke off")

    def _nonsense(self, what: str) -> UnavailableError:
        return UnavailableError(
            f"the upstream at {self._address} sent {what}; expected an OpenAI-compatible server"
        )

    def _decode(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._nonsense(f"{_shown(data.decode('utf-8', 'replace'))} ({error})") from None

    def _refusal(self, response: http.client.HTTPResponse, path: str) -> EngineError:
        """Return the error for an answer with another status than 200."""
        status = response.status
        if 300 <= status < 400:
            return UnavailableError(
                f"the upstream at {self._address} redirects to "
                f"{_shown(response.headers.get('Location') or 'nowhere')}, which is not followed; "
                "if you trust that address, give it as --upstream"
            )
        said = error_message(response.read(MAX_ERROR_BYTES))
        words = f": {said}" if said else ""
        match status:
            case 401 | 403:
                return UnavailableError(
                    f"the upstream at {self._address} refuses the key (HTTP {status}{words}); set "
                    "TOKENGLASS_UPSTREAM_KEY in the environment of this server"
                )
            case 404:
                return UnavailableError(
                    f"the upstream at {self._address} has no {path} (HTTP 404{words}); expected "
                    "an OpenAI-compatible server, and with --model one of its models"
                )
            case 429:
                after = response.headers.get("Retry-After")
                wait = f"try again in {after} s" if (after or "").isdigit() else "try again later"
                return QueueFull(f"the upstream at {self._address} is busy{words}; {wait}")
            case 400 | 413 | 422:
                return InvalidRequest(f"the upstream refuses the request{words}")
        return UnavailableError(f"the upstream at {self._address} failed (HTTP {status}{words})")


def error_message(body: bytes) -> str:
    """Return what an error's body says, in one line: OpenAI's `error.message`, or FastAPI's
    `detail`, or a plain text."""
    text = body.decode("utf-8", "replace")
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "" if text.lstrip().startswith("<") else _shown(text)
    if isinstance(found, dict):
        found = found.get("error", found.get("message", found.get("detail", "")))
    if isinstance(found, dict):
        found = found.get("message", "")
    return _shown(found if isinstance(found, str) else json.dumps(found))


def stream_error(error: Any, *, begun: bool) -> EngineError:
    """Return the error for one that came in a stream; `begun`: after the first token. Servers that
    open a stream before they check the request refuse it in the first event."""
    kind = error.get("type") if isinstance(error, dict) else None
    said = error_message(msgspec.json.encode({"error": error}))
    if begun:
        return EngineError(f"the upstream failed while it wrote: {said}")
    if kind == "overloaded":
        return QueueFull(f"the upstream is busy: {said}; try again later")
    return InvalidRequest(f"the upstream refuses the request: {said}")


def _shown(text: str) -> str:
    """Return a text of somebody else's in one short line of printable characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}…"
