"""Fixtures of browser tests. Every test fails on console errors and CSP violations."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from app import tale
from app.cli.software_device import browser as installed_browser
from e2e.bundled import bundled_site
from e2e.late import delay_page
from e2e.playground import Playground
from e2e.shared_context import SharedContext
from e2e.site import Site, fake_site
from e2e.waiting import TIMEOUT_MS
from gpu import Engine

logging.getLogger("werkzeug").setLevel(logging.WARNING)  # else it logs every file of the page
# As in tests/conftest.py: no test uses the network by accident.
os.environ.setdefault("TOKENGLASS_MODEL", "tale")
os.environ.setdefault("PIP_NO_INDEX", "1")
expect.set_options(timeout=TIMEOUT_MS)

UNUSED = (
    # Internal pages that each window would open: half of the work of a short test.
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup",
    # Features that Playwright switches off: only the last --disable-features counts.
    "AimEnabled", "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable", "HttpsUpgrades", "LensOverlay", "MediaRouter",
    "NetworkTimeServiceQuerying", "OptimizationHints", "PaintHolding", "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
    # A process started ahead for a next page, which no test opens.
    "SpareRendererForSitePerProcess",
)  # fmt: skip
"""Features of Chromium to switch off."""
RECORDINGS = ("tracing", "video", "screenshot")
"""Options of Playwright that record a context, each "off" by default."""
CALL = """async ([module, name, args]) =>
  (await import(`/static/js/${module}.js`))[name](...args)"""


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "delay every animation frame and WebSocket message of a page by this time"
    parser.addoption("--late", type=int, default=0, metavar="MS", help=help)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests of CI and `make test`, and rerun a failed browser test once: on a busy
    machine a browser may miss a deadline.

    The summary says RERUN. Not with `--late`, which is for finding such tests.
    """
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    mark_by_command(here)
    for item in here:
        if not config.getoption("late", 0):
            item.add_marker(pytest.mark.flaky(reruns=1))


def mark_by_command(items: Iterable[pytest.Item]) -> None:
    """Mark the tests of the page that are not `quick` as `page`, which CI leaves out, and of the
    others those that are neither `smoke` nor `push` as `ci`, which `make test` leaves out."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "quick" not in marks:
            item.add_marker(pytest.mark.page)
        elif not marks & {"smoke", "push"}:
            item.add_marker(pytest.mark.ci)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let files that share a fixture which is slow to start run in one process."""
    if config.getoption("dist") != "loadfile":
        return None
    from e2e.sharing import SharingScheduling

    return SharingScheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the failures of tests that were rerun."""
    again = terminalreporter.stats.get("rerun", [])
    if again:
        terminalreporter.section("failures before a rerun")
    for report in again:
        terminalreporter.line(f"{report.nodeid}\n{report.longreprtext}\n")


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Use TOKENGLASS_CHROMIUM or the system's Chromium if there is one, else Playwright's."""
    path = installed_browser()
    args = [*browser_type_launch_args.get("args", []), "--disable-dev-shm-usage"]
    args.append(f"--disable-features={','.join(UNUSED)}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        args.append("--no-sandbox")
    executable = {"executable_path": path} if path else {}
    return {**browser_type_launch_args, **executable, "args": args}


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
        delay_page(context, late)
    return context


@pytest.fixture(scope="session")
def shared_context(
    browser: Browser, browser_context_args: dict[str, Any]
) -> Iterator[SharedContext]:
    shared = SharedContext(browser, **browser_context_args)
    yield shared
    shared.close()


@pytest.fixture
def page(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Page]:
    """A page with nothing stored. It is opened in a context of its own with `--late` or one of
    Playwright's `RECORDINGS`, and for tests that use the fixture `context`, as those must that
    change the context itself: its clock, scripts or routes.
    """
    records = any(pytestconfig.getoption(name) != "off" for name in RECORDINGS)
    if "context" in request.fixturenames or records or pytestconfig.getoption("late", 0):
        yield request.getfixturevalue("context").new_page()
        return
    shared: SharedContext = request.getfixturevalue("shared_context")
    yield shared.page()
    shared.clear()


@pytest.fixture(scope="session")
def _sites() -> Iterator[dict[tuple[Any, ...], Site]]:
    sites: dict[tuple[Any, ...], Site] = {}
    yield sites
    for site in sites.values():
        site.close()


@pytest.fixture
def site(_sites: dict[tuple[Any, ...], Site]) -> Callable[..., Site]:
    """`site(delay=…, …)`: a server with a fake engine of these options, shared by the session."""

    def get(**options: Any) -> Site:
        key = tuple(sorted(options.items()))
        if key not in _sites:
            _sites[key] = fake_site(**options)
        return _sites[key]

    return get


@pytest.fixture(scope="session")
def bundled() -> Iterator[Site]:
    """Server with the bundled model, shared by the session: its shaders are compiled once."""
    with bundled_site() as site:
        yield site


@pytest.fixture(scope="session")
def bundled_engine() -> Iterator[Engine]:
    """Engine of the bundled model in this process, as the reference for the page's numbers."""
    engine = Engine.load(tale.model_dir())
    yield engine
    engine.close()


@pytest.fixture
def own_site() -> Iterator[Callable[..., Site]]:
    """`own_site(…)`: a server for one test, which may break it."""
    made: list[Site] = []

    def make(**options: Any) -> Site:
        made.append(fake_site(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def loaded(browser: Browser, _sites: dict[tuple[Any, ...], Site]) -> Iterator[Page]:
    """Page shared by the tests of a file that only call its modules."""
    page = browser.new_page()
    page.goto(_sites.setdefault((), _sites.get(()) or fake_site()).url)
    yield page
    page.close()


@pytest.fixture
def call(loaded: Page) -> Callable[..., Any]:
    """`call(module, function, *arguments)` of static/js, such as `call("look/shared/save", "csv",
    …)`."""

    def run(module: str, name: str, *arguments: Any) -> Any:
        return loaded.evaluate(CALL, [module, name, list(arguments)])

    return run


@pytest.fixture
def allowed_console() -> list[str]:
    """Patterns of console errors that a test expects; the test appends to this list."""
    return []


@pytest.fixture(autouse=True)
def _clean_console(page: Page, allowed_console: list[str]) -> Iterator[None]:
    """Fail the test on console errors, exceptions and CSP violations, except allowed ones."""
    problems: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(f"{message.type}: {message.text} ({message.location.get('url')})")

    page.on("console", on_console)
    page.on("pageerror", lambda error: problems.append(f"exception: {error}\n{error.stack}"))
    yield
    left = [p for p in problems if not any(re.search(allowed, p) for allowed in allowed_console)]
    assert not left, "errors in the console of the page:\n" + "\n".join(left)


@pytest.fixture
def play(page: Page, site: Callable[..., Site]) -> Callable[..., Playground]:
    """`play(delay=…)`: the page of a server with a fake engine, open and ready."""

    def start(**options: Any) -> Playground:
        return Playground(page, site(**options)).open()

    return start
