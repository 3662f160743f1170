"""Threaded HTTP server: werkzeug's, with limits on connections, request sizes and time.

Each connection carries one request, as in werkzeug: bytes after a request, or after the last frame
of a WebSocket, are discarded and never read as another request.
"""

from __future__ import annotations

import errno
import functools
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from app.http import connections
from app.http.connections import REFUSAL, Connections, ResponseStream, refuse
from app.http.request_reader import ChunkedBody, RequestStream, framing_problem
from app.http.security import MAX_BODY_BYTES
from app.http.sockets import finish

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

SEND_SECONDS = 60.0
"""Time that one send to a client may take; then the connection is closed."""
ACCEPT_SECONDS = 1.0
"""Timeout of accept(): a connection that is gone by then must not delay the next one."""
PAUSE_SECONDS = 0.1
"""Pause before accept() is called again after descriptors or memory ran out."""
WARNING_SECONDS = 60.0
"""Minimum time between two warnings that connections are refused."""
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM} | {
    getattr(errno, name, errno.EMFILE)
    for name in ("WSAEMFILE", "WSAENOBUFS")  # Windows
}


class Handler(WSGIRequestHandler):
    """Handler of one request. Query strings are not logged: they may contain the token."""

    server: HttpServer
    rfile: RequestStream

    timeout = SEND_SECONDS
    disable_nagle_algorithm = True  # a token is a small packet and must be sent at once
    server_version = "Tokenglass"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # else unreadable requests get an HTTP/0.9 answer
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = RequestStream(self.connection)
        self.wfile = ResponseStream(self.connection, self.server.connections)

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        problem = framing_problem(self.headers)
        if problem is not None:
            self.send_error(400, problem)
            return False
        if not self._is_quick and not self.server.connections.begin_work(self.connection):
            self.wfile.write(REFUSAL)
            self.close_connection = True
            return False
        if self.request_version < "HTTP/1.1":  # chunks are not known there
            self.protocol_version = "HTTP/1.0"
        chunked = "Transfer-Encoding" in self.headers
        self.rfile.end_head(
            None if chunked else int(self.headers.get("Content-Length", 0)),
            functools.partial(self.server.connections.on_request, self.connection),
        )
        return True

    @property
    def _is_quick(self) -> bool:
        """Return whether the request is answered at once: the page, its files, states. WebSockets
        and searches of the hub, which are not, have limits of their own."""
        return self.command in ("GET", "HEAD")

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
        log.debug(format, *args)  # invalid requests must not fill the log

    def log(self, type: str, message: str, *args: Any) -> None:
        log.warning(message, *args)


class HttpServer(ThreadedWSGIServer):
    """Threaded server of `app` on a listening socket, with up to `max_connections` connections."""

    def __init__(self, listener: socket.socket, app: WSGIApplication, max_connections: int) -> None:
        host, port = listener.getsockname()[:2]
        super().__init__(host, port, app, Handler, fd=listener.fileno())
        self.socket.settimeout(ACCEPT_SECONDS)
        self.connections = Connections(max_connections)
        self._last_warning = -WARNING_SECONDS

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in EXHAUSTED:
                self.connections.make_room()
                self._warn(error)
                time.sleep(PAUSE_SECONDS)  # accept() would fail again at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.admit(request):
            refuse(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no thread can be started
            self._warn(error)
            self.connections.remove(request)
            refuse(request)

    def shutdown_request(self, request: Any) -> None:
        """Leave a connection to its thread, which closes it: a signal that ends the server may come
        between the start of that and the end of `process_request`."""

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            log.exception("unexpected error while serving a connection")
        finally:
            self.connections.on_response(request)
            finish(request)
            self.connections.remove(request)
            self.close_request(request)

    def _warn(self, error: Exception) -> None:
        if time.monotonic() - self._last_warning >= WARNING_SECONDS:
            self._last_warning = time.monotonic()
            log.warning(
                "cannot accept new connections: %s; %d are open", error, self.connections.n_open
            )


def http_server(
    listener: socket.socket, app: WSGIApplication, max_connections: int | None = None
) -> HttpServer:
    """Return an HTTP server on a listening socket, not serving yet.

    `max_connections` is as many as this process has file descriptors for if None."""
    return HttpServer(listener, app, max_connections or connections.max_connections())
