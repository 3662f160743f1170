"""What the page says of an engine that runs PyTorch: nothing of dispatches, rendering
and peak rates."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from e2e.playground import Playground

BE_TORCH = """async () => {
  const { changed, state } = await import("/static/js/state.js");
  const { hello } = state;
  state.hello = {
    ...hello,
    dispatches_per_token: 0,
    memory: { ...hello.memory, work: 0 },
    device: { ...hello.device, backend: "torch" },
  };
  changed("hello", "focus", "tokens");
}"""


def test_it_has_no_dispatches_and_renders_nothing(
    page: Page, play: Callable[..., Playground]
) -> None:
    here = play()
    here.write(n=4)
    expect(page.locator("#lay-sub")).to_contain_text("dispatches")
    page.evaluate(BE_TORCH)
    expect(page.locator("#lay-sub")).not_to_contain_text("dispatches")
    expect(page.locator("#m-a")).to_have_text("")
    page.get_by_test_id("about-open").click()
    facts = page.get_by_role("dialog")
    expect(facts).to_contain_text("KV cache")
    for words in ("dispatches", "rendering", "compute buffers"):
        expect(facts).not_to_contain_text(words)
    page.keyboard.press("Escape")
    look = here.look.open("timeline").panel
    expect(look).to_contain_text("No roofline: the engine does not run on a GPU.")
    expect(look.get_by_role("button", name="Measure peak rates")).to_be_hidden()
