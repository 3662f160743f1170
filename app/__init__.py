"""Tokenglass's web product: the playground page, its WebSocket and the OpenAI-shaped API."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from app.config import Settings
    from app.engines import EngineClient
    from app.sessions import Keeping
    from app.switching import Switching
    from app.tokenizing import Compared

PACKAGE = Path(__file__).resolve().parent


def assets(name: str) -> Path:
    """The folder `static` or `templates`: in an installed package, beside it in a checkout."""
    installed = PACKAGE / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def version() -> str:
    """The installed version; "unknown" when run from a checkout that is not installed."""
    try:
        return metadata.version("tokenglass")
    except metadata.PackageNotFoundError:
        return "unknown"


def create_app(
    settings: Settings,
    engine: EngineClient,
    keeping: Keeping | None = None,
    compare: Compared | None = None,
    switching: Switching | None = None,
) -> Flask:
    """The web application around an engine. It does not start the engine. `compare`: the tokenizer
    that the model's is compared with, bytes if not given. `switching`: lets the page change the
    model; without it there are no routes for that.

    Imports are inside because the engine's process imports this package, and needs no Flask.
    """
    from flask import Flask

    from app import errors, live, model_routes, openai, pages, security, weights
    from app.sessions import Keeping, Sessions
    from app.shares import EXTENSION, Shares
    from app.tokenizing import BYTES, Tokenizing

    app = Flask(__name__, static_folder=assets("static"), template_folder=assets("templates"))
    app.json.sort_keys = False  # type: ignore[attr-defined]
    security.register(app, settings)
    errors.register(app)
    pages.register(app, engine, version(), switching=switching is not None)
    openai.register(app, engine)
    weights.register(app, engine)
    if switching is not None:
        model_routes.register(app, switching)
    shares = app.extensions[EXTENSION] = Shares()
    sessions = Sessions(engine, keeping or Keeping(), shares)
    app.extensions["tokenglass_sessions"] = sessions
    live.register(app, engine, sessions, Tokenizing(engine, compare or BYTES))
    return app
