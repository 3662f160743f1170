"""Layer table: what is drawn in a cell keeps to the height of its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page

from e2e.playground import Playground
from e2e.site import Site

# Of a cell of the first layer: the lines of it that have ink, counted from its lower edge.
INKED = """(column) => {
  const canvas = document.querySelector("#bars");
  const origin = canvas.getBoundingClientRect();
  const row = document.querySelector("#lrows tr:not(.end)");
  const cell = row.children[column].getBoundingClientRect();
  const scale = canvas.height / origin.height;
  const [x, y, width, height] = [
    cell.left - origin.left, cell.top - origin.top, cell.width, cell.height,
  ].map((length) => Math.round(length * scale));
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, -x, -y);
  const { data } = copy.getImageData(0, 0, width, height);
  const lines = Array.from({ length: height }, (_, i) => height - i).filter((line) => {
    const at = (height - line) * width * 4;
    return data.subarray(at, at + width * 4).some((byte) => byte > 0);
  });
  return { lines: lines.map((line) => line / scale), height: height / scale };
}"""
MLP, ENTROPY = 2, 3


def inked(page: Page, column: int) -> Any:
    return page.evaluate(INKED, column)


def test_the_angle_stands_clear_of_the_bar_and_marks_rise_above_it(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site(delay=0.002)).open()
    play.ask()
    play.wait_done()
    page.wait_for_function(f"() => ({INKED})({MLP}).lines.length > 0")
    angle, marks = inked(page, MLP), inked(page, ENTROPY)
    assert angle["height"] >= 24, "the rows of few layers are high"
    lines = angle["lines"]
    assert max(lines) - min(lines) + 1 > len(lines), "blank lines between the angle and the bar"
    assert max(marks["lines"]) - min(marks["lines"]) > 4, "bars have three lines"
