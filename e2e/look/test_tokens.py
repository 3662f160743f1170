"""Views of Tokens: steps of a word and counts of several tokenizers are those of the `tokenizers`
library."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import tokenizers
from playwright.sync_api import BrowserContext, FilePayload, Page, expect

from app import tale
from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until
from gpu.text.tokenizer import Tokenizer
from tests.gpu.text.multilingual import TEXTS
from tests.tokenizers.train import FAMILIES, FOLDER

TITLES = {
    "Byte-level BPE": "byte-level-bpe",
    "SentencePiece BPE": "sentencepiece-bpe",
    "Unigram": "unigram",
    "WordPiece": "wordpiece",
}


def family(name: str) -> Tokenizer:
    return Tokenizer.load(FOLDER / f"{name}.json")


def show(play: Playground, view: str) -> LookPanel:
    look = play.look.open("tokens")
    look.panel.get_by_role("radio", name=view, exact=True).check()
    return look


def test_the_prompt_is_cut_again_by_the_tokenizer_of_another_model(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site())
    play.prompt.fill("The fox found a lamp")
    look = show(play, "Prompt")
    expect(look.source).to_contain_text("from the draft")

    def n_asked() -> int:
        return len([m for m in play.messages.sent if m["type"] == "tokenize"])

    before = n_asked()
    play.load_as(name="another")
    until(page, lambda: n_asked() > before, "the question to the other tokenizer")


@pytest.mark.quick
def test_an_attached_file_is_a_draft_without_a_text(page: Page, site: Callable[..., Site]) -> None:
    """It is sent as it is, so its tokens can be seen before."""
    play = open_page(page, site())
    play.set(max_tokens=4)
    play.ask("the lamp")
    play.wait_done()
    file = FilePayload(name="a.txt", mimeType="text/plain", buffer=b"the little fox")
    page.locator("#attach-files").set_input_files(file)
    look = play.look.open("tokens")
    expect(page.get_by_role("radio", name="Draft")).to_be_checked()
    shown = look.panel.get_by_role("list", name="Tokens: user")
    expect(shown).to_have_count(2)
    rows = [row for row in look.csv() if row["role"] == "user"]
    text = "".join(row["text"] for row in rows)
    assert text.startswith("the lampa.txt:")
    assert "the little fox" in text


def test_a_typed_word_is_merged_as_by_the_model(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    look = show(play, "Word")
    look.panel.get_by_label("Word", exact=True).last.fill("Once unfolding")
    tokenizer = Tokenizer.load(tale.model_dir())
    words = tokenizer.segment("Once unfolding").words
    expect(look.panel.locator(".tk-steps-of")).to_have_count(len(words))
    rows = look.csv()
    ranks = [int(row["rank"]) for row in rows if row["rank"]]
    assert ranks == [merge.rank for word in words for merge in word.merges]
    ids = [int(row["id"]) for row in rows if row["id"]]
    assert ids == [merge.id for word in words for merge in word.merges]
    for word in words:
        last = [row for row in rows if row["word"] == word.word][-1]
        assert last["tokens after it"].split(" | ") == [tokenizer.piece(id) for id in word.ids]
    shown = look.panel.locator(".tk-steps-of").last.locator(".tk-step").last.locator(".id")
    assert shown.all_inner_texts() == [str(id) for id in words[-1].ids]
    assert violations(page) == []


def test_other_families_show_their_own_steps(page: Page, site: Callable[..., Site]) -> None:
    look = show(open_page(page, site()), "Word")
    choice = look.panel.get_by_role("combobox", name="Tokenizer")
    for title, name in TITLES.items():
        choice.select_option(title)
        expect(look.source).to_contain_text(title)
        (word,) = family(name).segment("unbelievably").words
        rows = look.csv()
        if not word.candidates:
            assert [int(row["rank"]) for row in rows[1:]] == [each.rank for each in word.merges]
            continue
        assert len(rows) == len(word.candidates)
        for row, each in zip(rows, word.candidates, strict=True):
            assert row["token"] == word.word[each.first : each.end]
            assert row["id"] == ("" if each.id is None else str(each.id))
            assert row["chosen"] == ("yes" if each.best else "")
            if each.score is not None:
                assert float(row["log-probability"]) == pytest.approx(each.score)
    assert violations(page) == []


@pytest.mark.quick
def test_counts_of_all_tokenizers_are_the_librarys(page: Page, bundled: Site) -> None:
    play = Playground(page, bundled).open()
    texts = {
        each["name"]: each["text"]
        for each in page.evaluate(
            "async () => (await import('/static/js/look/tokens/samples.js')).SAMPLES"
        )
    }
    texts["Your prompt"] = "Привет, naïve 🙂"
    play.prompt.fill(texts["Your prompt"])
    look = show(play, "Tokenizers")
    look.panel.get_by_label("Price per million tokens").fill("2.5")
    expect(look.panel.locator(".tk-bar small").first).to_contain_text("per M words")
    own = Tokenizer.load(tale.model_dir())
    by_name = {title: family(name) for title, name in TITLES.items()}
    rows = look.csv()
    assert len(rows) == len(texts) * (len(TITLES) + 2)
    for row in rows:
        text, name = texts[row["text"]], row["tokenizer"]
        if name == "Bytes":
            n = len(text.encode())
        else:
            n = len(by_name.get(name, own).encode(text, bos=False, specials=False))
        assert int(row["tokens"]) == n, row
        assert int(row["words"]) == len(text.split())
        assert float(row["tokens per word"]) == pytest.approx(n / len(text.split()))
        assert float(row["price per million words"]) == pytest.approx(2.5 * n / len(text.split()))
    said = look.panel.locator(".tk-chart").get_attribute("aria-label") or ""
    assert all(f"{name}: " in said for name in (*TITLES, "Bytes"))


def test_families_in_the_page_are_those_of_the_library(loaded: Page) -> None:
    script = """async ([name, texts]) => {
      const { loadFamily } = await import("/static/js/look/tokens/families.js");
      const tokenizer = await loadFamily(name);
      return texts.map((text) => tokenizer.encode(text, { bos: false, specials: false }));
    }"""
    for name in FAMILIES:
        tokenizer = family(name)
        texts = [text for text in TEXTS if "<unk>" not in text]
        want = [tokenizer.encode(text, bos=False, specials=False) for text in texts]
        assert loaded.evaluate(script, [name, texts]) == want, name


def test_a_shorter_list_of_merges_gives_the_counts_of_the_curve(loaded: Page) -> None:
    counts = loaded.evaluate(
        """async (texts) => {
          const { loadFamily } = await import("/static/js/look/tokens/families.js");
          return (await loadFamily("byte-level-bpe")).countsByVocabulary(texts);
        }""",
        TEXTS,
    )
    file = json.loads((FOLDER / "byte-level-bpe.json").read_text("utf-8"))
    merges = file["model"]["merges"]
    assert [size for size, _ in counts] == [*range(256, 2001)]
    for n in (0, 1, 100, 700, len(merges)):
        file["model"]["merges"] = merges[:n]
        shorter = tokenizers.Tokenizer.from_str(json.dumps(file))
        total = sum(len(shorter.encode(text, add_special_tokens=False).ids) for text in TEXTS)
        assert counts[n] == [256 + n, total]


def test_a_phone_shows_a_token_with_a_tap(
    context: BrowserContext, site: Callable[..., Site]
) -> None:
    browser = context.browser
    assert browser is not None
    phone = browser.new_context(has_touch=True, is_mobile=True)
    try:
        play = Playground(phone.new_page(), site()).open()
        play.ask()
        play.wait_done()
        look = play.look.open("tokens")
        detail = look.panel.locator(".tk-detail")
        expect(detail).to_have_text("Point at a token or tap it, or use the arrow keys.")
        look.panel.locator(".tk-list .pc").first.tap()
        expect(detail).to_contain_text("token 1 · id ")
    finally:
        phone.close()
