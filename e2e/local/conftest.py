"""The page that drives the engine in the browser: WebGPU takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from e2e.local.local_engine import LocalEnginePage


@pytest.fixture(scope="session")
def local(
    launch_browser: Callable[..., Browser], browser_type_launch_args: dict[str, Any]
) -> Iterator[LocalEnginePage]:
    """A page in which an export can be loaded."""
    page = LocalEnginePage(launch_browser, browser_type_launch_args["args"])
    yield page
    page.close()
