"""Address of an upstream server and the key for it. Only the command line names it, so no request
can make the server call another host (SSRF)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from app.config import UPSTREAM_KEY, Settings, SettingsError

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """`path` comes before the routes of the API. `key` is sent to this host only, and never
    shown."""

    scheme: str
    host: str
    port: int
    path: str = ""
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Address:
        """Return the address of `--upstream`, with the key of the environment. Raises
        SettingsError."""
        url = settings.upstream or ""
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
            (parts.hostname or "").encode("idna")  # as it is when it is looked up
        except ValueError as error:
            raise _bad_url(url, str(error)) from None
        if parts.scheme not in PORTS or not parts.hostname:
            raise _bad_url(url, "it has no scheme or no host")
        if parts.username is not None or parts.password is not None:
            raise SettingsError(
                "--upstream must not contain a user or a password, which others on this machine "
                f"could read; set {UPSTREAM_KEY} in the environment instead"
            )
        if parts.query or parts.fragment:
            raise _bad_url(url, "it has a query or a fragment")
        if not re.fullmatch("[!-~]*", parts.path):
            raise _bad_url(url, "its path has characters that must be escaped (a space: %20)")
        key = os.environ.get(UPSTREAM_KEY) or None
        if key is not None and not (key.isascii() and key.isprintable()):
            raise SettingsError(f"{UPSTREAM_KEY} must have printable ASCII characters only")
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, parts.hostname, port, path, key)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def _bad_url(url: str, why: str) -> SettingsError:
    return SettingsError(
        f"--upstream must be an address such as http://localhost:8080 or https://api.example.org, "
        f"but got {url!r}: {why}"
    )
