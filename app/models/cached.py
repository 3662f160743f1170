"""Models on this machine that were downloaded, under the names that `find_model` accepts."""

from __future__ import annotations

from app.models.hub import HubFile
from app.models.hub_cache import cached_repositories
from app.models.hub_gguf import group_gguf_files
from app.models.known import WHEELS
from app.models.wheels import is_cached


def cached_models() -> list[tuple[str, int]]:
    """Return (name, bytes), sorted by name: models from wheels, and of the hub's cache repositories
    with safetensors, and complete GGUF models as REPOSITORY:FILE, FILE being their first file."""
    found = {name: model.n_bytes for name, model in WHEELS.items() if is_cached(name)}
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
