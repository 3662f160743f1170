"""A browser and servers for it; every test fails on a console error or a broken policy."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from app import tale
from e2e.bundled import bundled_site
from e2e.late import hold_back
from e2e.playground import PATIENCE_MS, Playground
from e2e.site import Site, fake_site
from gpu import Engine

logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for every file of the page
expect.set_options(timeout=PATIENCE_MS)

UNUSED = (
    # Pages of the browser's own that each window would open: half of a short test's work.
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup",
    # What Playwright switches off: the last --disable-features counts alone.
    "AimEnabled", "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay", "MediaRouter",
    "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)  # fmt: skip
"""Features of Chromium."""
CALL = """async ([module, name, args]) =>
  (await import(`/static/js/${module}.js`))[name](...args)"""


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "hold back every frame and message of a page, and what it sends, for so long"
    parser.addoption("--late", type=int, default=0, metavar="MS", help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A browser on a busy machine may miss a frame or a deadline: a test of this folder gets a
    second try, and the summary says RERUN when it needed one. Not with `--late`, which finds such
    tests."""
    if config.getoption("late", 0):
        return
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What went wrong at the first try: which test it was does not say why."""
    again = terminalreporter.stats.get("rerun", [])
    if again:
        terminalreporter.section("before a second try")
    for report in again:
        terminalreporter.line(f"{report.nodeid}\n{report.longreprtext}\n")


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The system's Chromium where there is one (or TOKENGLASS_CHROMIUM), else Playwright's."""
    path = os.environ.get("TOKENGLASS_CHROMIUM") or shutil.which("chromium")
    args = [*browser_type_launch_args.get("args", []), "--disable-dev-shm-usage"]
    args.append(f"--disable-features={','.join(UNUSED)}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        args.append("--no-sandbox")
    found = {"executable_path": path} if path else {}
    return {**browser_type_launch_args, **found, "args": args}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    return {
        **browser_context_args,
        "viewport": {"width": 1440, "height": 900},
        "color_scheme": "light",
        "reduced_motion": "no-preference",
    }


@pytest.fixture
def context(context: BrowserContext, pytestconfig: pytest.Config) -> BrowserContext:
    if late := pytestconfig.getoption("late", 0):
        hold_back(context, late)
    return context


@pytest.fixture(scope="session")
def _sites() -> Iterator[dict[tuple[Any, ...], Site]]:
    sites: dict[tuple[Any, ...], Site] = {}
    yield sites
    for site in sites.values():
        site.close()


@pytest.fixture
def site(_sites: dict[tuple[Any, ...], Site]) -> Callable[..., Site]:
    """`site(delay=…, …)`: a server with a fake engine of these options, kept for the session."""

    def get(**options: Any) -> Site:
        key = tuple(sorted(options.items()))
        if key not in _sites:
            _sites[key] = fake_site(**options)
        return _sites[key]

    return get


@pytest.fixture(scope="session")
def bundled() -> Iterator[Site]:
    """A site around the bundled model, for the whole session: its shaders are compiled once."""
    with bundled_site() as site:
        yield site


@pytest.fixture(scope="session")
def bundled_engine() -> Iterator[Engine]:
    """The bundled model in this process, to hold the page's numbers to."""
    engine = Engine.load(tale.model_dir())
    yield engine
    engine.close()


@pytest.fixture
def own_site() -> Iterator[Callable[..., Site]]:
    """`own_site(…)`: a server for this test alone, which may break it."""
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(fake_site(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def loaded(browser: Browser, _sites: dict[tuple[Any, ...], Site]) -> Iterator[Page]:
    """A page whose modules are called by the tests of one file, which leave it as it was."""
    page = browser.new_page()
    page.goto(_sites.setdefault((), _sites.get(()) or fake_site()).url)
    yield page
    page.close()


@pytest.fixture
def call(loaded: Page) -> Callable[..., Any]:
    """`call(module, function, *arguments)` of static/js, such as `call("look/save", "csv", …)`."""

    def run(module: str, name: str, *arguments: Any) -> Any:
        return loaded.evaluate(CALL, [module, name, list(arguments)])

    return run


@pytest.fixture
def allowed_console() -> list[str]:
    """Patterns of console errors that a test expects; it appends to this list."""
    return []


@pytest.fixture(autouse=True)
def _clean_console(page: Page, allowed_console: list[str]) -> Iterator[None]:
    """No console error, no exception and no policy violation, unless the test said so."""
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(f"exception: {error}\n{error.stack}"))
    yield
    left = [p for p in problems if not any(re.search(allowed, p) for allowed in allowed_console)]
    assert not left, "the page complained:\n" + "\n".join(left)


@pytest.fixture
def play(page: Page, site: Callable[..., Site]) -> Callable[..., Playground]:
    """`play(delay=…)`: the page of a fake site, open and ready."""

    def start(**options: Any) -> Playground:
        return Playground(page, site(**options).url).open()

    return start
