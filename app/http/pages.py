"""The page, its style sheets as one file, and the health check."""

from __future__ import annotations

from pathlib import Path

from flask import Flask, Response, jsonify, render_template, request

from app.engines import EngineClient, unavailable_message

STYLE_SHEETS = (
    "tokens", "base", "bench", "talk", "composer", "sampling", "next", "core", "layers", "run",
    "look", "look-tokens", "look-attention", "look-lens", "look-experts", "look-filters",
    "look-reach", "look-branches", "look-loss", "look-timeline", "look-cache", "look-weights",
    "look-plan", "tour", "models", "states", "widths", "phone", "replay",
)  # fmt: skip
"""In the order in which they count: a later one overrides."""


def register(app: Flask, engine: EngineClient, version: str, *, switching: bool) -> None:
    """Add `/`, the style sheets and `/health`. `switching`: the page can change the model."""

    @app.get("/")
    def index() -> Response:
        page = render_template("index.html", version=version, switching=switching)
        response = Response(page)
        response.headers["Cache-Control"] = "no-cache"
        return response

    @app.get("/favicon.ico")
    def icon() -> Response:
        """Where browsers look that have not read the page's link yet, or never will."""
        return app.send_static_file("mark.svg")

    @app.get("/static/css/page.css")
    def style() -> Response:
        """One request instead of one a sheet, and none is drawn without the next."""
        folder = Path(app.static_folder or "") / "css"
        sheets = [(folder / f"{name}.css").read_text("utf-8") for name in STYLE_SHEETS]
        response = Response("\n".join(sheets), mimetype="text/css")
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
            "message": unavailable_message(status),
        }
        return jsonify(status=status.state, progress=status.progress, error=error), 503
