"""The id of each request: in the header `X-Request-Id` of its response, as in OpenAI's API, and in
every line that its thread writes to the log.

A proxy that gives its requests ids sends them in the same header; they are kept.
"""

from __future__ import annotations

import logging
import re
import secrets
from contextvars import ContextVar

from flask import Flask, Response, request

HEADER = "X-Request-Id"
ACCEPTED = re.compile(r"[\w.:-]{1,64}", re.ASCII)
"""Ids of proxies: nothing that could look like another line of the log."""

_current: ContextVar[str] = ContextVar("request_id", default="")
"""Id of this thread's request: a connection has a thread of its own and carries one request."""


def current_request_id() -> str:
    """Return the id of the request that this thread answers; "" if it answers none."""
    return _current.get()


def add_request_id(record: logging.LogRecord) -> bool:
    """Set `record.request` for the format of the log: the id in brackets, or "". This filter of a
    handler drops nothing."""
    request_id = _current.get()
    record.request = f" [{request_id}]" if request_id else ""
    return True


def register(app: Flask) -> None:
    """Give every request of `app` an id. To be called before anything else that may answer one."""

    @app.before_request
    def begin() -> None:
        given = request.headers.get(HEADER, "")
        _current.set(given if ACCEPTED.fullmatch(given) else secrets.token_hex(8))

    @app.after_request
    def set_header(response: Response) -> Response:
        response.headers[HEADER] = _current.get()
        return response
