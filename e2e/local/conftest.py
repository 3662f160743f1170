"""The page that drives the engine in the browser: WebGPU takes seconds to start."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage

from app import tale
from app.config import Settings
from app.engine_client import LocalEngine
from e2e.bundled import load_paced_engine
from e2e.local.exports import SMALL, exported
from e2e.local.local_engine import LocalEnginePage
from e2e.playground import Playground
from e2e.site import Site
from gpu import Engine, Tokenizer
from gpu.load_options import LoadOptions
from tests.app.conftest import wait_ready


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


@pytest.fixture(scope="session")
def f32_server() -> Iterator[Site]:
    """A server that runs the bundled model in f32, with a pause after every token."""
    yield from paced_server({})


def paced_server(loras: dict[str, Path]) -> Iterator[Site]:
    """Run such a server, with these adapters."""
    folder = tale.model_dir()
    load = functools.partial(load_paced_engine, Settings(port=0, dtype="f32"), folder, loras=loras)
    site = Site(LocalEngine(load, Tokenizer.load(folder), folder), loras=loras).start()
    wait_ready(site.engine)
    yield site
    site.close()


@pytest.fixture
def moving(f32_server: Site, open_with_gpu: Callable[[str], Playground]) -> Playground:
    """The page of that server, ready, in a browser with WebGPU."""
    return open_with_gpu(f32_server.url.replace("127.0.0.1", "localhost"))


@pytest.fixture(scope="session")
def small_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model in f32."""
    return exported(SMALL, tmp_path_factory.mktemp("exports"), "f32")


@pytest.fixture
def small(local: LocalEnginePage, small_export: Path) -> LocalEnginePage:
    """The page with that model, loaded again if a test between had another one there."""
    if local.loaded != small_export:
        local.load(small_export)
    return local


@pytest.fixture(scope="session")
def small_server() -> Iterator[Engine]:
    """The server's engine with that model."""
    engine = Engine.load(SMALL.folder, LoadOptions(dtype="f32", slots=2))
    yield engine
    engine.close()


@pytest.fixture
def open_with_gpu(
    gpu_browser: Browser, browser_context_args: dict[str, Any], allowed_console: list[str]
) -> Iterator[Callable[[str], Playground]]:
    """Function that opens a page in a browser with WebGPU. Errors in its console fail the test,
    except allowed ones."""
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
    assert not [p for p in problems if not any(re.search(each, p) for each in allowed_console)]
