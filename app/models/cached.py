"""Models in the hub's cache on this machine, under the names that `find_model` accepts."""

from __future__ import annotations

from app.models.hub import HubFile
from app.models.hub_cache import cached_repositories
from app.models.hub_gguf import group_gguf_files


def cached_models() -> list[tuple[str, int]]:
    """Return (name, bytes), sorted by name: repositories with safetensors, and complete GGUF models
    as REPOSITORY:FILE, FILE being their first file."""
    found: dict[str, int] = {}
    for repository in cached_repositories():
        for files in repository.snapshots:
            if any(name.endswith(".safetensors") for name in files):
                found[repository.name] = repository.n_bytes
            gguf = [
                HubFile(name, n_bytes, None, None)
                for name, n_bytes in files.items()
                if name.lower().endswith(".gguf")
            ]
            for parts in group_gguf_files(gguf).values():
                name = f"{repository.name}:{parts[0].name}"
                found[name] = sum(part.n_bytes for part in parts)
    return sorted(found.items())
