"""The page and the health check."""

from __future__ import annotations

from flask import Flask, Response, jsonify, render_template

from app.engines import EngineClient, unavailable_message


def register(app: Flask, engine: EngineClient, version: str) -> None:
    """Add `/` and `/health`."""

    @app.get("/")
    def index() -> Response:
        response = Response(render_template("index.html", version=version))
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
