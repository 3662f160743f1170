"""The page and the health check."""

from __future__ import annotations

from flask import Flask, Response, jsonify, render_template

from app.engines import EngineClient, unavailable_message


def register(app: Flask, engine: EngineClient, version: str, *, switching: bool) -> None:
    """Add `/` and `/health`. `switching`: the page can change the model."""

    @app.get("/")
    def index() -> Response:
        page = render_template("index.html", version=version, switching=switching)
        response = Response(page)
        response.headers["Cache-Control"] = "no-cache"
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
