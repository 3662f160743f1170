"""Changes of a run that are known before it begins: what replays a run whose settings were moved.

A live change acts on the first token that is not submitted yet, and the run tells which one that
was. A script names that token, so the same request with the same seed writes the same ids again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpu.errors import InvalidRequest
from gpu.interventions import Encoded, Interventions, expect_no_new_patch
from gpu.sampling import SamplingParams


class ChangeAt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that act from token `index` of a run on, counted from 0; fields as in `Updated`.

    params   those that change, of `gpu.sampling.LIVE`
    capture  None: as before
    reach    the whole setting from then on; None: as before
    """

    index: int
    params: dict[str, int | float] = {}
    capture: bool | None = None
    reach: Interventions | None = None


Script = tuple[ChangeAt, ...]


def checked_script(changes: Sequence[ChangeAt], params: SamplingParams) -> Script:
    """The changes of a run that begins with `params`. Raises `InvalidRequest` for a setting that
    cannot change or is out of range, and for indexes that are negative or fall."""
    earliest = 0
    for n, change in enumerate(changes):
        if isinstance(change.index, bool) or not isinstance(change.index, int):
            raise _refused(n, f"its index must be an integer, but got {change.index!r}")
        if change.index < earliest:
            raise _refused(
                n,
                f"its index must be {earliest} or more, because changes come in the order of the "
                f"tokens they act on, but got {change.index}",
            )
        earliest = change.index
        try:
            params = params.updated(change.params)
        except InvalidRequest as error:
            raise _refused(n, str(error)) from None
    return tuple(changes)


def encoded_reaches(
    script: Script, reach: Interventions, encode: Callable[[Interventions], Encoded]
) -> tuple[Encoded | None, ...]:
    """The interventions of each change of a run that begins with `reach`; None of one that has
    none. `encode`: for the model. Raises `InvalidRequest` for those that it cannot be given."""
    found: list[Encoded | None] = []
    for n, change in enumerate(script):
        wanted = None
        if change.reach is not None:
            try:
                expect_no_new_patch(reach, change.reach)
                wanted = encode(change.reach)
            except InvalidRequest as error:
                raise _refused(n, str(error)) from None
            reach = change.reach
        found.append(wanted)
    return tuple(found)


def most_tokens(script: Script, params: SamplingParams) -> int:
    """The largest `max_tokens` that a run which begins with `params` may come to have."""
    return max(params.max_tokens, *(int(c.params.get("max_tokens", 0)) for c in script), 0)


def _refused(n: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"change {n + 1} of the request: {why}", "changes")
