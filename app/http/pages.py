"""Routes of the page, its style sheet and the health check."""

from __future__ import annotations

from pathlib import Path

from flask import Flask, Response, jsonify, render_template, request

from app.config import Settings
from app.engine_client import EngineClient, describe_unavailable
from app.http.page_data import page_data

STYLE_SHEETS = (
    "ui/tokens", "ui/base", "ui/bench", "ui/divider", "chat/conversation", "chat/system-prompt",
    "chat/markdown", "chat/summary", "chat/message", "chat/composer", "chat/tools",
    "panels/sampling", "panels/presets", "panels/candidates", "core-sample/core-sample",
    "panels/layers", "panels/run-strip", "look/panel", "look/parts", "look/tokens", "look/forward",
    "look/attention", "look/lens", "look/experts", "look/filters", "look/reach", "look/branches",
    "look/compare", "look/loss", "look/attribution", "look/timeline", "look/cache", "look/schedule",
    "look/weights", "look/plan", "look/lab", "look/needs", "look/train", "look/retrieval",
    "tour/tour", "lessons", "panels/models", "conversations/drawer", "words", "ui/lacks",
    "ui/states", "ui/widths", "ui/phone", "replay/replay", "ui/print",
)  # fmt: skip
"""Files below static/css that make up page.css, in the order of the cascade."""


def style_sheet(static: Path) -> str:
    """Return all style sheets in the folder `static` as one."""
    sheets = [(static / "css" / f"{name}.css").read_text("utf-8") for name in STYLE_SHEETS]
    return "\n".join(sheets)


def register(
    app: Flask, engine: EngineClient, settings: Settings, version: str, *, switching: bool
) -> None:
    """Add `/`, `/static/css/page.css`, `/favicon.ico` and `/health`.

    `switching` tells the page that it can change the model, the settings from which hub it may
    fetch models to run them itself and at which addresses it may call tools.
    """

    @app.get("/")
    def index() -> Response:
        page = render_template(
            "index.html",
            version=version,
            switching=switching,
            hub=next(iter(settings.hub_url), ""),
            tools=" ".join(settings.tool_url),
            data=page_data(),
        )
        response = Response(page)
        response.headers["Cache-Control"] = "no-cache"
        return response

    @app.get("/favicon.ico")
    def icon() -> Response:
        """Serve the icon to browsers that do not use the page's `<link rel="icon">`."""
        return app.send_static_file("mark.svg")

    @app.get("/static/css/page.css")
    def style() -> Response:
        """Serve all style sheets as one, so that the page is never drawn with only some."""
        response = Response(style_sheet(Path(app.static_folder or "")), mimetype="text/css")
        response.headers["Cache-Control"] = "no-cache"
        response.add_etag()
        response.make_conditional(request)
        return response

    @app.get("/health")
    def health() -> tuple[Response, int]:
        status = engine.status
        if status.state == "ready":
            return jsonify(status="ok"), 200
        error = {
            "code": 503,
            "type": "unavailable_error",
            "message": describe_unavailable(status),
        }
        return jsonify(status=status.state, progress=status.progress, error=error), 503
