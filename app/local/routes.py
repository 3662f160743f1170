"""`/api/local`: the running model for the engine in a visitor's browser.

GET  /api/local          `app.local.exports.Offers`: storage types, what each needs, and how far its
                         export is (pages poll it)
POST /api/local          `{"dtype": …}`: begin to write that export. 202 with its state; 400 if it
                         cannot be written
GET  /api/local/KEY/DTYPE/FILE
                         a file of a finished export (docs/plan-format.md), or a range of it
POST /api/local/plans    `PlanRequest` of `app.local.plan_messages`: record the plans of a model of
                         the hub, whose weights the browser fetches itself. 200 with `Plans`, bytes
                         in base64; 400 if it cannot be run; 429 while others are recorded

Guarded like every route, see `app.http.security`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from flask import Flask, Response, request, send_from_directory

from app.config import Dtype
from app.local.exports import BrowserExports
from app.local.hub_plans import HubPlans
from app.local.model_files import MANIFEST
from app.local.plan_messages import PlanRequest
from gpu import InvalidRequest

T = TypeVar("T")


class ExportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST."""

    dtype: Dtype


def register(app: Flask, exports: BrowserExports, plans: HubPlans) -> None:
    """Add the routes under `/api/local`."""

    @app.get("/api/local")
    def local_offers() -> Response:
        return _json(exports.offers())

    @app.post("/api/local")
    def write_export() -> Response:
        return _json(exports.begin(_body(ExportRequest).dtype), 202)

    @app.post("/api/local/plans")
    def record_plans() -> Response:
        return _json(plans.record(_body(PlanRequest)))

    @app.get("/api/local/<key>/<dtype>/<path:file>")
    def export_file(key: str, dtype: str, file: str) -> Response:
        response = send_from_directory(exports.folder(key, dtype), file, conditional=True)
        response.headers["Cache-Control"] = "no-cache" if file == MANIFEST else "private"
        return response


def _body(kind: type[T]) -> T:
    if request.mimetype != "application/json":
        raise InvalidRequest(
            'expected Content-Type application/json and a body such as {"dtype": "q8"}, but got '
            f"{request.mimetype or 'no Content-Type'}",
            "dtype",
        )
    try:
        return msgspec.json.decode(request.get_data(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"invalid body: {error}", "dtype") from error


def _json(body: Any, status: int = 200) -> Response:
    response = Response(msgspec.json.encode(body), status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response
