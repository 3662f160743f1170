"""The page of an export, hosted by a file server: the model runs in the visitor's browser."""

from __future__ import annotations

import functools
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from app import tale
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.local.exports import TALE, exported, server_tokens
from e2e.playground import Playground
from e2e.waiting import until
from gpu import ExportedFile, Inventory, Tokenizer
from gpu.interventions.messages import Interventions, LayerFactor

DTYPE = "f16"
PROMPT = "Tell me a story about a fox"
HELLO = "async () => (await import('/static/js/state.js')).state.hello"
N = 24
"""Tokens of the compared answer."""


INSTRUMENTS = """async () => {
  const { INSTRUMENTS } = await import("/static/js/look/instruments.js");
  const { hello } = (await import("/static/js/state.js")).state;
  return INSTRUMENTS.filter(({ fits }) => !fits || fits(hello)).map(({ name }) => name);
}"""


class FileServer(ThreadingHTTPServer):
    """Serves the files of a folder. `refused`: requests for anything else; `max_age`: seconds for
    which browsers are told to keep the files."""

    def __init__(self, folder: Path, max_age: int = 0) -> None:
        self.folder, self.max_age = folder, max_age
        self.refused: list[str] = []
        super().__init__(("127.0.0.1", 0), functools.partial(Files, directory=str(folder)))

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/"


class Files(SimpleHTTPRequestHandler):
    server: FileServer

    def log_message(self, *_: Any) -> None:
        pass

    def end_headers(self) -> None:
        if self.server.max_age:
            self.send_header("Cache-Control", f"max-age={self.server.max_age}")
        super().end_headers()

    def send_error(self, code: int, *rest: Any) -> None:
        self.server.refused.append(f"{code} {self.requestline}")
        super().send_error(code, *rest)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    """The bundled model's export on a file server."""
    with serving(FileServer(exported(TALE, tmp_path_factory.mktemp("exports"), DTYPE))) as server:
        yield server


@contextmanager
def serving(server: FileServer) -> Iterator[FileServer]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hosted(files: FileServer, open_with_gpu: Callable[[str], Playground]) -> Playground:
    """The page, ready, in a browser with WebGPU."""
    return open_with_gpu(files.url)


def about_models(play: Playground) -> Locator:
    """Open the dialog of where the model runs."""
    play.page.get_by_test_id("about-open").click()
    play.page.get_by_role("button", name="Where it runs").click()
    return play.page.get_by_role("dialog", name="Where the model runs")


def check_weights(play: Playground) -> None:
    """The tensors are those of the model; the values of one are said to be missing."""
    look = play.look.open("weights")
    want = Inventory.from_folder(TALE.folder, DTYPE).tensors
    shown = [(row["tensor"], row["bytes on the device"]) for row in look.csv()]
    assert shown == [(tensor.name, str(tensor.device_bytes)) for tensor in want]
    look.panel.get_by_role("button", name="Table", exact=True).click()  # back to the picture
    look.panel.locator(".wt-cell").first.click()
    expect(look.panel).to_contain_text("Its values are not shown")


def check_lab(play: Playground) -> None:
    """Both phases are measured here; what binds them is not said, as no peaks are measured."""
    look = play.look.open("lab")
    look.panel.get_by_role("radio", name="Phases").check()
    look.panel.get_by_role("button", name="Run", exact=True).click()
    expect(look.panel.get_by_role("button", name="Run again")).to_be_visible()
    rows = look.csv()
    assert [row["phase"] for row in rows] == ["prefill", "decode"]
    assert float(rows[0]["operations per byte"]) > float(rows[1]["operations per byte"])
    assert {row["bound by"] for row in rows} == {""}


def open_everything(play: Playground) -> None:
    """Open each instrument and each dialog, none of which may end in an error."""
    for name in play.page.evaluate(INSTRUMENTS):
        play.look.open(name)
        expect(play.look.message).not_to_have_attribute("data-tone", "bad")
    play.page.evaluate("() => { location.hash = '' }")
    openers = play.page.locator("[aria-haspopup=dialog]:visible").all()
    assert len(openers) > 4
    for opener in openers:
        opener.click()
        expect(play.page.locator("dialog[open]")).to_have_count(1)
        play.page.keyboard.press("Escape")


def test_a_browser_without_webgpu_plays_a_recorded_run_by_itself(
    files: FileServer, page: Page, allowed_console: list[str]
) -> None:
    allowed_console.append("this browser gives no access to a GPU")
    page.add_init_script("Object.defineProperty(navigator, 'gpu', { value: undefined })")
    play = Playground(page, url=files.url).open(ready=False)
    expect(play.notice).to_contain_text("this is a recorded run")
    expect(play.notice).to_contain_text("no access to a GPU")
    expect(play.notice).to_contain_text("SmolLM2-135M-Instruct")
    expect(play.answer).to_contain_text("The capital of France is Paris.")
    expect(page.locator("#conn")).to_have_text("Replay")
    # Going back does not lead to an empty page; the address is written after the replay is shown.
    until(page, lambda: "replay=" in page.evaluate("location.hash"), "the address of the replay")
    assert page.evaluate("history.length") == 2
    page.get_by_role("button", name="Leave replay").click()
    expect(play.notice).to_contain_text("The model does not run in this browser")
    expect(play.answer).to_have_count(0)
    page.get_by_role("button", name="Watch a recorded run").click()
    expect(play.notice).to_contain_text("this is a recorded run")
    expect(page.get_by_test_id("playback")).to_be_visible()


