"""Environment of Ray, which it reads when it is imported and hands on to its processes."""

from __future__ import annotations

import os
import secrets
import sys

from app.config import is_loopback

LOCAL = "local"
"""Value of `--ray` for a cluster of this server's own."""


def set_environment(address: str) -> None:
    """Let Ray report to nobody and, on a cluster of this machine alone, listen to nobody else. A
    cluster of this server's own takes a token that nobody else has.

    Raises RuntimeError if Ray was imported before.
    """
    if "ray" in sys.modules and os.environ.get("RAY_USAGE_STATS_ENABLED") != "0":
        raise RuntimeError("ray was imported before its environment was set")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    if address == LOCAL:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    if address == LOCAL or is_loopback(address.rpartition(":")[0]):
        # Without clusters of several machines, every process of Ray listens on loopback only.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
