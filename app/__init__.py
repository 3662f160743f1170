"""Web application of Tokenglass: the playground page, its WebSocket and the OpenAI-style API."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flask import Flask

    from app.config import Settings
    from app.engine_client import EngineClient
    from app.models.switching import ModelSwitcher
    from app.prompt.encoder_texts import EncoderInputs
    from app.prompt.tokenizing import NamedTokenizer
    from app.train.trainer import Trainer
    from app.ws.sessions import Retention

PACKAGE = Path(__file__).resolve().parent


def assets(name: str) -> Path:
    """Return the folder `static` or `templates`: inside the installed package, or beside it."""
    installed = PACKAGE / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def version() -> str:
    """Return the installed version; "unknown" in a checkout that is not installed."""
    try:
        return metadata.version("tokenglass")
    except metadata.PackageNotFoundError:
        return "unknown"


def create_app(
    settings: Settings,
    engine: EngineClient,
    retention: Retention | None = None,
    compare: NamedTokenizer | None = None,
    switching: ModelSwitcher | None = None,
    loras: Mapping[str, Path] | None = None,
    encoder_inputs: EncoderInputs | None = None,
    trainer: Trainer | None = None,
) -> Flask:
    """Return the web application of `engine`, without starting the engine.

    `compare` is the tokenizer that the page compares with the model's; UTF-8 bytes if None.
    `switching` lets the page change the model; if None, there are no routes for that. `loras` are
    the folders of the engine's adapters, which a page that runs the model itself gets with it.
    `encoder_inputs` makes the texts of the engine's embedding model and encoder-decoder, if it has
    any. `trainer` trains adapters; None where that cannot be done.
    """
    # The engine's process imports this package too, and must not load Flask.
    from flask import Flask

    from app.http import errors, metrics, pages, request_ids, security
    from app.http import models as model_routes
    from app.http.cache_salts import CacheSalts
    from app.http.client_limits import EXTENSION, ClientLimits
    from app.local import routes as local_routes
    from app.local.exports import BrowserExports
    from app.local.hub_plans import HubPlans
    from app.openai import openapi, text_routes
    from app.openai import routes as openai
    from app.prompt.tokenizing import BYTE_TOKENIZER, TokenizeHandler
    from app.ws import page_connection
    from app.ws.sessions import Retention, Sessions

    app = Flask(__name__, static_folder=assets("static"), template_folder=assets("templates"))
    app.json.sort_keys = False  # type: ignore[attr-defined]
    request_ids.register(app)
    security.register(app, settings)
    errors.register(app)
    hub = next(iter(settings.hub_url), "")
    pages.register(app, engine, settings, version(), switching=switching is not None)
    openai.register(app, engine)
    text_routes.register(app, engine)
    openapi.register(app, version())
    _add_routes_of_encoders(app, engine, settings, encoder_inputs)
    _add_routes_about_the_model(app, engine, {} if loras is None else loras, trainer)
    local_routes.register(app, BrowserExports(engine, version(), loras), HubPlans(hub))
    if switching is not None:
        model_routes.register(app, switching)
    run_metrics = metrics.register(app, engine)
    client_limits = app.extensions[EXTENSION] = ClientLimits(
        run_metrics.watch, CacheSalts(shared=settings.prefix_sharing == "all")
    )
    sessions = Sessions(engine, retention or Retention(), client_limits)
    run_metrics.count_kept(sessions.kept)
    app.extensions["tokenglass_sessions"] = sessions
    tokenize = TokenizeHandler(engine, compare or BYTE_TOKENIZER)
    page_connection.register(app, engine, sessions, tokenize)
    return app


def _add_routes_of_encoders(
    app: Flask, engine: EngineClient, settings: Settings, inputs: EncoderInputs | None
) -> None:
    from app.http import encoder_attention, retrieval, seq2seq
    from app.openai import embeddings
    from app.prompt.encoder_texts import EncoderInputs

    inputs = inputs or EncoderInputs()
    embeddings.register(app, engine, inputs)
    retrieval.register(app, engine, settings, inputs)
    encoder_attention.register(app, engine, inputs)
    seq2seq.register(app, engine, inputs.encoder_decoder)


def _add_routes_about_the_model(
    app: Flask, engine: EngineClient, loras: Mapping[str, Path], trainer: Trainer | None
) -> None:
    from app.http import loras as lora_routes
    from app.http import replicas, sizing, training, weights

    weights.register(app, engine)
    sizing.register(app, engine)
    replicas.register(app, engine)
    training.register(app, trainer)
    lora_routes.register(app, engine, loras)
