"""Messages between the server and the engine's process: msgpack, typed on both sides."""

from __future__ import annotations

import msgspec

from gpu import (
    ContextExceeded,
    DeviceError,
    EngineClosed,
    EngineError,
    EngineInfo,
    EngineStats,
    Interventions,
    InvalidRequest,
    PaceChange,
    QueueFull,
    Request,
)
from gpu.events import Done, Event
from gpu.inspection.requests import Answer, Question

CLOSE_SECONDS = 5.0
"""An engine that does not close within this time is ended by force."""
HEARTBEAT_SECONDS = 1.0
"""Between two signs of life of the engine's process."""

# ---- to the engine ---------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Start run `run`; answered by `Acknowledged` or `CallFailed` with the same `call`."""

    call: int
    run: int
    request: Request


class UpdateRun(msgspec.Struct, frozen=True, tag="change"):
    """Change a run's settings; answered like `Submit`."""

    call: int
    run: int
    changes: dict[str, int | float]
    capture: bool | None
    interventions: Interventions | None = None
    pace: PaceChange | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    run: int


class InspectRun(msgspec.Struct, frozen=True, tag="ask"):
    """A question about a run, answered by `Answered` or `CallFailed` when the engine gets to it."""

    call: int
    question: Question
    asker: int = 0


class CancelQuestions(msgspec.Struct, frozen=True, tag="forget"):
    """Nobody waits for the answers to the questions of `asker` any more."""

    asker: int


class Close(msgspec.Struct, frozen=True, tag="close"):
    """End the runs, the engine and the process."""


ToEngine = Submit | UpdateRun | Cancel | InspectRun | CancelQuestions | Close

# ---- from the engine -------------------------------------------------------------------------


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    progress: float
    message: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine is loaded."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The model cannot be loaded; the process ends. Another would fail in the same way, unless
    `device`: a GPU that is gone or full may come back."""

    message: str
    device: bool = False


class Heartbeat(msgspec.Struct, frozen=True, tag="beat"):
    """A sign of life, every `HEARTBEAT_SECONDS`. `busy_since`: when the engine began the step it is
    in, by a clock of its own; None while it has nothing to do. `stats`: None while it loads."""

    busy_since: float | None
    stats: EngineStats | None = None


class RunEvent(msgspec.Struct, frozen=True, tag="event"):
    run: int
    event: Event


class RunLost(msgspec.Struct, frozen=True, tag="lost"):
    """A run ended because the engine failed: another engine could go on with it. The process
    ends."""

    run: int
    event: Done


class Acknowledged(msgspec.Struct, frozen=True, tag="agreed"):
    """`index`: the first token that a change affects."""

    call: int
    index: int


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    call: int
    answer: Answer


class CallFailed(msgspec.Struct, frozen=True, tag="refused"):
    """An `EngineError`, to be raised again on the other side by `error_of`."""

    call: int
    code: str
    message: str
    param: str = ""
    n_prompt: int = 0
    context: int = 0


FromEngine = (
    Loading
    | Ready
    | LoadFailed
    | Heartbeat
    | RunEvent
    | RunLost
    | Acknowledged
    | Answered
    | CallFailed
)


def call_failed(call: int, error: EngineError) -> CallFailed:
    match error:
        case InvalidRequest(param=param):
            return CallFailed(call, error.code, str(error), param=param)
        case ContextExceeded(n_prompt=n_prompt, context=context):
            return CallFailed(call, error.code, str(error), n_prompt=n_prompt, context=context)
    return CallFailed(call, error.code, str(error))


def error_of(message: CallFailed) -> EngineError:
    match message.code:
        case InvalidRequest.code:
            return InvalidRequest(message.message, message.param)
        case ContextExceeded.code:
            return ContextExceeded(message.n_prompt, message.context)
    kinds = (QueueFull, EngineClosed, DeviceError)
    kind = next((kind for kind in kinds if kind.code == message.code), EngineError)
    return kind(message.message)
