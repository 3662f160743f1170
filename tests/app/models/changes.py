"""Changes of the model of a running server, as a page asks for them."""

from __future__ import annotations

from typing import Any

from flask.testing import FlaskClient

from app.models.known import known_models
from tests.app.conftest import Site

NAME = next(model.name for model in known_models() if model.source == "hub")


def client_of(site: Site) -> FlaskClient:
    return site.app.test_client()


def newest(site: Site) -> dict[str, Any]:
    found = client_of(site).get("/api/models").json
    assert found is not None
    return dict(found["change"] or {})
