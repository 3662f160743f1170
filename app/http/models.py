"""`/api/models`: list the models that this server offers, and switch to one of them.

GET    /api/models   `app.models.switching.ModelOffers`: the current model, the models to choose
                     from, and the state of the latest change (pages poll it). Once the model is
                     loading, pages get `status` and then `hello` on their WebSocket, as after a
                     restart.
POST   /api/models   `{"name": …, "dtype": …}`: check the model and begin to switch. `dtype` is the
                     server's if left out. 202 with the change; 400 if the model cannot be run or
                     is a folder; 503 if the hub cannot be reached. The old model is served until
                     the new one is downloaded and checked.
DELETE /api/models   Cancel the download or the check. 202.

Guarded like every route, see `app.http.security`. The body must be application/json, which a form
on another site cannot send.
"""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Flask, Response, request

from app.config import Dtype
from app.engine.client import UnavailableError
from app.models.hub_errors import HubError
from app.models.switching import ModelSwitcher
from gpu import DeviceError, InvalidRequest, ModelError


class SwitchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST. `dtype` is the server's if None."""

    name: str
    dtype: Dtype | None = None


def register(app: Flask, switching: ModelSwitcher) -> None:
    """Add the routes under `/api/models`."""

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


def _body() -> SwitchRequest:
    if request.mimetype != "application/json":
        raise InvalidRequest(
            'expected Content-Type application/json and a body such as {"name": "OWNER/MODEL"}, '
            f"but got {request.mimetype or 'no Content-Type'}",
            "name",
        )
    try:
        return msgspec.json.decode(request.get_data(), type=SwitchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"invalid body: {error}", "name") from error


def _json(body: Any, status: int = 200) -> Response:
    response = Response(msgspec.json.encode(body), status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response
