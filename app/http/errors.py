"""Error responses in the format of OpenAI's API:
`{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import logging
from typing import Any

from flask import Flask, Response, jsonify
from werkzeug.exceptions import HTTPException

from app.engine_client import UnavailableError
from app.http.request_ids import current_request_id
from gpu import ContextExceeded, DeviceError, EngineClosed, EngineError, InvalidRequest, QueueFull

log = logging.getLogger(__name__)

RETRY_SECONDS = 2
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}
CONTEXT_CODE = "context_length_exceeded"


class ModelNotFoundError(InvalidRequest):
    """The request names another model than the one that is loaded."""

    code = "model_not_found"


class GenerationNotFoundError(InvalidRequest):
    """The request names an answer that is not being written."""

    code = "generation_not_found"


class ClientGoneError(EngineError):
    """The client has disconnected, or closed its side of the connection. 499 is nginx's status for
    that."""

    code = "client_closed_request"

    def __init__(self) -> None:
        super().__init__(
            "your side of the connection was closed before the answer, so its work was cancelled; "
            "keep it open until the answer has come"
        )


def status_of(error: EngineError) -> int:
    match error:
        case ModelNotFoundError() | GenerationNotFoundError():
            return 404
        case InvalidRequest() | ContextExceeded():
            return 400
        case ClientGoneError():
            return 499
        case QueueFull():
            return 429
        case UnavailableError() | EngineClosed() | DeviceError():
            return 503
    return 500


def body_of(message: str, status: int, param: str = "", code: str = "") -> dict[str, Any]:
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {
        "error": {"message": message, "type": kind, "param": param or None, "code": code or None}
    }


def body_of_engine_error(error: EngineError) -> dict[str, Any]:
    code = CONTEXT_CODE if isinstance(error, ContextExceeded) else error.code
    return body_of(str(error), status_of(error), getattr(error, "param", ""), code)


def register(app: Flask) -> None:
    """Register the handlers that turn every exception of a route into such a response."""

    @app.errorhandler(HTTPException)
    def http_error(error: HTTPException) -> Response:
        status = error.code or 500
        response = jsonify(body_of(error.description or error.name, status))
        response.status_code = status
        if status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        for name, value in error.get_headers():
            if name == "Allow":
                response.headers[name] = value
        return response

    @app.errorhandler(EngineError)
    def engine_error(error: EngineError) -> Response:
        response = jsonify(body_of_engine_error(error))
        response.status_code = status_of(error)
        if response.status_code in (429, 503):
            response.headers["Retry-After"] = str(RETRY_SECONDS)
        return response

    @app.errorhandler(Exception)
    def other_error(error: Exception) -> Response:
        log.exception("unexpected error while answering a request")
        message = f"the server made a mistake; see request {current_request_id()} in its log"
        response = jsonify(body_of(message, 500))
        response.status_code = 500
        return response
