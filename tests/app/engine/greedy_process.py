"""Work for a limited process in a test: takes the time or the memory that it is asked to."""

from __future__ import annotations

import signal
import time


def answer(request: bytes) -> bytes:
    """Answer `hold MIB` by allocating that much, `sleep SECONDS` by sleeping with the alarm blocked
    that would end the process."""
    what, _, amount = request.partition(b" ")
    if what == b"hold":
        return str(len(bytearray(int(amount) << 20)) >> 20).encode()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(float(amount))
    return b"slept"
