"""`/api/sizing`: what a model would take, from its config alone.

GET /api/sizing?model=…&dtype=…&kv_dtype=…&users=…&context=…&rate=…
    `SizingAnswer`: the models to choose from, and the sizing of one of them on every known
    device. Without `model` it is the running one; the other parameters are those of `Workload`.
    `bytes_per_s`, `memory_bytes`, `flops_per_s`, `bus_bytes_per_s`, `cache_bytes`,
    `cache_bytes_per_s` and `device` (its name) describe another device, which comes last.

Only listed models can be named, not paths, so neither the hub nor the engine is involved.
"""

from __future__ import annotations

import msgspec
from flask import Flask, Response, request

from app import tale
from app.engine_client import EngineClient
from app.http.errors import ModelNotFoundError
from app.http.json_bodies import answer
from app.models.known_configs import CONFIGS
from app.models.shapes import find_shape
from app.protocol.messages import Hello
from gpu import (
    DEFAULT_RATE,
    KNOWN_DEVICES,
    DeviceSpec,
    EngineError,
    InvalidRequest,
    ModelShape,
    Sizing,
    Workload,
    size_model,
)

MAX_NAME = 100


class SizingQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Query parameters; None if left out."""

    model: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    users: int = 1
    context: int | None = None
    rate: float = DEFAULT_RATE
    device: str = "own device"
    bytes_per_s: float | None = None
    memory_bytes: int | None = None
    flops_per_s: float | None = None
    bus_bytes_per_s: float | None = None
    cache_bytes: int | None = None
    cache_bytes_per_s: float | None = None


class SizingAnswer(msgspec.Struct, frozen=True):
    """Names of the models, the running one first, and the sizing of one of them."""

    models: tuple[str, ...]
    sizing: Sizing


def register(app: Flask, engine: EngineClient) -> None:
    """Add the route."""

    @app.get("/api/sizing")
    def sizing() -> Response:
        query = _query()
        running = _running(engine)
        own = running.model.name if running else None
        models = tuple(dict.fromkeys((*([own] if own else []), *tale.GOOD_FOR, *CONFIGS)))
        name = query.model or models[0]
        if name not in models:
            raise ModelNotFoundError(
                f"expected one of {', '.join(models)}, but got {name[:MAX_NAME]!r}; "
                "`tokenglass plan` sizes any other",
                "model",
            )
        is_own = running is not None and name == own
        shape = ModelShape.from_path(name, engine.require_path()) if is_own else find_shape(name)
        return answer(SizingAnswer(models, size_model(shape, _work(query, running, is_own), (
            *KNOWN_DEVICES, *_own_device(query),
        ))))  # fmt: skip


def _query() -> SizingQuery:
    try:
        return msgspec.convert(request.args.to_dict(), SizingQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"invalid request: {error}", "sizing") from error


def _running(engine: EngineClient) -> Hello | None:
    """Return the running engine's hello; None if there is none, or its model is upstream."""
    try:
        hello = engine.require_ready()
    except EngineError:
        return None
    return None if hello.upstream is not None else hello


def _work(query: SizingQuery, running: Hello | None, is_own: bool) -> Workload:
    """Return the workload; the running model is stored as the engine stores it."""
    own = running.model if running and is_own else None
    return Workload(
        dtype=query.dtype or (own.dtype if own else "f16"),
        kv_dtype=query.kv_dtype or (own.kv_dtype if own else None),
        users=query.users,
        context=query.context,
        rate=query.rate,
    )


def _own_device(query: SizingQuery) -> tuple[DeviceSpec, ...]:
    if query.bytes_per_s is None:
        return ()
    rates = (query.bytes_per_s, query.flops_per_s, query.bus_bytes_per_s, query.cache_bytes_per_s)
    sizes = (query.memory_bytes, query.cache_bytes)
    if any(rate is not None and not 0 < rate <= 1e18 for rate in rates) or any(
        size is not None and not 0 < size <= 1 << 60 for size in sizes
    ):
        raise InvalidRequest("rates and sizes of a device must be positive", "bytes_per_s")
    return (
        DeviceSpec(
            name=query.device[:MAX_NAME],
            memory_bytes=query.memory_bytes,
            bytes_per_s=query.bytes_per_s,
            flops_per_s=query.flops_per_s,
            bus_bytes_per_s=query.bus_bytes_per_s,
            source="as measured or given",
            cache_bytes=query.cache_bytes,
            cache_bytes_per_s=query.cache_bytes_per_s,
        ),
    )
