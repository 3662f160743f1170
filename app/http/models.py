"""`/api/models`: which models this server offers, and changing to one of them.

GET    /api/models   `app.switching.Offers`: the current model, those that can be taken, and how the
                     newest change is going (asked again and again while it is). Once it is loading,
                     pages hear `status` and then `hello` on their WebSocket, as after a restart.
POST   /api/models   `{"name": …, "dtype": …}`, dtype if not the server's: judge and begin. 202 with
                     the change; 400 when the model cannot be run or is a folder, 503 when the
                     hub cannot be asked. The old model is served until the new one is fetched
                     and checked.
DELETE /api/models   Cancel fetching or checking. 202.

Guarded like every route (`app.security`): the Host must be ours, a foreign Origin or site is
refused, and the token is needed where there is one. The body must be application/json, which no
form of another site can send.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Flask, Response, request

from app.config import Dtype
from app.engines import UnavailableError
from app.hub_errors import HubError
from app.switching import Switching
from gpu import DeviceError, InvalidRequest, ModelError


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    dtype: Dtype | None = None


def register(app: Flask, switching: Switching) -> None:
    """Add the routes."""

    @app.get("/api/models")
    def model_offers() -> Response:
        return _json(switching.offers())

    @app.post("/api/models")
    def change_model() -> Response:
        wanted = _body()
        try:
            return _json(switching.begin(wanted.name, wanted.dtype), 202)
        except (ModelError, DeviceError) as error:
            raise InvalidRequest(str(error), "name") from error
        except HubError as error:
            raise UnavailableError(str(error)) from error

    @app.delete("/api/models")
    def cancel_change() -> Response:
        switching.cancel()
        return _json({}, 202)


def _body() -> Wanted:
    if request.mimetype != "application/json":
        raise InvalidRequest("send application/json: an object with the name of a model", "name")
    try:
        return msgspec.json.decode(request.get_data(), type=Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not as it should be: {error}", "name") from error


def _json(body: Any, status: int = 200) -> Response:
    response = Response(msgspec.json.encode(body), status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response
