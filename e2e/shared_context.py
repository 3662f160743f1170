"""Browser context and page that tests share: what a test changes is undone, the rest is kept.

The page has over a hundred files, which stay in the context's cache. A page of its own has two new
processes in each test, one blank and one isolated as the server's headers ask for; a page that is
used again stays in its process. Each is a fifth to a third of the work of a short test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Error, Frame, Page

MAX_AGE = 3600
"""Seconds that a browser need not ask for a file of the page again."""

LASTING = ("add_init_script", "expose_binding", "expose_function", "route_web_socket")
"""Methods of a page whose effect lasts as long as the page."""

BLANK_PATH = "/blank"
BLANK_BODY = b"<link rel='icon' href='data:,'>"
"""Document with an icon: for one without, Chromium asks its site, which may be closed by then."""

BLANK_HEADERS = [("Content-Type", "text/html"), ("Cross-Origin-Opener-Policy", "same-origin")]
"""The page's own policy, so that the tab stays in its process."""

StartResponse = Callable[..., Any]
WsgiApp = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


def cache_static_files(app: WsgiApp) -> WsgiApp:
    """Let browsers keep the files of the page, which do not change while tests run."""

    def cached(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            headers = [(name, value) for name, value in headers if name.lower() != "cache-control"]
            headers.append(("Cache-Control", f"max-age={MAX_AGE}"))
            return start_response(status, headers, exc_info)

        is_static = environ["PATH_INFO"].startswith("/static/")
        return app(environ, start if is_static else start_response)

    return cached


def serve_blank(app: WsgiApp) -> WsgiApp:
    """Serve a document that does nothing, to which the shared page goes after a test."""

    def served(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != BLANK_PATH:
            return app(environ, start_response)
        start_response("200 OK", BLANK_HEADERS)
        return [BLANK_BODY]

    return served


class SharedContext:
    """`page` gives a page as in a new context, once `clear` has undone what a test changed."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self._context: BrowserContext = browser.new_context(**options)
        self._viewport = options["viewport"]
        own = {name: options[name] for name in ("color_scheme", "reduced_motion")}
        self._media = {"forced_colors": "null", "media": "null", **own}
        self._blank = self._context.new_page()
        self._devtools = self._context.new_cdp_session(self._blank)
        self._shared: _SharedPage | None = None
        self._origins: set[str] = set()
        self._context.on("page", lambda page: page.on("framenavigated", self._note_origin))

    def page(self) -> Page:
        """Return the shared page, or a new one if the last test left it where it cannot be used."""
        if self._shared is None:
            self._shared = _SharedPage(self._context.new_page())
        return self._shared.page

    def _note_origin(self, frame: Frame) -> None:
        url = urlsplit(frame.url)
        if url.scheme in ("http", "https"):
            self._origins.add(f"{url.scheme}://{url.netloc}")

    def clear(self) -> None:
        """Close all pages but the shared one, and undo what the test changed: listeners, routes,
        sizes, colours, cookies, permissions and what the pages stored."""
        origins, self._origins = self._origins, set()
        kept = [self._blank]
        if self._shared and self._shared.leave(origins):
            self._shared.page.set_viewport_size(self._viewport)
            self._shared.page.emulate_media(**self._media)
            kept.append(self._shared.page)
        else:
            self._shared = None
        for page in self._context.pages:
            if page not in kept:
                page.close()
        for origin in origins:
            data = {"origin": origin, "storageTypes": "all"}
            self._devtools.send("Storage.clearDataForOrigin", data)
        self._origins.clear()
        self._context.clear_cookies()
        self._context.clear_permissions()

    def close(self) -> None:
        self._context.close()


class _SharedPage:
    """Page that can be used again, unless a test changed what Playwright cannot undo."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._listeners: list[tuple[str, Callable[..., Any]]] = []
        self._can_be_undone = True
        self._add_listener = page.on
        page.on = self._on  # type: ignore[assignment]
        for name in LASTING:
            setattr(page, name, self._lasting(getattr(page, name)))

    def _on(self, event: Any, listener: Callable[..., Any]) -> None:
        self._listeners.append((event, listener))
        self._add_listener(event, listener)

    def _lasting(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **named: Any) -> Any:
            self._can_be_undone = False
            return change(*args, **named)

        return changed

    def leave(self, origins: set[str]) -> bool:
        """Leave the site for a document of it that does nothing. Return whether the page can be
        used again: not if its site is gone, or what it stored for a second site is in the tab."""
        for event, listener in self._listeners:
            self.page.remove_listener(event, listener)
        self._listeners.clear()
        if len(origins) != 1 or not self._can_be_undone:
            return False
        try:
            self.page.unroute_all(behavior="ignoreErrors")
            self.page.mouse.move(0, 0)  # else the next test's page shows what is under it
            self.page.goto(next(iter(origins)) + BLANK_PATH)
            self.page.evaluate("() => { sessionStorage.clear(); window.name = ''; }")
        except Error:
            return False
        return True
