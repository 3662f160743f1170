"""Pauses before the engine's process is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """After a death the process is started again at once, `at_once` times; then after pauses of
    `first` seconds, twice that and so on, up to `longest`. One that was ready for `steady` seconds
    begins anew."""

    at_once: int = 3
    first: int = 1
    longest: int = 60
    steady: float = 60.0


class Backoff:
    """Deaths in a row, and the pause after the last one."""

    def __init__(self, restart_policy: RestartPolicy) -> None:
        self._policy = restart_policy
        self.n_crashes = 0

    def crashed(self, ready_seconds: float) -> int:
        """Seconds to wait now, after a process that was ready for so long."""
        policy = self._policy
        if ready_seconds >= policy.steady:
            self.n_crashes = 0
        self.n_crashes += 1
        again = self.n_crashes - policy.at_once - 1
        if again < 0:
            return 0
        return min(policy.longest, policy.first << min(again, 30))

    def reset(self) -> None:
        """Another model is served: its deaths are its own."""
        self.n_crashes = 0
