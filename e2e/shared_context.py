"""Browser context that tests share: the page's files stay in its cache, all else is cleared.

The page has over a hundred files. In a context of its own, a test fetches and compiles each anew,
which is a third of the work of a short test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Frame, Page

MAX_AGE = 3600
"""Seconds that a browser need not ask for a file of the page again."""

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


class SharedContext:
    """`new_page` opens a page as in a new context, once `clear` has removed what was stored."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self._context: BrowserContext = browser.new_context(**options)
        self._blank = self._context.new_page()
        self._devtools = self._context.new_cdp_session(self._blank)
        self._origins: set[str] = set()

    def new_page(self) -> Page:
        page = self._context.new_page()
        page.on("framenavigated", self._note_origin)
        return page

    def _note_origin(self, frame: Frame) -> None:
        url = urlsplit(frame.url)
        if url.scheme in ("http", "https"):
            self._origins.add(f"{url.scheme}://{url.netloc}")

    def clear(self) -> None:
        """Close the pages, and remove cookies, permissions and what the pages stored."""
        for page in self._context.pages:
            if page is not self._blank:
                page.close()
        for origin in self._origins:
            data = {"origin": origin, "storageTypes": "all"}
            self._devtools.send("Storage.clearDataForOrigin", data)
        self._origins.clear()
        self._context.clear_cookies()
        self._context.clear_permissions()

    def close(self) -> None:
        self._context.close()