def test_a_page_on_plain_http_says_what_it_needs(
    files: FileServer,
    launch_browser: Callable[..., Browser],
    browser_type_launch_args: dict[str, Any],
) -> None:
    """As that of an export which another machine of the network opens."""
    host = "--host-resolver-rules=MAP plain.test 127.0.0.1"
    browser = launch_browser(args=[*browser_type_launch_args["args"], host])
    play = Playground(browser.new_page(), url=files.url.replace("localhost", "plain.test"))
    play.open(ready=False)
    expect(play.notice).to_contain_text("WebGPU needs a secure connection")
    expect(play.notice).to_contain_text("this is a recorded run")
    browser.close()


EDITION = """async () => {
  const { ExportFiles } = await import("/static/js/local/gpu/export-files.js");
  const files = await ExportFiles.open(new URL("./", location).href);
  return (await files.modelFiles())["config.json"].edition ?? "first";
}"""


def test_the_files_of_a_newer_export_are_fetched(
    files: FileServer, page: Page, tmp_path: Path
) -> None:
    """Though the host lets browsers keep those of the same names, and they have."""
    folder = shutil.copytree(files.folder, tmp_path / "export")
    with serving(FileServer(folder, max_age=3600)) as server:
        page.goto(f"{server.url}manifest.json")
        assert page.evaluate(EDITION) == "first"
        change_config(folder, "second")
        assert page.evaluate(EDITION) == "second"


def change_config(folder: Path, edition: str) -> None:
    """Write another config.json, a minute later."""
    path, listed = folder / "model" / "config.json", folder / "manifest.json"
    later = path.stat().st_mtime + 60
    path.write_text(json.dumps({**json.loads(path.read_text()), "edition": edition}))
    manifest = json.loads(listed.read_text())
    manifest["files"]["config.json"] = msgspec.to_builtins(ExportedFile.of(folder, path))
    listed.write_text(json.dumps(manifest))
    for changed in (path, listed):
        os.utime(changed, (later, later))


FIRST_PIECE = """async () => {
  const { ExportFiles } = await import("/static/js/local/gpu/export-files.js");
  const files = await ExportFiles.open(new URL("./", location).href);
  return files.pieces()[0].read().catch(({ message }) => message);
}"""
GONE = "this export is gone, perhaps because the server runs another model now"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Route.abort, "there is no connection, or it broke. Try again to go on where it stopped"),
        (lambda route: route.fulfill(status=404, body="<h1>Not Found</h1>"), "HTTP 404"),
        (lambda route: route.fulfill(status=400, json={"error": {"message": GONE}}), GONE),
    ],
    ids=["broken", "missing", "gone"],
)
def test_a_download_that_fails_is_said_with_its_reason(
    files: FileServer,
    page: Page,
    allowed_console: list[str],
    answer: Callable[[Route], None],
    said: str,
) -> None:
    """A server has one of its own, such as that its model has changed meanwhile."""
    allowed_console.append("Failed to load resource")
    page.route("**/weights/*.bin", lambda route: answer(route))
    with serving(FileServer(files.folder)) as server:
        page.goto(f"{server.url}manifest.json")
        found = page.evaluate(FIRST_PIECE)
        assert found == f"{server.url}weights/0000.bin could not be fetched: {said}"


def test_the_page_answers_as_the_servers_engine_does(files: FileServer, hosted: Playground) -> None:
    """The same text from the same chat, stopped and continued; without a server to talk to."""
    play = hosted
    play.set(temperature=0, max_tokens=N, seed=7)
    play.ask(PROMPT)
    play.wait_tokens(N)
    play.wait_done()
    ids = prompt_ids(Tokenizer.load(TALE.folder), messages=[Message("user", PROMPT)])
    want = server_tokens(TALE, DTYPE, ids, temperature=0, max_tokens=2 * N, ignore_eos=False)
    assert play.text() == "".join(token.text for token in want[:N])
    play.continue_button.click()
    play.wait_tokens(2 * N)
    play.wait_done()
    assert play.text() == "".join(token.text for token in want)
    play.set(max_tokens=500)
    play.regenerate.click()
    play.wait_tokens(3)
    play.stop.click()
    expect(play.stats).to_contain_text("stopped")
    dialog = about_models(play)
    expect(dialog).to_contain_text("This site has no server")
    expect(dialog.get_by_role("button", name="Run in this browser")).to_have_count(0)
    dialog.get_by_text("Kept in this browser").click()
    row = dialog.locator("#kept-models li")
    expect(row).to_contain_text(f"{tale.NAME} · {DTYPE}")
    expect(row).not_to_contain_text(" of ")  # all of it
    row.get_by_role("button", name="Remove").click()
    expect(dialog.locator("#kept-sum")).to_have_text("nothing")
    hosted.page.keyboard.press("Escape")
    play.set(max_tokens=N)
    play.reach.open().cell("mlp 2").click()
    play.reach.button("Run again").click()
    play.wait_tokens(N)
    play.wait_done()
    off = Interventions(mlp=(LayerFactor(2, 0.0),))
    asked = {"temperature": 0, "max_tokens": N, "ignore_eos": False, "interventions": off}
    assert play.text() == "".join(t.text for t in server_tokens(TALE, DTYPE, ids, **asked))
    for name in ("attention", "filters", "lens"):
        play.look.open(name)
        assert play.look.table(), name
    rows = play.look.open("plan").csv()
    assert len(rows) == play.page.evaluate(HELLO)["dispatches_per_token"]
    assert all(int(row["bytes"]) > 0 for row in rows)
    assert sum(int(row["operations"]) for row in rows) > 0
    check_weights(play)
    check_lab(play)
    open_everything(play)
    assert not play.messages.sent, "there is no WebSocket"
    assert not files.refused, "the page asks for nothing but files"
