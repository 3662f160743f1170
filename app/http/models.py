"""`/api/models`: list the models that this server offers, and switch to one of them.

GET    /api/models   `app.models.switching.ModelOffers`: the current model, the models to choose
                     from, and the state of the latest change (pages poll it). Once the model is
                     loading, pages get `status` and then `hello` on their WebSocket, as after a
                     restart.
POST   /api/models   `{"name": …, "dtype": …}`: check the model and begin to switch. `dtype` is the
                     server's if left out. 202 with the change; 400 if the model cannot be run or
                     is a path that a page may not name; 503 if the hub cannot be reached. The old
                     model is served until the new one is downloaded and checked, and loaded again
                     if the new one cannot be.
POST   /api/models/embedding   `{"name": …}`: begin to load an embedding model of the list
                     alongside the model. Once it is downloaded, all runs end and the engine is
                     loaded again. 202 with the change; 400 for another name, or where no encoder
                     can run; 503 without an engine.
GET    /api/models/search?q=…   Names of models on the hub that match and may run here: `{"names":
                     […]}`. 503 if the hub cannot be reached, 429 while too many others search.
DELETE /api/models   Cancel the change. 202. An engine that is loading ends that, and loads the
                     previous model again.

Guarded like every route, see `app.http.security`. The body must be application/json, which a form
on another site cannot send.
"""

from __future__ import annotations

import threading

import msgspec
from flask import Flask, Response, request

from app.config import AutoDtype
from app.engine_client import UnavailableError
from app.http.json_bodies import answer, read_body
from app.models.hub_errors import HubError
from app.models.hub_search import search_models
from app.models.switching import ModelSwitcher
from gpu import DeviceError, InvalidRequest, ModelError, QueueFull


class SwitchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST. `dtype` is the server's if None."""

    name: str
    dtype: AutoDtype | None = None


class EmbeddingModelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /api/models/embedding."""

    name: str


MAX_SEARCHES = 8
"""Searches at the same time; each keeps a connection while it waits for the hub."""


def register(app: Flask, switching: ModelSwitcher) -> None:
    """Add the routes under `/api/models`."""
    searches = threading.BoundedSemaphore(MAX_SEARCHES)

    @app.get("/api/models")
    def model_offers() -> Response:
        return answer(switching.offers())

    @app.post("/api/models")
    def change_model() -> Response:
        wanted = read_body(SwitchRequest, '{"name": "OWNER/MODEL"}', "name")
        try:
            return answer(switching.begin(wanted.name, wanted.dtype), 202)
        except (ModelError, DeviceError) as error:
            raise InvalidRequest(str(error), "name") from error
        except HubError as error:
            raise UnavailableError(str(error)) from error

    @app.post("/api/models/embedding")
    def add_embedding_model() -> Response:
        wanted = read_body(EmbeddingModelRequest, '{"name": "all-MiniLM-L6-v2"}', "name")
        return answer(switching.begin_embedding_model(wanted.name), 202)

    @app.get("/api/models/search")
    def search() -> Response:
        text = request.args.get("q", "").strip()
        if not text:
            raise InvalidRequest("expected a text to search for, such as ?q=smollm", "q")
        if not searches.acquire(blocking=False):
            raise QueueFull("too many searches of the hub are running; try again in a moment")
        try:
            return answer({"names": search_models(text)})
        except HubError as error:
            raise UnavailableError(str(error)) from error
        finally:
            searches.release()

    @app.delete("/api/models")
    def cancel_change() -> Response:
        switching.cancel()
        return answer({}, 202)
