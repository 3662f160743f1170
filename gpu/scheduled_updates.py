"""Updates of a run that are known before it begins, as in a replay.

A live update acts on the first token that is not submitted yet, and the run reports its index. A
scheduled update names that index, so the same request with the same seed gives the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gpu.errors import InvalidRequest
from gpu.interventions.messages import EncodedInterventions, Interventions, check_no_new_patch
from gpu.sampling_params import SamplingParams


class ScheduledUpdate(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"interventions": "reach"}
):
    """Settings that act from token `index` of a run on, counted from 0.

    params         those that change, of `gpu.sampling_params.LIVE`
    capture        None: as before
    interventions  all that are in force from then on; None: as before
    """

    index: int
    params: dict[str, int | float] = {}
    capture: bool | None = None
    interventions: Interventions | None = None


ScheduledUpdates = tuple[ScheduledUpdate, ...]


def check_updates(changes: Sequence[ScheduledUpdate], params: SamplingParams) -> ScheduledUpdates:
    """Return the updates of a run that begins with `params`. Raises `InvalidRequest` for a setting
    that cannot change or is out of range, and for indexes that are negative or decrease."""
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


def encode_updates(
    updates: ScheduledUpdates,
    interventions: Interventions,
    encode: Callable[[Interventions], EncodedInterventions],
) -> tuple[EncodedInterventions | None, ...]:
    """Return the encoded interventions of each update, None for one that has none, for a run that
    begins with `interventions`. Raises InvalidRequest for a new patch and for what `encode`
    refuses."""
    found: list[EncodedInterventions | None] = []
    for n, change in enumerate(updates):
        wanted = None
        if change.interventions is not None:
            try:
                check_no_new_patch(interventions, change.interventions)
                wanted = encode(change.interventions)
            except InvalidRequest as error:
                raise _refused(n, str(error)) from None
            interventions = change.interventions
        found.append(wanted)
    return tuple(found)


def _refused(n: int, why: str) -> InvalidRequest:
    return InvalidRequest(f"change {n + 1} of the request: {why}", "changes")
