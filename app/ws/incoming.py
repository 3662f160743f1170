"""What comes from the page: read, validate, and merge what comes faster than it can act."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec

from app.protocol import MESSAGE_BYTES, Changes, FromPage, Update
from gpu import SamplingParams

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
UPDATE_SECONDS = 0.02
"""Updates of one page act at most this often."""

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


class _Name(msgspec.Struct):
    """What an error about a message names."""

    id: str = ""
    request: int | None = None


def decode(raw: str | bytes, most: int = MESSAGE_BYTES) -> FromPage:
    """A message of the page of `most` bytes or fewer, or `BadMessageError` saying what is wrong
    with it."""
    if isinstance(raw, bytes):
        raise BadMessageError("messages must be text frames with one JSON object, not binary")
    if len(raw) > most or len(raw.encode()) > most:
        name = _name_in(raw)
        raise BadMessageError(
            f"a message may have {most} bytes at most, but this one has "
            f"{len(raw.encode())}; send less text, or fewer tokens",
            name.id,
            request=name.request,
        )
    try:
        message: FromPage = _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        name = _name_in(raw)
        raise BadMessageError(
            f"cannot read this message: {error}", name.id, _param(error), name.request
        ) from None
    id = getattr(message, "id", None)
    if id is not None and not ID.fullmatch(id):
        raise BadMessageError("id must be 1 to 64 characters of [A-Za-z0-9_-]", param="id")
    return message


def _name_in(raw: str) -> _Name:
    """What a message is called that is otherwise wrong: the error names it."""
    try:
        name = msgspec.json.decode(raw, type=_Name)
    except (msgspec.DecodeError, RecursionError):
        return _Name()
    return name if ID.fullmatch(name.id) else _Name(request=name.request)


def _param(error: Exception) -> str:
    """msgspec ends its messages with the path: "… - at `$.params.top_k`"."""
    match = re.search(r"at `\$\.(?:question\.)?(?:params\.)?([\w.]+)", str(error))
    return match.group(1) if match else ""


def changes_of(update: Update) -> dict[str, Any]:
    """The settings that an update gives."""
    given = {name: getattr(update.params, name) for name in update.params.__struct_fields__}
    return {name: value for name, value in given.items() if value is not None}


class PendingUpdates:
    """A slider sends more updates than there are tokens. The first acts at once; those that follow
    within `UPDATE_SECONDS` are merged, the latest value of each setting wins, and act together."""

    def __init__(self) -> None:
        self._waiting: dict[str, Update] = {}
        self._free_at = 0.0

    def take(self, update: Update) -> None:
        """Keep an update until it is due. Raises `InvalidRequest` for a value out of range, so
        that a bad value cannot spoil the good ones it would be merged with."""
        changes = changes_of(update)
        SamplingParams().updated(changes)
        earlier = self._waiting.get(update.id)
        if earlier is not None:
            capture = earlier.capture if update.capture is None else update.capture
            reach = earlier.reach if update.reach is None else update.reach
            merged = Changes(**{**changes_of(earlier), **changes})
            update = Update(update.id, merged, capture, reach)
        self._waiting[update.id] = update

    def seconds_left(self) -> float | None:
        """Until some are due; None when none wait."""
        return max(0.0, self._free_at - time.monotonic()) if self._waiting else None

    def due(self, before: FromPage | None) -> list[Update]:
        """Take out those that are due now, which all are before a message of another kind."""
        now = time.monotonic()
        if not self._waiting or (now < self._free_at and isinstance(before, Update | None)):
            return []
        self._free_at = now + UPDATE_SECONDS
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting
