"""Errors of the engine.

    EngineError                 base of everything below
    ├── DeviceError             no adapter, a missing limit, a lost device
    ├── ModelError              a folder that cannot be loaded (config, weights, tokenizer)
    ├── InvalidRequest          a request whose values are out of range; `.param` names the field
    ├── ContextExceeded         a prompt that does not fit; carries the numbers
    ├── QueueFull               more requests than the queue holds
    └── EngineClosed            the engine was closed while the request was waiting or running

Every message says what was expected, what came, and what to do about it.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors raised by `gpu`. `code` is stable and machine-readable."""

    code = "engine_error"


class DeviceError(EngineError):
    """The GPU (or a software device) is missing or cannot do what is requested."""

    code = "device_error"


class ModelError(EngineError):
    """A model folder cannot be loaded."""

    code = "model_error"


class InvalidRequest(EngineError):
    """A request has a value outside its range. `param` is the name of the offending field."""

    code = "invalid_request"

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


class ContextExceeded(EngineError):
    """A prompt (plus at least one token to write) does not fit in the context."""

    code = "context_exceeded"

    def __init__(self, n_prompt: int, context: int) -> None:
        over = n_prompt - context + 1
        super().__init__(
            f"the prompt has {n_prompt} tokens, but the context holds {context} and one must be "
            f"left to write; shorten the prompt by at least {over} token{'s' * (over != 1)} "
            "or start with a larger --context, if the model supports one"
        )
        self.n_prompt = n_prompt
        self.context = context


class QueueFull(EngineError):
    """The queue is full; try again later."""

    code = "queue_full"


class EngineClosed(EngineError):
    """The engine was closed."""

    code = "engine_closed"
