"""Changing the model from the page: what is offered, how far it is, what is refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from app import tale
from app.engine.supervisor import SupervisedEngine
from app.engine_client import ServedModel
from app.models import switching
from app.models.encoders import Encoders
from app.models.known import known_embedding_models, known_models
from e2e.look.test_looks import violations
from e2e.look.test_loss import read
from e2e.playground import Playground
from e2e.site import Site
from tests.app.conftest import StartSite, hub, start_site  # noqa: F401
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.models.changes import newest
from tests.app.models.encoder_folders import load_with, write_encoder
from tests.app.models.fake_hub import FakeHub, Repo
from tests.app.page import wait_until
from tests.gpu.gguf import gguf_models

NAME = next(model.name for model in known_models() if model.source == "hub")


@pytest.fixture(autouse=True)
def without_gpu(allowed_console: list[str]) -> None:
    """The browser of these tests has none, and says so when it is asked."""
    allowed_console.append("No available adapters")


@pytest.fixture
def play(page: Page, start_site: StartSite, hub: FakeHub) -> Playground:  # noqa: F811
    """The page of a server with an engine of 8 layers; those it changes to have 3, and as many
    tokens as the tokenizers of their folders. The hub has the first known model and `some/tale`."""
    hub.repos[NAME] = Repo(hub.repos["some/tale"].files)
    other = loader(delay=0.01, n_layers=3, marks=tuple(f"<{i}>" for i in range(4096)))
    site = start_site(process=True, switch=lambda settings, model: other)
    return Playground(page, url=f"http://127.0.0.1:{site.port}/").open()


def open_models(page: Page) -> Locator:
    page.get_by_test_id("about-open").click()
    page.get_by_role("button", name="Change the model").click()
    dialog = page.get_by_role("dialog", name="Change the model")
    expect(dialog.get_by_role("radio").first).to_be_visible()
    return dialog


@pytest.mark.quick
def test_what_is_offered_is_what_the_server_says(page: Page, play: Playground) -> None:
    dialog = open_models(page)
    names = dialog.locator(".offer-name").all_inner_texts()
    known = (model.name for model in (*known_models(), *known_embedding_models()))
    assert names == [tale.NAME, tale.MIXTURE, *known]
    expect(dialog.locator(".offer").nth(1)).to_contain_text("bundled · the same from a mixture")
    first = dialog.locator(".offer").nth(2)
    expect(first).to_contain_text(
        "134.5 M weights · Apache-2.0 · about 92.9 MB to download · first"
    )
    page.set_viewport_size({"width": 1280, "height": 720})
    expect(dialog.get_by_role("button", name="Load", exact=True)).to_be_in_viewport(ratio=1)
    expect(dialog.locator("#place-browser-facts")).to_contain_text("gives no access to a GPU")
    expect(dialog.get_by_role("button", name="Run in this browser")).to_be_disabled()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_another_model_is_fetched_and_writes(page: Page, play: Playground) -> None:
    sized: list[str] = []
    page.on(
        "request", lambda request: sized.append(request.url) if "sizing" in request.url else None
    )
    play.write("Once", 4)
    written = play.text()
    play.look.open("needs")
    page.keyboard.press("Escape")
    dialog = open_models(page)
    dialog.get_by_label("Weight format").select_option("q8")
    dialog.get_by_role("button", name=f"Load {NAME}").click()
    expect(dialog.get_by_role("status")).to_have_text(f"{NAME} is ready.", timeout=30_000)
    expect(dialog.locator(".offer", has_text=NAME)).to_contain_text("downloaded")
    expect(dialog.get_by_role("progressbar")).to_be_hidden()
    dialog.get_by_role("button", name="Close").click()
    assert play.text() == written, "what was written stays"
    layers = page.locator("#lrows tr[data-layer]")
    expect(layers).to_have_count(8)
    play.write("Once more", 4)
    expect(page.locator(".answer")).to_have_count(2)
    expect(layers).to_have_count(3)
    page.locator(".answer .tok").first.click()
    expect(layers).to_have_count(8)
    expect(layers.first).to_contain_text(re.compile(r"^7\D*\d"))
    assert len(sized) == 1
    play.look.open("needs")
    assert len(sized) == 2, "what the running model takes is asked again"


def test_another_model_is_not_asked_about_what_it_did_not_write(
    page: Page,
    start_site: StartSite,  # noqa: F811
) -> None:
    """Their tokens are not the same. But it is asked about any text."""
    other = loader(delay=0.01, n_layers=3, name="other")
    site = start_site(process=True, name="first", switch=lambda settings, model: other)
    play = Playground(page, url=f"http://127.0.0.1:{site.port}/").open()
    play.write(n=6)
    expect(page.locator("#lay-sub")).to_contain_text("dispatches")
    dialog = open_models(page)
    dialog.get_by_role("button", name=f"Load {tale.MIXTURE}").click()
    expect(dialog.get_by_role("status")).to_have_text(f"{tale.MIXTURE} is ready.", timeout=30_000)
    dialog.get_by_role("button", name="Close").click()
    blocks = page.locator("#r-kv")
    expect(blocks).to_have_text(re.compile("^0 of "))
    expect(page.locator("#lay-sub")).not_to_contain_text("dispatches")
    for name in ("lens", "attention", "forward", "filters", "cache"):
        look = play.look.open(name)
        expect(look.message).to_have_text("Written by first; other is loaded.")
    play.look.open("timeline")
    roof = page.locator(".tl-roof .sub span")
    expect(roof).to_have_text("No roofline: Written by first; other is loaded.")
    expect(page.get_by_role("button", name="Measure peak rates")).to_have_count(0)
    look = play.look.open("loss")
    expect(look.panel).to_contain_text("Written by first; other is loaded.")

    def asked() -> list[str]:
        questions = [each["question"] for each in play.messages.sent if each["type"] == "inspect"]
        return [question["kind"] for question in questions if "ids" in question]

    assert asked() == []
    read(look, "Some other text")
    assert asked() == ["losses"]


def test_a_model_that_is_loading_can_be_cancelled(
    page: Page,
    start_site: StartSite,  # noqa: F811
    tmp_path: Path,
) -> None:
    hangs = loader(loads_after=tmp_path / "never", n_layers=3)
    site = start_site(process=True, name=tale.NAME, switch=lambda settings, model: hangs)
    play = Playground(page, url=f"http://127.0.0.1:{site.port}/").open()
    dialog = open_models(page)
    loaded = dialog.locator(".offer", has_text=tale.NAME)
    expect(loaded).to_contain_text("loaded as")
    dialog.get_by_role("button", name=f"Load {tale.MIXTURE}").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"Loading {tale.MIXTURE}: reading weights")
    assert violations(page) == []
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog.get_by_role("status")).to_have_text(
        "Cancelled: the previous model is loaded again."
    )
    expect(dialog.get_by_role("button", name="Cancel")).to_be_hidden()
    expect(loaded).to_contain_text("loaded as", timeout=30_000)
    dialog.get_by_role("button", name="Close").click()
    play.ask("Once")
    play.wait_done()
    expect(page.locator("#lrows tr[data-layer]")).to_have_count(8)


def test_a_model_that_cannot_be_loaded_is_said_to_be_when_the_dialog_is_next_open(
    page: Page,
    start_site: StartSite,  # noqa: F811
) -> None:
    fails = loader(fail="model.safetensors: cut off", n_layers=3)
    site = start_site(process=True, name=tale.NAME, switch=lambda settings, model: fails)
    play = Playground(page, url=f"http://127.0.0.1:{site.port}/").open()
    dialog = open_models(page)
    dialog.get_by_role("button", name=f"Load {tale.MIXTURE}").click()
    dialog.get_by_role("button", name="Close").click()
    wait_until(lambda: newest(site)["state"] == "failed")
    expect(page.get_by_test_id("connection")).to_have_text("Connected", timeout=30_000)
    open_models(page)
    expect(dialog.get_by_role("alert")).to_have_text(
        "model.safetensors: cut off; the previous model is loaded again."
    )
    dialog.get_by_role("button", name="Close").click()
    open_models(page)
    expect(dialog.locator(".offer", has_text=tale.NAME)).to_contain_text("loaded as")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_role("button", name="Close").click()
    play.ask("Once")
    play.wait_done()


def test_an_embedding_model_is_loaded_alongside_the_model(
    page: Page,
    start_site: StartSite,  # noqa: F811
    hub: FakeHub,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))  # no documents
    [model] = known_embedding_models()
    encoders, folder = Encoders(), write_encoder(tmp_path)
    monkeypatch.setattr(switching, "fetch_wheel_model", lambda *_: folder)
    load = functools.partial(load_with, encoders.folders, model.name)
    site = start_site(process=True, load=load, encoders=encoders, switch=lambda *_: load)
    play = Playground(page, url=f"http://127.0.0.1:{site.port}/").open()
    play.ask("Once")
    play.wait_done()
    written = play.text()
    look = play.look.open("retrieval")
    expect(look.message).to_contain_text("press the model’s name at the top")
    page.keyboard.press("Escape")
    dialog = open_models(page)
    row = dialog.locator(".offer", has_text=model.name)
    expect(row).to_contain_text("22.7 M weights · Apache-2.0 · about 83.3 MB to download")
    row.get_by_role("button", name=f"Load {model.name}").click()
    expect(dialog.get_by_role("status")).to_have_text(f"{model.name} is ready.", timeout=30_000)
    expect(row).to_contain_text("Apache-2.0 · loaded")
    expect(row.get_by_role("button")).to_have_count(0)
    assert violations(page) == []
    dialog.get_by_role("button", name="Close").click()
    assert play.text() == written, "what was written stays"
    look = play.look.open("retrieval")
    expect(look.panel.get_by_text("No document is indexed yet.")).to_be_visible()


def test_a_name_that_is_typed_in(page: Page, play: Playground, allowed_console: list[str]) -> None:
    allowed_console.append("status of 400")  # a browser names every answer that is an error
    dialog = open_models(page)
    field = dialog.get_by_label("Other model: on the Hub, or a path on this machine")
    field.fill("nobody/nothing")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("no model of that name on the hub")
    field.fill("../model")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Expected OWNER/MODEL on the hub")
    expect(dialog.get_by_role("radio", checked=True)).to_have_count(0)
    field.fill("")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Choose a model or type a name")
    field.fill("/no/such/folder")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text(
        re.compile(r"^There is no folder or file '/no/such/folder'; .*on the hub\.$")
    )
    boxes = [field.bounding_box(), dialog.get_by_label("Weight format").bounding_box()]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["y"] == boxes[1]["y"], "fields stand in line"
    field.fill("some/tale")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("status")).to_have_text("some/tale is ready.", timeout=30_000)
    expect(dialog.get_by_role("alert")).to_be_hidden()


def test_a_path_and_a_search_lead_to_a_model(
    page: Page,
    play: Playground,
    hub: FakeHub,  # noqa: F811
    tmp_path: Path,
) -> None:
    hub.repos["other/bert"] = Repo({}, tags=("safetensors", "bert"))
    dialog = open_models(page)
    field = dialog.get_by_label("Other model: on the Hub, or a path on this machine")
    file = gguf_models.write(tale.model_dir(), tmp_path / "mine.gguf", "Q4_0")
    field.fill(str(file))
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("status")).to_have_text(f"{file} is ready.", timeout=30_000)
    field.fill("e")
    dialog.get_by_role("button", name="Search the Hub").click()
    row = dialog.locator(".offer", has_text="some/tale")
    expect(row).to_contain_text("found on the Hub")
    expect(row.get_by_role("radio")).to_be_focused()
    expect(dialog.locator(".offer", has_text="other/bert")).to_have_count(0)
    dialog.get_by_role("button", name="Load some/tale").click()
    expect(dialog.get_by_role("status")).to_have_text("some/tale is ready.", timeout=30_000)


@pytest.mark.parametrize("body", ["<h1>Sign in</h1>", ""])
def test_an_answer_that_cannot_be_read_ends_the_progress(
    page: Page, play: Playground, body: str
) -> None:
    """As a proxy sends it whose session has expired."""
    dialog = open_models(page)
    began = {"name": NAME, "state": "fetching", "progress": 0.5, "message": ""}

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            route.fulfill(json=began)
        else:
            route.fulfill(body=body, content_type="text/html")

    page.route("**/api/models", answer)
    dialog.get_by_role("button", name=f"Load {NAME}").click()
    expect(dialog.get_by_role("alert")).to_contain_text("HTTP 200, but what it sent is no JSON")
    expect(dialog.get_by_role("progressbar")).to_be_hidden()
    expect(dialog.get_by_role("button", name="Load", exact=True)).to_be_enabled()


def test_a_file_dropped_on_the_dialog_asks_for_its_folder(page: Page, play: Playground) -> None:
    dialog = open_models(page)
    transfer = page.evaluate_handle(
        """() => {
            const transfer = new DataTransfer();
            transfer.items.add(new File(["GGUF"], "mine.gguf"));
            return transfer;
        }"""
    )
    page.dispatch_event("#models-offers", "drop", {"dataTransfer": transfer})
    field = dialog.get_by_label("Other model: on the Hub, or a path on this machine")
    expect(field).to_be_focused()
    expect(field).to_have_value("mine.gguf")
    expect(dialog.get_by_role("alert")).to_contain_text("Type the path before its name")
    page.keyboard.type("/no/such/")
    expect(field).to_have_value("/no/such/mine.gguf")
    expect(page.locator("#notice")).to_be_hidden()


def test_the_page_says_why_another_model_runs_and_leads_to_the_dialog(
    page: Page,
    start_site: StartSite,  # noqa: F811
) -> None:
    note = "SmolLM2 is not loaded: no network. tale-3m, the bundled model, runs instead"
    served = ServedModel(loader(delay=0), FakeTokenizer(), tale.model_dir(), note)
    engine = SupervisedEngine(
        served.load,
        served.tokenizer,
        path=served.path,
        fetch=lambda tell, stopped: engine.switch(served),
    )
    site = start_site(client=engine, switch=lambda settings, model: loader(delay=0))
    Playground(page, url=f"http://127.0.0.1:{site.port}/").open()
    notice = page.locator("#notice")
    expect(notice).to_contain_text(note)
    notice.get_by_role("button", name="Models").click()
    expect(page.get_by_role("dialog", name="Change the model")).to_be_visible()
    page.keyboard.press("Escape")
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_be_hidden()


def test_a_server_that_changes_nothing_offers_nothing(
    page: Page, site: Callable[..., Site]
) -> None:
    """But it says what it runs, how its weights are stored and why, and what became of the types of
    a GGUF file."""
    stored = {"conversion": "Q4_K, Q6_K converted to q4", "dtype_reason": "f32 needs 9 GB"}
    Playground(page, site(**stored)).open()
    page.get_by_test_id("about-open").click()
    weights = page.locator("#facts div").filter(has=page.get_by_text("Weights", exact=True))
    expect(weights).to_contain_text("Q4_K, Q6_K converted to q4")
    dtype = page.locator("#facts div").filter(has=page.get_by_text("Storage type", exact=True))
    expect(dtype).to_contain_text("f16, because f32 needs 9 GB")
    expect(page.locator("#models-open")).to_have_count(0)


def test_a_phone_has_room_for_it(page: Page, play: Playground) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    dialog = open_models(page)
    expect(dialog).to_be_in_viewport(ratio=1)
    assert dialog.evaluate("(node) => node.scrollWidth - node.clientWidth") <= 0
    assert violations(page) == []
