"""Messages from the page: decoding, validation, and merging of updates that come in quick
succession."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from app.protocol.messages import MESSAGE_BYTES, UPDATE_SECONDS, FromPage, SamplingUpdate, Update
from gpu import PaceChange, SamplingParams

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_decoder = msgspec.json.Decoder(FromPage)


class BadMessageError(ValueError):
    """A message of the page that cannot be read. `id`, `param`, `request`: what it is about, if
    known."""

    def __init__(
        self, message: str, id: str = "", param: str = "", request: int | None = None
    ) -> None:
        super().__init__(message)
        self.id = id
        self.param = param
        self.request = request


class _MessageRef(msgspec.Struct):
    """Fields of a message that an error about it names."""

    id: str = ""
    request: int | None = None


def decode(raw: str | bytes, max_bytes: int = MESSAGE_BYTES) -> FromPage:
    """A message of the page of `max_bytes` bytes or fewer, or `BadMessageError` saying what is
    wrong with it."""
    if isinstance(raw, bytes):
        raise BadMessageError("messages must be text frames with one JSON object, not binary")
    if len(raw) > max_bytes or len(raw.encode()) > max_bytes:
        ref = _message_ref(raw)
        raise BadMessageError(
            f"a message may have {max_bytes} bytes at most, but this one has "
            f"{len(raw.encode())}; send less text, or fewer tokens",
            ref.id,
            request=ref.request,
        )
    try:
        message: FromPage = _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        ref = _message_ref(raw)
        raise BadMessageError(
            f"cannot read this message: {error}", ref.id, _param(error), ref.request
        ) from None
    id = getattr(message, "id", None)
    if id is not None and not ID.fullmatch(id):
        raise BadMessageError("id must be 1 to 64 characters of [A-Za-z0-9_-]", param="id")
    return message


def _message_ref(raw: str) -> _MessageRef:
    """Return the id and request number of a message that cannot be read."""
    try:
        ref = msgspec.json.decode(raw, type=_MessageRef)
    except (msgspec.DecodeError, RecursionError):
        return _MessageRef()
    return ref if ID.fullmatch(ref.id) else _MessageRef(request=ref.request)


def _param(error: Exception) -> str:
    """msgspec ends its messages with the path: "… - at `$.params.top_k`"."""
    match = re.search(r"at `\$\.(?:question\.)?(?:params\.)?([\w.]+)", str(error))
    return match.group(1) if match else ""


def given_settings(update: Update) -> dict[str, Any]:
    """Return the sampling settings that an update gives."""
    given = {name: getattr(update.params, name) for name in update.params.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}


class UpdateMerger:
    """Rate limit of updates, of which a slider sends more than there are tokens: the first acts at
    once, and those that follow within `UPDATE_SECONDS` are merged into one."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Update]] = {}
        self._free_at = 0.0

    def add(self, update: Update) -> None:
        """Keep an update until it is due. Raises `InvalidRequest` for a sampling setting or a pace
        out of range, because it would be merged with others. The engine checks interventions."""
        SamplingParams().updated(given_settings(update))
        if update.pace_change is not None:
            update.pace_change.validate()
        self._waiting.setdefault(update.id, []).append(update)

    def drop(self, id: str) -> None:
        """Forget the updates of a generation that is stopped."""
        self._waiting.pop(id, None)

    def seconds_left(self) -> float | None:
        """Return the seconds until some are due; None when none wait."""
        return max(0.0, self._free_at - time.monotonic()) if self._waiting else None

    def due(self, before: FromPage | None) -> list[list[Update]]:
        """Take out the updates that are due now, grouped by generation. All of them are due before
        a message of another kind."""
        now = time.monotonic()
        if not self._waiting or (now < self._free_at and isinstance(before, Update | None)):
            return []
        self._free_at = now + UPDATE_SECONDS
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting


def merge(updates: Sequence[Update]) -> Update:
    """Return one update for several of the same generation: the latest value of each setting, and
    all steps together."""
    params: dict[str, Any] = {}
    capture = interventions = None
    pace = PaceChange()
    for update in updates:
        params |= given_settings(update)
        capture = capture if update.capture is None else update.capture
        interventions = interventions if update.interventions is None else update.interventions
        pace = pace.then(update.pace_change or PaceChange())
    sampling = SamplingUpdate(**params)
    return Update(updates[0].id, sampling, capture, interventions, pace.rate, pace.steps)
