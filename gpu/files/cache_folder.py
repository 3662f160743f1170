"""The user's cache folder, whose content may be deleted at any time.

TOKENGLASS_CACHE names the folder; otherwise it is `tokenglass` in XDG_CACHE_HOME or in ~/.cache.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Return the folder's path, whether it exists or not; None for a user without a home."""
    if given := os.environ.get("TOKENGLASS_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # relative ones count as unset (XDG Base Directory Specification)
        return Path(base) / "tokenglass"
    try:
        return Path.home() / ".cache" / "tokenglass"
    except RuntimeError:
        return None
