"""Ends a process together with the server that started it. Imports only the standard library, as
`app.processes.limited_child` does."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(*, ends: bool = True) -> None:
    """Have Linux kill this process when the thread that started it ends (`ends=False`: no longer).
    A process that is frozen or hangs does not notice the end of its pipe. The thread must live as
    long as the process is needed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL) if ends else 0)
