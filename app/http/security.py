"""Access control: the checks of Host, Origin and token, and the security headers of the page.

Every request, WebSocket upgrades included, passes `_check_access` before its route:

1. The Host header must be an address or name of this server. This prevents DNS rebinding.
2. The Origin header, if present, must be that of the page as this server serves it: http, with the
   name and port of the Host header; `null` and https are refused. Behind a proxy that adds TLS or
   has another name, `--allow-origin` names the origin that the browser sees. A WebSocket needs an
   Origin unless it carries the token. Requests from other sites without an Origin (images, scripts,
   frames) are recognised by Sec-Fetch-Site. A plain link to `/` works: the browser omits the
   SameSite cookie then, so the answer makes it load `/` again, with the cookie.
3. If a token is set, every path but /health needs it: as `Authorization: Bearer`, or as the cookie
   that `/?token=…` sets. It is compared in constant time.

The cookie holds the browser session, which owns generations. It is signed, specific to the port,
SameSite=Strict and HttpOnly.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from typing import Any
from urllib.parse import urlsplit

from flask import Flask, Response, g, redirect, request
from werkzeug.exceptions import Forbidden, Unauthorized

from app.config import HOST, Settings, is_loopback, name_in

MAX_BODY_BYTES = 1024 * 1024
ARRIVED = '<!doctype html><script src="static/js/reload-first.js"></script>'
"""Page for a link from another site. Its script reloads, which keeps the part of the address after
the hash. A Refresh header would drop it, and is for visitors without a session, who may not load
the script."""
OPEN_PATHS = frozenset({"/health"})

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src {connect}; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def static_policy() -> str:
    """Return the Content-Security-Policy of the page as a file, for a meta element, where
    frame-ancestors is not allowed."""
    directives = CSP.format(connect="'self'").split("; ")
    return "; ".join(each for each in directives if not each.startswith("frame-ancestors"))


class Guard:
    """Access rules of one server; see the docstring of this module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token = settings.token.encode() if settings.token else None
        key = hashlib.sha256(self._token).digest() if self._token else secrets.token_bytes(32)
        self._cookie_key = key
        self._origins = frozenset(map(_as_browsers_send, settings.allow_origin))
        self._names = {"localhost", settings.host.lower(), *map(name_in, settings.allow_host)}
        self._names |= {str(urlsplit(origin).hostname) for origin in self._origins}
        if not is_loopback(settings.host):
            self._names.add(socket.gethostname().lower())

    # ---- Host and Origin ---------------------------------------------------------------------

    def allows_host(self, header: str) -> bool:
        """Return whether this Host header may be used. Its port is not compared: tunnels change it.

        A server on a loopback address accepts loopback addresses and its own names; one that other
        machines reach accepts any address, since DNS rebinding needs a name.
        """
        match = HOST.fullmatch(header.lower())
        if match is None:
            return False
        host = match.group(1).strip("[]")
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return address.is_loopback or not is_loopback(self._settings.host)

    def allows_origin(self, origin: str, host: str) -> bool:
        """Return whether this Origin is that of a page served under this (allowed) Host header."""
        origin = origin.lower()
        return origin == f"http://{host.lower()}" or origin in self._origins

    def is_behind_tls(self, host: str) -> bool:
        """Return whether the browser reaches this (allowed) host over https only."""
        return f"https://{host.lower()}" in self._origins

    def policy(self, host: str) -> str:
        """Return the Content-Security-Policy of a page under this host."""
        sockets = [f"ws://{host}"] if self.allows_host(host) else []
        sockets += [re.sub("^http", "ws", origin) for origin in sorted(self._origins)]
        allowed = ["'self'", *sockets, *self._settings.hub_url, *self._settings.tool_url]
        return CSP.format(connect=" ".join(allowed))

    # ---- token and cookie --------------------------------------------------------------------

    def is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token)

    def has_token(self) -> bool:
        """Return whether the request has the token in its Authorization header."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(given.strip())

    @property
    def needs_token(self) -> bool:
        return self._token is not None

    def cookie_name(self) -> str:
        """Return the cookie's name. It contains the port: browsers share cookies of all ports."""
        _, _, port = request.host.rpartition(":")
        return f"tokenglass_{port if port.isdigit() else 'default'}"

    def new_cookie(self) -> str:
        session = secrets.token_urlsafe(18)
        return f"{session}.{self._sign(session)}"

    def session_in(self, cookie: str) -> str | None:
        """Return the browser session in a cookie; None if its signature is invalid."""
        session, _, signature = cookie.partition(".")
        valid = hmac.compare_digest(signature.encode(), self._sign(session).encode())
        return session if valid else None

    def _sign(self, session: str) -> str:
        return hmac.new(self._cookie_key, session.encode(), hashlib.sha256).hexdigest()


