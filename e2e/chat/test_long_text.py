"""A long answer: every token costs the same, and nothing of how that is done can be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

# Where each token's first line box is, from the corner of its answer, in halves of a pixel.
PLACES = """() => {
  const box = document.querySelector(".answer");
  const { left, top } = box.getBoundingClientRect();
  for (const node of box.querySelectorAll(".text-chunk")) node.style.contentVisibility = "visible";
  const places = [...box.querySelectorAll(".tok")].map((node) => {
    const rect = node.getClientRects()[0];
    return [Math.round(2 * (rect.left - left)), Math.round(2 * (rect.top - top))];
  });
  for (const node of box.querySelectorAll(".text-chunk")) node.style.contentVisibility = "";
  return places;
}"""

# The same text as one paragraph, as a browser would set it.
WHOLE = """() => {
  const box = document.querySelector(".answer");
  for (const node of box.querySelectorAll(".text-chunk")) node.replaceWith(...node.childNodes);
}"""

SELECTED = """() => {
  getSelection().selectAllChildren(document.querySelector(".answer"));
  const text = getSelection().toString();
  getSelection().removeAllRanges();
  return text;
}"""

# Counts what a token costs: drawing calls, pixels put, numbers read for colours, tokens looked at
# again, nodes of the page that change.
COUNT = """async () => {
  const [{ METRICS }, { view }] = await Promise.all(
    ["turns/metrics", "view"].map((name) => import(`/static/js/${name}.js`)),
  );
  const work = { calls: 0, cells: 0, nodes: 0, pixels: 0, reads: 0 };
  view.answer.tokens = new Proxy(view.answer.tokens, {
    get(tokens, name) {
      work.reads += /^\\d+$/.test(String(name)) ? 1 : 0;
      return tokens[name];
    },
  });
  const context = CanvasRenderingContext2D.prototype;
  for (const name of ["fillRect", "drawImage", "fillText", "stroke", "measureText"]) {
    const own = context[name];
    context[name] = function (...args) { work.calls += 1; return own.apply(this, args); };
  }
  const put = context.putImageData;
  context.putImageData = function (image, x, y, left = 0, top = 0, width = image.width, ...rest) {
    work.pixels += width * image.height;
    return put.call(this, image, x, y, left, top, width, ...rest);
  };
  const { value } = METRICS.update;
  METRICS.update.value = (...args) => { work.cells += 1; return value(...args); };
  new MutationObserver((records) => {
    for (const { addedNodes, removedNodes } of records)
      work.nodes += Math.max(1, addedNodes.length + removedNodes.length);
  }).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
  window.work = work;
}"""

# Adds `n` tokens like the answer's last ones, each in a frame of its own; returns the work.
WRITE = """async (n) => {
  const [{ view }, { changed }] = await Promise.all(
    ["view", "state"].map((name) => import(`/static/js/${name}.js`)),
  );
  const { answer } = view;
  const { segment } = answer;
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  const before = { ...window.work };
  for (let i = 0; i < n; i += 1) {
    const { segment: _, ...last } = answer.tokens.at(-16);
    answer.applyEvent(segment, segment.seq + 1, { ...last, index: segment.nDrawn });
    changed("tokens", "focus");
    await frame();
  }
  await frame();
  return Object.fromEntries(Object.entries(window.work).map(([k, v]) => [k, (v - before[k]) / n]));
}"""

# Adds many at once, as a reload does.
FILL = WRITE.replace('changed("tokens", "focus");\n    await frame();', "").replace(
    "await frame();\n  return", 'changed("tokens", "focus");\n  await frame();\n  return'
)


def written(page: Page, site: Site, n: int) -> Playground:
    play = Playground(page, site).open()
    play.set(max_tokens=n, seed=5)
    play.ask()
    play.wait_tokens(n)
    play.wait_done()
    return play


@pytest.fixture
def long(page: Page, site: Callable[..., Site]) -> Playground:
    play = written(page, site(delay=0.0, context=1024), 700)
    until(page, lambda: page.locator(".text-chunk.full").count() >= 3, "whole lines set apart")
    return play


def test_lines_that_are_set_apart_look_the_same(page: Page, long: Playground) -> None:
    apart, text, selected = page.evaluate(PLACES), long.text(), page.evaluate(SELECTED)
    page.evaluate(WHOLE)
    assert page.evaluate(PLACES) == apart
    assert long.text() == text
    assert page.evaluate(SELECTED) == selected
    assert long.numbers() == list(range(700))


@pytest.mark.slow
def test_lines_are_set_anew_in_another_width(page: Page, long: Playground) -> None:
    for width in (1800, 1000, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(100)
        assert page.locator(".text-chunk.full").count() >= 3
        apart = page.evaluate(PLACES)
        count = page.locator(".text-chunk").count()
        page.evaluate(WHOLE)
        assert page.evaluate(PLACES) == apart, width
        page.reload()
        long.wait_ready()
        until(page, lambda n=count: page.locator(".text-chunk").count() == n, "the same lines")


def test_a_word_out_of_sight_is_found_and_lit(page: Page, long: Playground) -> None:
    word = page.locator('.tok[data-i="40"]')
    expect(word).not_to_be_in_viewport()
    page.locator("#plot").focus()
    page.keyboard.press("Home")
    for _ in range(2):
        page.keyboard.press("PageDown")
    expect(word).to_have_class("tok on")
    expect(word).to_be_in_viewport()


@pytest.mark.slow
def test_a_token_costs_the_same_however_long_the_text_is(
    page: Page, site: Callable[..., Site]
) -> None:
    """Counted, not timed, so no load of the machine makes a difference."""
    written(page, site(delay=0.0, context=1024, n_layers=32, n_heads=32), 230)
    page.evaluate(COUNT)
    early = page.evaluate(WRITE, 170)
    page.evaluate(FILL, 3000)
    late = page.evaluate(WRITE, 170)
    assert early["cells"] >= 64, "a column of 32 layers"
    assert early["reads"] > 10
    assert_same_work(early, late)


def assert_same_work(early: dict[str, Any], late: dict[str, Any]) -> None:
    for kind, amount in late.items():
        assert amount <= 1.3 * early[kind] + 8, (kind, early, late)
