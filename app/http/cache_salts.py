"""Salts of the prefix cache, which keep clients from finding each other's texts there.

An answer takes less time if the beginning of its prompt is cached, and its usage says how much was.
A client that shared the cache of another could guess what that one wrote, token by token.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import TypeVar

import msgspec

from gpu import Request
from gpu.inspection.requests import Question

Asked = TypeVar("Asked", bound=Request | Question)


class CacheSalts:
    """Salts of the clients of one server. `shared`: clients share what is cached, except for
    requests that bring a `cache_salt`."""

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._key = secrets.token_bytes(32)

    def salted(self, client: str, asked: Asked) -> Asked:
        """Return what a client asks for with a salt that no other client has or can guess, unless
        it has one already: then it shares with all who know that one, as in vLLM."""
        if asked.cache_salt or self._shared:
            return asked
        salt = blake2b(client.encode(), key=self._key, digest_size=32).hexdigest()
        return msgspec.structs.replace(asked, cache_salt=salt)