def _as_browsers_send(origin: str) -> str:
    """Return an address as an Origin header has it: without the default port."""
    origin = origin.lower()
    return origin.removesuffix(":443" if origin.startswith("https:") else ":80")


def browser_session() -> str:
    """Return the owner of what this request starts: the session in its cookie, else a new one."""
    return str(g.session or secrets.token_urlsafe(18))


def register(app: Flask, settings: Settings) -> None:
    """Check every request of `app`, and set the security headers of every response."""
    guard = Guard(settings)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES

    @app.before_request
    def check_access() -> Any:
        return _check_access(guard)

    @app.after_request
    def set_security_headers(response: Response) -> Response:
        return _set_security_headers(guard, response)


def _check_access(guard: Guard) -> Any:
    host = request.headers.get("Host", "")
    if not guard.allows_host(host):
        raise Forbidden(
            f"the Host header names {name_in(host) or host!r}, which is no name of this server; "
            "to allow it, start the server with --allow-host and that name"
        )
    bearer = guard.has_token()
    _check_origin(guard, host, bearer)
    g.session = guard.session_in(request.cookies.get(guard.cookie_name(), ""))
    g.new_session = False
    opens_page = request.method == "GET" and request.path == "/"
    if opens_page and not g.session:
        if guard.is_token(request.args.get("token", "")):
            g.new_session = True
            return redirect("./", code=303)  # a proxy may serve the page below a path
        if _from_other_site():
            return Response(ARRIVED, headers={"Refresh": "1; url=./"}, mimetype="text/html")
    if not guard.needs_token or bearer or g.session or request.path in OPEN_PATHS:
        g.new_session = opens_page and not g.session
        return None
    raise Unauthorized(
        "this server needs a token: send `Authorization: Bearer TOKEN`, "
        "or open /?token=TOKEN in a browser"
    )


def _check_origin(guard: Guard, host: str, bearer: bool) -> None:
    origin = request.headers.get("Origin")
    if origin is not None:
        if not guard.allows_origin(origin, host):
            raise Forbidden(
                f"requests from the origin {origin!r} are refused; if a proxy serves this page "
                "there, start the server with --allow-origin and that address"
            )
        return
    if request.headers.get("Upgrade", "").lower() == "websocket" and not bearer:
        raise Forbidden("a WebSocket needs an Origin header, or the token")
    if not _from_other_site():
        return
    navigates = request.headers.get("Sec-Fetch-Mode") == "navigate"
    top_level = request.headers.get("Sec-Fetch-Dest") == "document"
    if not (navigates and top_level and request.method == "GET" and request.path == "/"):
        raise Forbidden("requests from pages of another site are refused")


def _from_other_site() -> bool:
    return request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")


def _set_security_headers(guard: Guard, response: Response) -> Response:
    host = request.headers.get("Host", "")
    headers = response.headers
    headers["Content-Security-Policy"] = guard.policy(host)
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if g.get("new_session") and response.status_code < 400:
        response.set_cookie(
            guard.cookie_name(),
            guard.new_cookie(),
            samesite="Strict",
            httponly=True,
            secure=guard.is_behind_tls(host),
            path=None,  # the browser's default is the folder of the page
        )
    return response
