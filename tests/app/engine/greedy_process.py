"""Work for a limited process in a test: takes the time or the memory that it is asked to."""

from __future__ import annotations

import signal
import time


def answer(request: bytes) -> bytes:
    """`hold MIB`: allocate so much. `sleep SECONDS`: without work, and deaf to the alarm with which
    the process would end itself."""
    what, _, amount = request.partition(b" ")
    if what == b"hold":
        return str(len(bytearray(int(amount) << 20)) >> 20).encode()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(float(amount))
    return b"slept"
