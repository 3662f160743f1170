"""A model goes from a hub to the visitor's browser: by ranges, checked, kept, and resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from app import tale
from app.config import Settings
from app.engine_client import LocalEngine
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.local.exports import TALE, server_tokens
from e2e.local.text_cases import chat_of
from e2e.playground import Playground
from e2e.site import Site
from gpu import Tokenizer
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.models.fake_hub import FakeHub, Repo

NAME = "some/tale"
WEIGHTS = "model.safetensors"
PROMPT = "Tell me a story about a fox"
N = 12
MOVE_MS = 60_000

OPEN = """async ([hub, name, dtype]) => {
  const { HubFiles } = await import("/static/js/local/hub/hub-files.js");
  const plans = new URL("api/local/plans", document.baseURI).href;
  try {
    const files = await HubFiles.open({ hub, name, dtype, plans });
    if (!dtype) return { chat: files.chat };
    const { manifest } = await files.load("portable");
    for (const piece of files.pieces()) await piece.read();
    const { keptModels } = await import("/static/js/local/gpu/weight-cache.js");
    return { manifest, kept: await keptModels() };
  } catch (error) {
    return { error: error.message };
  }
}"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    folder = tale.model_dir()
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    server.repos[NAME] = Repo(files)
    yield server
    server.close()


def site_with(*hub_url: str) -> Site:
    engine = LocalEngine(loader(delay=0.0), FakeTokenizer())
    return Site(engine, settings=Settings(port=0, hub_url=hub_url)).start()


@pytest.fixture
def site(hub: FakeHub) -> Iterator[Site]:
    """A server with a fake engine, whose pages may use the hub and the host of its downloads."""
    site = site_with(hub.url, hub.url.replace("127.0.0.1", "localhost"))
    yield site
    site.close()


def ranges(hub: FakeHub, skip: int = 0) -> list[str]:
    """Return the ranges of weights that were asked for, without the two of a header."""
    found = [str(each.range) for each in hub.asked[skip:] if each.path.startswith("/cdn/")]
    return [each for each in found if not each.startswith(("bytes=0-", "bytes=8-"))]


def test_what_was_fetched_is_kept_checked_and_not_fetched_again(
    page: Page, site: Site, hub: FakeHub, allowed_console: list[str]
) -> None:
    """Also when the connection breaks in the middle."""
    allowed_console.append("Failed to load resource")
    page.goto(site.url)
    record_once(page)
    left = iter(range(12))

    def break_off(route: Route) -> None:
        route.continue_() if next(left, None) is not None else route.abort()

    page.route(f"**/{WEIGHTS}", break_off)
    broken = page.evaluate(OPEN, [hub.url, NAME, "f16"])
    page.unroute(f"**/{WEIGHTS}")
    assert "Try again to go on where it stopped" in broken["error"]
    first = ranges(hub)
    n_asked = len(hub.asked)
    found = page.evaluate(OPEN, [hub.url, NAME, "f16"])
    assert "error" not in found, found
    again = ranges(hub, n_asked)
    assert len(first) > 5
    # A piece may be made of three tensors, and is kept when it has all.
    assert not set(first[:-2]) & set(again), "what had come was kept"
    [kept] = found["kept"]
    assert kept["model"] == f"{NAME} · f16"
    assert kept["bytes"] == kept["total"], "all that is kept is there"

    n_asked = len(hub.asked)
    assert page.evaluate(OPEN, [hub.url, NAME, "f16"])["manifest"]["model"]["kv_dtype"] == "f16"
    assert ranges(hub, n_asked) == []
    page.evaluate(SPOIL)
    assert "error" not in page.evaluate(OPEN, [hub.url, NAME, "f16"])
    assert ranges(hub, n_asked), "what was damaged on the disk is fetched again"


def record_once(page: Page) -> None:
    """Answer a page's later requests for plans as the first one: recording takes seconds."""
    answers: list[bytes] = []

    def answer(route: Route) -> None:
        if not answers:
            reply = route.fetch()
            assert reply.ok, reply.text()
            answers.append(reply.body())
        route.fulfill(body=answers[0], content_type="application/json")

    page.route("**/api/local/plans", answer)


SPOIL = """async () => {
  const cache = await caches.open("tokenglass-models");
  for (const key of await cache.keys()) {
    const { headers } = await cache.match(key);
    const data = new Uint8Array(await (await cache.match(key)).arrayBuffer());
    data[data.length >> 1] ^= 1;
    await cache.put(key, new Response(data, { headers }));
  }
}"""


def test_what_the_manifest_says_is_what_the_server_reads(
    page: Page, site: Site, hub: FakeHub
) -> None:
    page.goto(site.url)
    chat = page.evaluate(OPEN, [hub.url, NAME, ""])["chat"]
    assert chat == chat_of(Tokenizer.load(tale.model_dir()))


def test_more_templates_are_fetched(page: Page, site: Site, hub: FakeHub) -> None:
    files = hub.repos[NAME].files
    files["additional_chat_templates/default.jinja"] = b"one \xc3\xa9"
    files["additional_chat_templates/tool_use.jinja"] = b"two"
    files["additional_chat_templates/not a name.jinja"] = b"three"
    page.goto(site.url)
    chat = page.evaluate(OPEN, [hub.url, NAME, ""])["chat"]
    assert (chat["chat_template"], chat["tool_template"]) == ("one é", "two")
    assert not hub.fetched("not a name.jinja")


