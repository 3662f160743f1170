"""The page that drives the engine in the browser: WebGPU takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage

from e2e.local.local_engine import LocalEnginePage
from e2e.playground import Playground


@pytest.fixture(scope="session")
def local(
    launch_browser: Callable[..., Browser], browser_type_launch_args: dict[str, Any]
) -> Iterator[LocalEnginePage]:
    """A page in which an export can be loaded."""
    page = LocalEnginePage(launch_browser, browser_type_launch_args["args"])
    yield page
    page.close()


@pytest.fixture(scope="session")
def gpu_browser(
    launch_browser: Callable[..., Browser], browser_type_launch_args: dict[str, Any]
) -> Iterator[Browser]:
    """A browser with WebGPU."""
    browser = launch_browser(args=[*browser_type_launch_args["args"], "--enable-unsafe-webgpu"])
    yield browser
    browser.close()


@pytest.fixture
def open_with_gpu(
    gpu_browser: Browser, browser_context_args: dict[str, Any]
) -> Iterator[Callable[[str], Playground]]:
    """Function that opens a page in a browser with WebGPU. Errors in its console fail the test."""
    problems: list[str] = []
    context = gpu_browser.new_context(**browser_context_args)

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def open_page(url: str) -> Playground:
        page = context.new_page()
        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        return Playground(page, url=url).open()

    yield open_page
    context.close()
    assert not problems
