"""Views Embeddings and Neighbours of Tokens: their numbers are the engine's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Page, expect

from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.look.test_tokens import show
from e2e.site import Site
from e2e.waiting import until
from gpu.inspection.requests import Embedding, Neighbours
from tests.app.fake_encoder import INFO, ids_of
from tests.app.fake_inspection import fake_encoded
from tests.app.fake_options import FakeOptions, info_of

LINES = ("a little fox", "the old forest", "golden light", "the fox was happy")
Array = npt.NDArray[np.float64]


def compared(look: LookPanel, lines: tuple[str, ...]) -> tuple[Array, Array]:
    """Type lines; return the cosines and the places of the table."""
    look.panel.get_by_label("Texts, one on each line").fill("\n".join((*lines, "", "  ")))
    expect(look.panel.locator(".tk-cosines tbody tr")).to_have_count(len(lines))
    expect(look.panel.locator(".tk-cosines tbody th").last).to_contain_text(lines[-1])
    rows = look.csv()
    assert [row["text"] for row in rows] == list(lines)
    cosines = [[row[f"cosine with {i + 1}"] for i in range(len(lines))] for row in rows]
    return np.array(cosines, float), np.array([[row["x"], row["y"]] for row in rows], float)


def expect_those_of(vectors: Array, cosines: Array, places: Array) -> None:
    """Compare with NumPy: cosines, and principal components up to their signs."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines, units @ units.T, atol=1e-5)
    left, sizes, _ = np.linalg.svd(units - units.mean(0), full_matrices=False)
    wanted = left[:, :2] * sizes[:2]
    np.testing.assert_allclose(np.abs(places), np.abs(wanted), atol=1e-4)
    np.testing.assert_allclose(places @ places.T, wanted @ wanted.T, atol=1e-4)


@pytest.mark.quick
def test_without_an_embedding_model_the_loaded_one_is_shown(page: Page, bundled: Site) -> None:
    look = show(open_page(page, bundled), "Embeddings")
    cosines, places = compared(look, LINES)
    engine = bundled.engine
    vectors = [
        engine.inspect(Embedding(engine.tokenizer.encode(line), "mean")).result(60)["vector"]
        for line in LINES
    ]
    expect_those_of(np.array(vectors, np.float64), cosines, places)
    expect(look.source).to_contain_text("the mean of its last hidden states")
    expect(look.panel.get_by_role("radio", name="Embedding model")).to_be_hidden()
    expect(look.panel.get_by_text("load an embedding model, or start the server")).to_be_visible()
    look.panel.get_by_label("Texts, one on each line").fill("")
    expect(look.panel.get_by_text("Write a text to see how close")).to_be_visible()


def test_an_embedding_model_is_shown_first(page: Page, site: Callable[..., Site]) -> None:
    look = show(open_page(page, site(embedding=INFO)), "Embeddings")
    cosines, places = compared(look, LINES)
    engine = info_of(FakeOptions(embedding=INFO))
    expect_those_of(
        np.array([fake_encoded(ids_of(line), engine) for line in LINES]), cosines, places
    )
    expect(look.source).to_contain_text(f"Computed by {INFO.name}")
    shown = look.panel.locator(".tk-cosines tbody td").all_inner_texts()
    assert [float(text.replace("−", "-")) for text in shown] == [
        round(value, 2) + 0.0 for value in cosines.flat
    ]
    look.panel.get_by_role("radio", name="Language model").check()
    expect(look.source).to_contain_text(f"Computed by {engine.model.name}")
    other, _ = compared(look, LINES)
    assert np.abs(other - cosines).max() > 0.1
    look.panel.get_by_role("button", name="Words", exact=True).click()
    expect(look.panel.locator(".tk-cosines tbody tr")).to_have_count(10)
    assert violations(page) == []


def test_many_lines_are_cut_and_equal_ones_have_a_plane(
    page: Page, site: Callable[..., Site]
) -> None:
    look = show(open_page(page, site(embedding=INFO)), "Embeddings")
    cosines, places = compared(look, ("the fox", "the fox"))
    np.testing.assert_allclose(cosines, 1, atol=1e-6)
    np.testing.assert_allclose(places, 0, atol=1e-6)
    look.panel.get_by_label("Texts, one on each line").fill(
        "\n".join(f"fox {i}" for i in range(20))
    )
    expect(look.panel.locator(".tk-cosines tbody tr")).to_have_count(16)
    expect(look.panel.get_by_text("The first 16 lines are compared.")).to_be_visible()


@pytest.mark.parametrize("name", ["Embeddings", "Neighbours"])
def test_vectors_of_weights_that_are_stored_otherwise_are_asked_again(
    page: Page, site: Callable[..., Site], name: str
) -> None:
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.url))
    play = open_page(page, site())
    look = show(play, name)

    def n_asked() -> int:
        sent = [m["question"]["kind"] for m in play.messages.sent if m["type"] == "inspect"]
        return sent.count("neighbours") + len([u for u in posted if "/v1/embeddings" in u])

    expect(look.source).to_contain_text("Computed by")
    assert n_asked() == 1
    play.load_as(dtype="q8")
    until(page, lambda: n_asked() == 2, "the question to the other weights")


@pytest.mark.quick
def test_neighbours_of_tokens_are_the_engines(page: Page, bundled: Site) -> None:
    look = show(open_page(page, bundled), "Neighbours")
    text = "The little fox and the little owl"
    look.panel.get_by_role("textbox", name="Text", exact=True).fill(text)
    engine = bundled.engine
    ids = list(dict.fromkeys(engine.tokenizer.encode(text, bos=False)))
    answer = engine.inspect(Neighbours(ids, 7)).result(60)
    expect(look.panel.locator(".tk-near-table tbody tr")).to_have_count(len(ids))
    rows = look.csv()
    assert [row["token"] for row in rows[::6]] == [engine.tokenizer.piece(id) for id in ids]
    np.testing.assert_array_equal(answer["ids"][:, 0], ids)  # itself, which is not listed
    assert [int(row["id"]) for row in rows] == answer["ids"][:, 1:].ravel().tolist()
    named = [engine.tokenizer.piece(int(row["id"])) for row in rows]
    assert [row["neighbour"] for row in rows] == named
    cosines = [float(row["cosine"]) for row in rows]
    np.testing.assert_allclose(cosines, answer["cosines"][:, 1:].ravel(), atol=1e-5)
    assert violations(page) == []


def test_on_a_phone_the_choice_of_views_scrolls_and_the_panel_does_not(
    page: Page, site: Callable[..., Site]
) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    look = show(open_page(page, site()), "Neighbours")
    expect(look.panel.locator(".tk-near-table tbody tr").first).to_be_visible()
    widths = "(node) => [node.scrollWidth - node.clientWidth, node.scrollLeft]"
    assert look.panel.locator(".instrument.tokens").evaluate(widths) == [0, 0]
    assert look.panel.locator(".look-views").evaluate(widths)[0] > 0
