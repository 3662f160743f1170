"""Page object of the guided tour: its card and the rings around what it talks about."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from e2e.waiting import until

TITLES = (
    "Text becomes tokens",
    "A token becomes a vector",
    "Every layer adds to the vector",
    "Attention looks back",
    "A head with one job",
    "The MLP sees one token",
    "The prediction appears",
    "Scores become chances",
    "Filters, then one draw",
    "The KV cache",
    "The cost of one token",
    "Move a slider",
    "Your turn",
)
ANSWER_TIMEOUT_MS = 30_000

BOXES = """() => {
  const box = (node) => node.getBoundingClientRect().toJSON();
  const rings = [...document.querySelectorAll("#tour-rings i")].map(box);
  const card = box(document.querySelector("#tour"));
  return { card, rings, width: innerWidth, height: innerHeight };
}"""


class TourCard:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.card = page.get_by_test_id("tour")
        self.text = page.get_by_test_id("tour-text")
        self.title = page.locator("#tour-title")
        self.next = self.card.get_by_role("button", name="Next")

    def wait(self, step: int) -> None:
        """Until step `step`, from 1, has said what it has to say."""
        count = self.page.locator("#tour-count")
        expect(count).to_have_text(f"{step} / {len(TITLES)}", timeout=ANSWER_TIMEOUT_MS)
        expect(self.page.locator("#tour-body")).to_have_attribute(
            "aria-busy", "false", timeout=ANSWER_TIMEOUT_MS
        )

    def figures(self) -> list[str]:
        """Return the figures in the sentences."""
        return [text.replace("\u00a0", " ") for text in self.text.locator("b").all_inner_texts()]

    def words(self) -> list[str]:
        """Return the tokens that the sentences quote."""
        return [text[1:-1] for text in self.text.locator(".tour-quote").all_inner_texts()]

    def check_place(self) -> None:
        """Something is ringed, in the window, and the card stands in it too and covers no ring."""
        self.page.wait_for_timeout(700)  # instruments draw and scroll once their answers are here
        left: list[str] = []

        def settled() -> bool:
            left[:] = placement_fault(**self.page.evaluate(BOXES))
            return not left

        try:
            until(self.page, settled, "the card to find its place", seconds=5)
        except AssertionError:
            raise AssertionError(left) from None


def placement_fault(
    card: dict[str, float], rings: list[dict[str, float]], width: float, height: float
) -> list[str]:
    """Return what is wrong with the places of card and rings."""
    found = [] if rings else ["nothing is ringed"]
    if not (0 <= card["left"] < card["right"] <= width + 0.5):
        found.append(f"the card is beside the window: {card}")
    if not (0 <= card["top"] < card["bottom"] <= height + 0.5):
        found.append(f"the card is above or below the window: {card}")
    for ring in rings:
        if not (
            0 <= ring["left"] < ring["right"] <= width and min(ring["width"], ring["height"]) > 8
        ):
            found.append(f"a ring around nothing that is seen: {ring}")
        across = ring["left"] < card["right"] and ring["right"] > card["left"]
        # A ring stands out of its box by 4.
        along = ring["top"] < card["bottom"] and ring["bottom"] > card["top"] + 8
        if across and along:
            found.append(f"the card {card} covers a ring {ring}")
    return found
