"""Plans of models of the hub, for pages that fetch the weights themselves."""

from __future__ import annotations

import threading

import msgspec

from app.local.plan_messages import PlanRefusal, PlanRequest, Plans
from app.processes.limited_process import LimitedProcess, LimitExceeded, ProcessLimits
from gpu import InvalidRequest, QueueFull

MAX_SECONDS = 60.0
"""Time limit of a recording."""
WAIT_SECONDS = 20.0
LIMITS = ProcessLimits(memory_bytes=2048 << 20, reply_bytes=64 << 20)

_decoder: msgspec.msgpack.Decoder[Plans | PlanRefusal] = msgspec.msgpack.Decoder(
    Plans | PlanRefusal
)


class HubPlans:
    """Records plans in a process with limits, one model at a time. `hub`: address of the hub that
    pages may use; "": none."""

    def __init__(self, hub: str) -> None:
        self._hub = hub
        self._recording = threading.Lock()

    def record(self, request: PlanRequest) -> Plans:
        """Return the plans of a model. Raises InvalidRequest for one that cannot be run, QueueFull
        while those of others are recorded."""
        if not self._hub:
            raise InvalidRequest(
                "pages of this server may not fetch models from a hub; start it with --hub-url and "
                "the hub's address"
            )
        if not self._recording.acquire(timeout=WAIT_SECONDS):
            raise QueueFull("the plans of another model are being recorded; try again in a moment")
        try:
            found = _decoder.decode(_record(msgspec.msgpack.encode(request)))
        except LimitExceeded as error:
            raise InvalidRequest(
                f"the plans of this model cannot be recorded: it {error}; choose a smaller one",
                "config",
            ) from None
        finally:
            self._recording.release()
        if isinstance(found, PlanRefusal):
            raise InvalidRequest(found.fault, "config")
        return found


def _record(request: bytes) -> bytes:
    try:
        process = LimitedProcess.start("app.local.plan_process", LIMITS)
    except LimitExceeded:
        raise QueueFull(
            "the server is too busy to record plans now; try again in a moment"
        ) from None
    try:
        return process.call(request, MAX_SECONDS)
    finally:
        process.end()
