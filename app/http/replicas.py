"""`GET /api/replicas`: state and load of every engine that serves the model, in the order of their
numbers: `{"replicas": [{"state": …, "stats": …}, …]}` (`app.engine_client.ReplicaStatus`).

Pages poll it while they show it. The engines report their figures once a second.
"""

from __future__ import annotations

from flask import Flask, Response

from app.engine_client import EngineClient
from app.http.json_bodies import answer


def register(app: Flask, engine: EngineClient) -> None:
    """Add the route."""

    @app.get("/api/replicas")
    def replicas() -> Response:
        return answer({"replicas": engine.replica_statuses()})
