"""The threaded HTTP server: werkzeug's, with bounds on connections, requests and time.

Each connection carries one request, as in werkzeug: bytes after a request, or after a WebSocket's
last frame, are discarded and never read as another request.
"""

from __future__ import annotations

import errno
import functools
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from app.connections import Connections, most_connections, refuse
from app.request_reader import ChunkedBody, RequestStream, framing_problem
from app.security import MAX_BODY_BYTES
from app.sockets import finish

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

SEND_SECONDS = 60.0
"""A client that does not take a piece of its answer within this time is cut off."""
ACCEPT_SECONDS = 1.0
"""A connection that is gone before it is accepted must not hold up the next one."""
PAUSE_SECONDS = 0.1
"""Between two tries to accept while the machine has no descriptor or memory left for it."""
COMPLAIN_SECONDS = 60.0
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM} | {
    getattr(errno, name, errno.EMFILE)
    for name in ("WSAEMFILE", "WSAENOBUFS")  # Windows
}


class Handler(WSGIRequestHandler):
    """Handler of one request. Logs no query, since it may hold the token, and no colours."""

    server: HttpServer
    rfile: RequestStream

    timeout = SEND_SECONDS
    disable_nagle_algorithm = True  # a token is a small packet, and must not wait for the next
    server_version = "Tokenglass"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # http.server would answer the unreadable as HTTP 0.9
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = RequestStream(self.connection)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        problem = framing_problem(self.headers)
        if problem is not None:
            self.send_error(400, problem)
            return False
        chunked = "Transfer-Encoding" in self.headers
        self.rfile.end_head(
            None if chunked else int(self.headers.get("Content-Length", 0)),
            functools.partial(self.server.connections.asked, self.connection),
        )
        return True

    def make_environ(self) -> WSGIEnvironment:
        environ = super().make_environ()
        if "wsgi.input_terminated" in environ:
            environ["wsgi.input"] = ChunkedBody(self.rfile, MAX_BODY_BYTES)
        return environ

    def run_wsgi(self) -> None:
        try:
            super().run_wsgi()
        finally:
            self.close_connection = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        path = getattr(self, "path", "-").partition("?")[0]
        log.debug("%s %s %s", getattr(self, "command", "-"), path, getattr(code, "value", code))

    def log_error(self, format: str, *args: Any) -> None:
        log.debug(format, *args)  # what strangers send must not fill the log

    def log(self, type: str, message: str, *args: Any) -> None:
        log.warning(message, *args)


class HttpServer(ThreadedWSGIServer):
    """Threaded server of `app` on a listening socket, with at most `most` connections at once."""

    def __init__(self, listener: socket.socket, app: WSGIApplication, most: int) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__(host, port, app, Handler, fd=listener.fileno())
        self.socket.settimeout(ACCEPT_SECONDS)
        self.connections = Connections(most)
        self._complained = -COMPLAIN_SECONDS

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in EXHAUSTED:
                self.connections.make_room()
                self._complain(error)
                time.sleep(PAUSE_SECONDS)  # or this would be tried without a pause
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.admit(request):
            refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no thread can be started
            self._complain(error)
            self.connections.left(request)
            refuse(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            log.exception("a connection broke off")
        finally:
            self.connections.answered(request)
            finish(request)
            self.connections.left(request)
            self.close_request(request)

    def _complain(self, error: Exception) -> None:
        if time.monotonic() - self._complained >= COMPLAIN_SECONDS:
            self._complained = time.monotonic()
            log.warning(
                "new connections must wait: %s; %d are open", error, self.connections.n_open
            )


def http_server(
    listener: socket.socket, app: WSGIApplication, most: int | None = None
) -> HttpServer:
    """Return the HTTP server on a listening socket, not serving yet. `most`: connections at once;
    as many as this process has descriptors for if left out."""
    return HttpServer(listener, app, most or most_connections())
