"""`/api/local`: the running model for the engine in a visitor's browser.

GET  /api/local          `app.local.exports.DtypeOffers`: storage types, what each needs, and how
                         far its export is (pages poll it)
POST /api/local          `{"dtype": …}`: begin to write that export. 202 with its state; 400 if
                         nothing can be exported; why this one failed is in its state
GET  /api/local/KEY/DTYPE/FILE
                         a file of a finished export (docs/plan-format.md), or a range of it
POST /api/local/plans    `PlanRequest` of `app.local.plan_messages`: record the plans of a model of
                         the hub, whose weights the browser fetches itself. 200 with `Plans`, bytes
                         in base64; 400 if it cannot be run; 429 while others are recorded

Guarded like every route, see `app.http.security`.
"""

from __future__ import annotations

import msgspec
from flask import Flask, Response, send_from_directory

from app.config import Dtype
from app.http.json_bodies import answer, read_body
from app.local.exports import BrowserExports
from app.local.hub_plans import HubPlans
from app.local.model_files import MANIFEST
from app.local.plan_messages import PlanRequest

PLAN_EXAMPLE = (
    '{"name": "OWNER/MODEL", "config": {…}, "generation": {}, '
    '"tensors": {"model.norm.weight": [576], …}, "dtype": "q8", "profile": "portable"}'
)


class ExportRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /api/local`."""

    dtype: Dtype


def register(app: Flask, exports: BrowserExports, plans: HubPlans) -> None:
    """Add the routes under `/api/local`."""

    @app.get("/api/local")
    def local_offers() -> Response:
        return answer(exports.offers())

    @app.post("/api/local")
    def write_export() -> Response:
        return answer(
            exports.begin(read_body(ExportRequest, '{"dtype": "q8"}', "dtype").dtype), 202
        )

    @app.post("/api/local/plans")
    def record_plans() -> Response:
        return answer(plans.record(read_body(PlanRequest, PLAN_EXAMPLE, "config")))

    @app.get("/api/local/<key>/<dtype>/<path:file>")
    def export_file(key: str, dtype: str, file: str) -> Response:
        response = send_from_directory(exports.folder(key, dtype), file, conditional=True)
        response.headers["Cache-Control"] = "no-cache" if file == MANIFEST else "private"
        return response
