"""The models in the hub's cache on this machine, by the names under which they can be taken."""

from __future__ import annotations

from app.hub import HubFile
from app.hub_cache import cached_repositories
from app.hub_gguf import choices


def cached_models() -> list[tuple[str, int]]:
    """(name, bytes) by name: repositories that hold safetensors, and each GGUF model, of which all
    files are there, as REPOSITORY:FILE, the first of them."""
    found: dict[str, int] = {}
    for repository in cached_repositories():
        for files in repository.snapshots:
            if any(name.endswith(".safetensors") for name in files):
                found[repository.name] = repository.n_bytes
            there = [HubFile(name, n_bytes, None, None) for name, n_bytes in files.items()]
            gguf = [file for file in there if file.name.lower().endswith(".gguf")]
            for parts in choices(gguf).values():
                name = f"{repository.name}:{parts[0].name}"
                found[name] = sum(part.n_bytes for part in parts)
    return sorted(found.items())
