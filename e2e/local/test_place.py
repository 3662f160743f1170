"""The model moves between the server and this browser; the conversation stays."""

from __future__ import annotations

import functools
import json
import re
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app import tale
from app.prompt.prompts import prompt_ids
from app.protocol.messages import Message
from e2e.bundled import engine_tokens
from e2e.local.place_dialog import MOVE_MS, PlaceDialog
from e2e.look.test_looks import violations
from e2e.playground import Playground
from e2e.site import Site
from gpu import SamplingParams

PROMPT = "Tell me a story about a fox"
N = 12
"""Tokens of each part of the answer."""
GIB = 2**30
OFFERS = [
    {"dtype": dtype, "memory": n * GIB, "weights": n * GIB}
    for dtype, n in (("f32", 8), ("f16", 4), ("q8", 3), ("q4", 2))
]


def test_the_conversation_goes_on_in_the_browser_and_back(
    moving: Playground, f32_server: Site
) -> None:
    play, page, place = moving, moving.page, PlaceDialog(moving)
    play.set(temperature=0, max_tokens=N, seed=7)
    play.ask(PROMPT)
    play.wait_done()
    dialog = place.open()
    expect(dialog.locator("#place-server")).to_contain_text("f32")
    expect(dialog.locator("#place-browser-facts")).to_contain_text("buffers up to")
    assert violations(page) == []
    dialog.get_by_role("button", name="Run in this browser").press("Enter")
    expect(place.said).to_have_text("It runs in this browser now, as f32.", timeout=MOVE_MS)
    expect(dialog.get_by_role("button", name="It runs here")).to_be_disabled()
    page.keyboard.press("Escape")

    play.continue_button.click()
    play.wait_tokens(2 * N)
    play.wait_done()
    ids = prompt_ids(f32_server.engine.tokenizer, messages=[Message("user", PROMPT)])
    params = SamplingParams(temperature=0, max_tokens=3 * N, seed=7)
    want = [token.text for token in engine_tokens(f32_server, ids, params)]
    assert play.text() == "".join(want[: 2 * N])

    dialog = place.open()
    dialog.get_by_text("Kept in this browser").click()
    row = dialog.locator("#kept-models li")
    expect(row).to_contain_text(f"{tale.NAME} · f32")
    expect(dialog.locator("#kept-quota")).to_contain_text("that the browser allows")
    assert violations(page) == []
    row.get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)
    expect(dialog.locator("#kept-sum")).to_have_text("nothing")
    page.keyboard.press("Escape")

    page.workers[0].evaluate("self.postMessage({ type: 'lost', message: 'the GPU was lost' })")
    expect(play.notice).to_contain_text("The model has stopped")
    expect(play.notice).to_contain_text("Your text is kept.")
    play.notice.get_by_role("button", name="Go on on the server").click()
    play.wait_ready()
    assert page.workers == []
    assert play.text() == "".join(want[: 2 * N])
    play.continue_button.click()
    play.wait_tokens(3 * N)
    play.wait_done()
    assert play.text() == "".join(want)


def test_what_does_not_fit_is_refused_with_what_would(call: Callable[..., Any]) -> None:
    """Browsers tell at most 8 GiB: from there on everything is tried."""
    fit = functools.partial(call, "panels/place-fit")
    memory = functools.partial(call, "local/hub/device-memory", "memoryOf")
    assert [memory(told) for told in (None, 8, 4, 0.5)] == [None, None, 4 * GIB, GIB / 2]
    assert [o["dtype"] for o in fit("fitting", OFFERS, 4 * GIB)] == ["f16", "q8", "q4"]
    assert len(fit("fitting", OFFERS, None)) == len(OFFERS)
    assert fit("smallerThan", "f16", OFFERS) == ["q8", "q4"]
    assert fit("smallerThan", "q4", OFFERS) == []


MADE_GPU = """(gib) => {
  const limits = { maxBufferSize: 2 ** 28, maxStorageBufferBindingSize: 2 ** 27 };
  const adapter = { limits, info: { description: "Made GPU" }, features: new Set() };
  const requestAdapter = async () => (gib ? adapter : null);
  Object.defineProperty(navigator, "gpu", { value: { requestAdapter } });
  Object.defineProperty(navigator, "deviceMemory", { value: gib });
}"""
"""Script of a page whose device has `gib` GiB of memory, or no GPU if that is null."""


def open_place(page: Page, here: Site, gib: float | None) -> PlaceDialog:
    page.add_init_script(f"({MADE_GPU})({json.dumps(gib)})")
    place = PlaceDialog(Playground(page, here).open())
    place.open()
    return place


def test_a_browser_without_a_gpu_is_said_in_the_dialog(
    page: Page, site: Callable[..., Site]
) -> None:
    place = open_place(page, site(), None)
    facts = place.dialog.locator("#place-browser-facts")
    expect(facts).to_contain_text("Not possible: this browser gives no access to a GPU")
    expect(place.run_here).to_be_disabled()
    assert violations(page) == []


def test_what_does_not_fit_is_refused_in_the_dialog(page: Page, site: Callable[..., Site]) -> None:
    """With the storage types that would fit; nothing is fetched."""
    here = site()
    with urllib.request.urlopen(f"{here.url}api/local") as reply:
        needs = {each["dtype"]: each["memory"] for each in json.load(reply)["offers"]}
    place = open_place(page, here, (needs["f16"] + 1) / GIB)
    place.dialog.get_by_label("Stored as").select_option("f32")
    fit = place.dialog.locator("#place-fit")
    words = re.compile(r"^As f32 it needs .+, and this device has .+; f16 or q8 or q4 would fit\.$")
    expect(fit).to_have_text(words)
    place.run_here.click()
    expect(place.error).to_have_text(words)
    assert page.workers == []
    place.dialog.get_by_label("Stored as").select_option("f16")
    expect(fit).to_contain_text("of weights are fetched once")


def test_adapters_are_said_to_stay_on_the_server(
    page: Page, site: Callable[..., Site], call: Callable[..., Any]
) -> None:
    """Those whose files the server does not have; the others come along."""
    place = open_place(page, site(loras=("story", "rhyme")), 8)
    fit = place.dialog.locator("#place-fit")
    expect(fit).to_contain_text("The adapters story, rhyme stay on the server.")
    said = functools.partial(call, "panels/place-fit", "adaptersSaid")
    assert said([], ["story"]) == ""
    two = [{"name": "story"}, {"name": "rhyme"}]
    assert said(two, ["rhyme", "story"]) == "The adapters story, rhyme come along."
    both = "The adapter rhyme comes along. The adapter story stays on the server."
    assert said(two, ["rhyme"]) == both


WHY = """async ([offers, i, memory]) => {
  const { whyNotFit } = await import("/static/js/panels/place-fit.js");
  return whyNotFit(offers[i], offers, memory, (n) => `${n / 2 ** 30} GiB`);
}"""


@pytest.mark.quick
@pytest.mark.parametrize(
    ("i", "memory", "words"),
    [
        (0, 4, "as f32 it needs 8 GiB, and this device has 4 GiB; f16 or q8 or q4 would fit"),
        (1, 2, "as f16 it needs 4 GiB, and this device has 2 GiB; q4 would fit"),
        (3, 1, "no storage type of this model fits; run it on the server"),
        (1, 4, ""),
    ],
)
def test_the_refusal_names_what_fits(loaded: Any, i: int, memory: int, words: str) -> None:
    found = loaded.evaluate(WHY, [OFFERS, i, memory * GIB])
    assert found == words or (words and words in found)