def without(*names: str) -> Callable[[FakeHub], None]:
    def change(hub: FakeHub) -> None:
        for name in names:
            del hub.repos[NAME].files[name]

    return change


def with_file(name: str, data: bytes) -> Callable[[FakeHub], None]:
    def change(hub: FakeHub) -> None:
        hub.repos[NAME].files[name] = data

    return change


def damaged(name: str) -> Callable[[FakeHub], None]:
    return lambda hub: hub.faults.damage.add(name)


def refused(hub: FakeHub) -> None:
    hub.faults.status = 503


def without_ranges(hub: FakeHub) -> None:
    hub.faults.whole = True


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("tokenizer.json"), "has no tokenizer.json, so it cannot run here"),
        (without(WEIGHTS), "has neither model.safetensors nor model.safetensors.index.json"),
        (damaged("tokenizer.json"), "is not the file that the hub lists"),
        (with_file("config.json", b'{"model_type": "rwkv"}'), "'rwkv' is not supported"),
        (with_file("config.json", b"[]"), "config"),
        (with_file(WEIGHTS, b"\xff" * 64), "its header would have"),
        (with_file(WEIGHTS, b"\x02" + bytes(7) + b"[]"), "its header is no JSON object"),
        (refused, "HTTP 503"),
        (without_ranges, "with the whole file; use a hub that answers ranges"),
    ],
)
def test_a_bad_model_is_refused_with_a_reason(
    page: Page, site: Site, hub: FakeHub, allowed_console: list[str],
    spoil: Callable[[FakeHub], None], message: str,
) -> None:  # fmt: skip
    allowed_console.append("Failed to load resource")
    page.goto(site.url)
    spoil(hub)
    assert message in page.evaluate(OPEN, [hub.url, NAME, "q8"])["error"]


@pytest.mark.parametrize("name", ["../../etc", "a/b/c", "some/tale?x=1", "tale", ""])
def test_names_that_are_none_are_refused(page: Page, site: Site, hub: FakeHub, name: str) -> None:
    page.goto(site.url)
    assert "expected OWNER/MODEL" in page.evaluate(OPEN, [hub.url, name, "q8"])["error"]
    assert hub.asked == []


@pytest.mark.quick
def test_no_host_but_the_named_ones_is_reached(
    page: Page, hub: FakeHub, allowed_console: list[str]
) -> None:
    """Weights come from a second host, which this server does not name. It is none of those that
    tools may be called at."""
    allowed_console += ["Content Security Policy", "Failed to load resource", "Fetch API"]
    hub.cdn_host = "127.0.0.2"
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    site = site_with(hub.url)
    page.goto(site.url)
    said = page.evaluate(OPEN, [hub.url, NAME, "q8"])["error"]
    assert "redirects to a host that this server does not let its pages use" in said
    assert [text for text in logged if "Content Security Policy" in text and hub.cdn_host in text]
    assert not [each for each in hub.asked if each.path.startswith("/cdn/")]
    site.close()


def run_here(page: Page) -> Locator:
    page.get_by_test_id("about-open").click()
    page.get_by_role("button", name="Where it runs").click()
    dialog = page.get_by_role("dialog", name="Where the model runs")
    dialog.get_by_label("Model of 127.0.0.1").fill(NAME)
    dialog.get_by_label("Stored as").select_option("q8")
    expect(dialog.locator("#place-fit")).to_contain_text("fetches it from 127.0.0.1")
    dialog.get_by_role("button", name="Run in this browser").click()
    return dialog


def test_the_servers_refusal_of_a_model_is_said_in_the_dialog(
    site: Site,
    hub: FakeHub,
    open_with_gpu: Callable[[str], Playground],
    allowed_console: list[str],
) -> None:
    """In the server's words, from the worker that asks it for plans."""
    allowed_console += ["Failed to load resource", "rwkv"]
    with_file("config.json", b'{"model_type": "rwkv"}')(hub)
    dialog = run_here(open_with_gpu(site.url).page)
    error = dialog.locator("#place-error")
    expect(error).to_contain_text("'rwkv' is not supported", timeout=MOVE_MS)


@pytest.mark.slow  # its parts are tested above, and the engine in test_place.py
def test_a_model_of_the_hub_writes_what_the_server_would(
    site: Site,
    launch_browser: Callable[..., Browser],
    browser_type_launch_args: dict[str, Any],
) -> None:
    browser = launch_browser(args=[*browser_type_launch_args["args"], "--enable-unsafe-webgpu"])
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    play = Playground(page, url=site.url).open()
    dialog = run_here(page)
    said = dialog.locator("#place-say")
    expect(said).to_have_text("It runs in this browser now, as q8.", timeout=MOVE_MS)
    page.keyboard.press("Escape")
    expect(page.locator("#model-name")).to_have_text(f"{NAME} · q8")
    play.set(temperature=0, max_tokens=N, seed=7)
    play.ask(PROMPT)
    play.wait_tokens(N)
    play.wait_done()
    ids = prompt_ids(Tokenizer.load(TALE.folder), messages=[Message("user", PROMPT)])
    want = server_tokens(TALE, "q8", ids, temperature=0, max_tokens=N, ignore_eos=False)
    assert play.text() == "".join(token.text for token in want)
    browser.close()
