"""Retrieval on the page: documents, the way of a question, and the answer's chunks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import FilePayload, Locator, Page, Route, expect

from app.retrieval.retriever import Retriever
from e2e.bundled import ask_engine
from e2e.chat.answer_options import AnswerOptions
from e2e.chat.test_tools import CALL
from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from gpu import InvalidRequest
from gpu.inspection.requests import Answer, Array, Divergence, Losses
from tests.app import fake_inspection
from tests.app.fake_encoder import INFO, ids_of
from tests.app.fake_inspection import fake_encoded
from tests.app.fake_options import FakeOptions, info_of
from tests.app.fake_tokenizer import STORY
from tests.app.retrieval.pdf_files import pdf_of

ENGINE = info_of(FakeOptions(embedding=INFO))
QUESTION = "who has the lamp"
REUSED = 40


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path))
    return tmp_path / "retrieval" / "local"


def view(look: LookPanel, name: str) -> LookPanel:
    look.panel.locator(".look-views label", has_text=name).click()
    return look


def says(look: LookPanel) -> Locator:
    return look.panel.locator(".look-view:visible .rt-says").first


def give(look: LookPanel, *files: tuple[str, bytes]) -> None:
    payloads = [FilePayload(name=name, mimeType="", buffer=data) for name, data in files]
    look.panel.get_by_label("Files to index").set_input_files(payloads)


def index(look: LookPanel, *files: tuple[str, bytes]) -> None:
    """Index files and wait until they are in the list."""
    rows = look.panel.locator(".rt-documents tbody tr")
    n = rows.count()
    give(look, *files)
    expect(rows).to_have_count(n + len(files))
    expect(says(look)).to_contain_text("indexed in")


def find(look: LookPanel, question: str = QUESTION) -> None:
    view(look, "Question")
    look.panel.get_by_label("Your question").fill(question)
    look.panel.get_by_role("button", name="Find chunks").click()
    expect(look.panel.locator(".rt-chunks li")).not_to_have_count(0)


@pytest.mark.quick
def test_a_question_finds_its_chunks_and_the_answer_is_measured(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    served = own_site(embedding=INFO, reused=REUSED)
    play = open_page(page, served)
    play.set(max_tokens=8)
    look = play.look.open("retrieval")
    expect(says(look)).to_have_text("No document is indexed yet.")
    look.panel.get_by_label("Overlap").fill("2")
    index(look, ("story.md", STORY.encode()), ("two.pdf", pdf_of(["the owl", "the fox"])))
    documents = look.csv()
    assert [row["document"] for row in documents] == ["story.md", "two.pdf"]
    assert {(row["size"], row["overlap"]) for row in documents} == {("10", "2")}
    assert documents[1]["pages"] == "2"

    find(look)
    stored = json.loads((cache / "chunks.json").read_bytes())["chunks"]
    vectors = np.array([fake_encoded(ids_of(chunk["text"]), ENGINE) for chunk in stored])
    scores = vectors @ fake_encoded(ids_of(f"find {QUESTION}"), ENGINE)
    wanted = np.argsort(-scores)[:3]
    rows = look.csv()
    of = [chunk["document"] for chunk in stored]
    assert [(row["document"], int(row["chunk"])) for row in rows] == [
        (("story.md", "two.pdf")[of[i]], of[: i + 1].count(of[i])) for i in wanted
    ]
    np.testing.assert_allclose([float(row["score"]) for row in rows], scores[wanted], rtol=1e-4)
    marks = look.panel.locator(".rt-prompt mark").all_inner_texts()
    assert [row["text"].strip() in mark for row, mark in zip(rows, marks, strict=True)] == [
        True
    ] * 3
    assert violations(page) == []

    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    expect(look.panel.get_by_role("radio", name="Answer")).to_be_checked()
    message = [one for one in play.messages.sent if one["type"] == "generate"][-1]["messages"][-1][
        "content"
    ]
    assert message.endswith(QUESTION)
    check_measured(look, play, served)
    assert violations(page) == []
    play.load_as(dtype="q8")
    expect(look.panel.locator(".view-answer .send")).to_have_text("Measure")
    assert {row["attention"] for row in look.csv()} == {""}


def test_a_draft_is_not_sent_in_place_of_the_question(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    """What waits for the summary of the oldest turns waits in the message field."""
    play = open_page(page, own_site(embedding=INFO))
    play.set(max_tokens=4)
    page.get_by_label("When context is full").select_option("summarize")
    play.prompt.fill("A draft")
    look = play.look.open("retrieval")
    index(look, ("story.md", b"the little fox"))
    find(look)
    look.panel.get_by_role("button", name="Ask the model").click()
    expect(says(look)).to_contain_text("another message is there. Send or delete that first.")
    expect(play.prompt).to_have_value("A draft")
    look.panel.get_by_role("button", name="Close").click()
    play.prompt.fill("")
    look.tab("RAG").click()
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_tokens(4)
    play.wait_done()
    [sent] = [one for one in play.messages.sent if one["type"] == "generate"]
    assert sent["messages"][-1]["content"].endswith(QUESTION)


def test_an_answer_after_a_call_of_a_tool_has_its_chunks(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    served = own_site(embedding=INFO, text=CALL, ends=True, context=4096, delay=0)
    play = open_page(page, served)
    play.set(temperature=0, max_tokens=200)
    options = AnswerOptions(play).open().check("Calculator")
    options.close()
    look = play.look.open("retrieval")
    index(look, ("story.md", b"the little fox"))
    find(look)
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    look.panel.get_by_role("button", name="Close").click()
    options.cards.get_by_role("button", name="Run tool").press("Enter")
    expect(options.cards).to_have_count(2)
    play.wait_done()
    look.tab("RAG").click()
    expect(look.panel.get_by_role("row", name="story.md, chunk 1")).to_be_visible()


def test_the_prompt_is_counted_with_the_conversation_of_now(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    play = open_page(page, own_site(embedding=INFO))
    play.set(max_tokens=4)
    look = play.look.open("retrieval")
    index(look, ("story.md", b"the little fox"))
    find(look)
    counted = look.panel.get_by_text("tokens with the conversation so far")
    before = counted.inner_text()
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    view(look, "Question")
    expect(counted).not_to_have_text(before)


def test_the_prompt_is_counted_as_it_is_sent(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    """With the system prompt and the tools of now, which came after the chunks were found."""
    play = open_page(page, own_site(embedding=INFO, context=4096))
    play.set(max_tokens=4)
    look = play.look.open("retrieval")
    index(look, ("story.md", b"the little fox"))
    find(look)
    counted = look.panel.get_by_text("tokens with the conversation so far")
    alone = counted.inner_text()
    look.panel.get_by_role("button", name="Close").click()
    page.locator("#system-text").fill("the lamp")
    options = AnswerOptions(play)
    options.open().check("Calculator")
    options.close()
    look.tab("RAG").click()
    expect(counted).not_to_have_text(alone)
    said = counted.inner_text()
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    prompt = play.messages.events("accepted")[-1]["prompt"]
    assert said.startswith(f"{len(prompt):,} tokens")


def test_a_completion_says_why_its_chunks_are_not_measured(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    play = open_page(page, own_site(embedding=INFO))
    play.set(max_tokens=4)
    page.locator("[name=mode][value=completion]").check(force=True)
    look = play.look.open("retrieval")
    index(look, ("story.md", b"the little fox"))
    find(look)
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    expect(look.panel.get_by_role("radio", name="Answer")).to_be_checked()
    expect(look.message).to_contain_text("Ask the model in chat mode to measure them.")


def check_measured(look: LookPanel, play: Playground, served: Site) -> None:
    """Measure the answer, and compare with what the engine answers."""
    prompt = play.messages.events("accepted")[-1]["prompt"]
    ids = [token["id"] for token in prompt]
    written = [token["id"] for token in play.messages.events("token")]
    parts = page_chunks(look.page)
    assert len(parts) == 3
    look.panel.locator(".view-answer .send").click()
    expect(says(look)).to_contain_text("the log-probability of the answer changes most")
    rows = look.csv()

    def logprob(of: list[int], first: int) -> float:
        answer = ask_engine(served, Losses(of, top=5, first=first - 1))
        return float(answer["logprob"].astype(np.float64).sum())

    whole = logprob([*ids, *written], len(ids))
    read = [*ids, *written][:-1]
    asked = Divergence(read, first=len(ids) - 1, window=1)
    received = ask_engine(served, asked)["received"][0] / (len(read) - len(ids) + 1)
    for row, (name, start, end) in zip(rows, parts, strict=False):
        assert row["part of the prompt"] == name
        text = "".join(token["text"] for token in prompt[start:end])
        assert text.startswith(name)
        tokens = (int(row["tokens"]), int(row["reused"]), int(row["read now"]), int(row["moved"]))
        n_reused = max(0, min(end, REUSED) - start)
        assert tokens == (end - start, n_reused, end - start - n_reused, 0)
        assert float(row["attention"]) == pytest.approx(received[start:end].sum(), rel=1e-4)
        rest = [*ids[:start], *ids[end:]]
        without = logprob([*rest, *written], len(rest))
        assert float(row["log-probability with it"]) == pytest.approx(whole, abs=1e-3)
        assert float(row["difference"]) == pytest.approx(whole - without, abs=1e-3)
    assert sum(float(row["attention"]) for row in rows) == pytest.approx(1, abs=1e-3)


def test_a_chunk_that_makes_the_answer_less_likely_may_change_it_most(
    page: Page,
    own_site: Callable[..., Site],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logprobs = iter((-2.0, -3.0, -0.5))  # of each token: with all, without the first, the second
    original = fake_inspection._losses

    def losses(logits: np.ndarray, ids: list[int], top: int) -> Answer:
        found, logprob = original(logits, ids, top), np.full(len(ids), next(logprobs), np.float32)
        others = [array for array in found.arrays if array.name != "logprob"]
        return Answer(found.info, (Array.of("logprob", logprob), *others))

    monkeypatch.setattr(fake_inspection, "_losses", losses)
    play = open_page(page, own_site(embedding=INFO))
    play.set(max_tokens=4)
    look = play.look.open("retrieval")
    index(look, ("a.txt", b"the fox"), ("b.txt", b"the lamp"))
    find(look)
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    look.panel.locator(".view-answer .send").click()
    expect(says(look)).to_contain_text("changes most")
    _, second, *_ = rows = look.csv()
    assert [float(row["difference"]) for row in rows[:2]] == [4.0, -6.0]
    name = second["part of the prompt"]
    expect(says(look)).to_contain_text(f"Without “{name}”, the log-probability of the answer")
    expect(says(look)).to_contain_text("changes most: +6.00 nats.")


def test_what_was_wrong_with_one_answer_is_not_said_of_another(
    page: Page,
    own_site: Callable[..., Site],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> Answer:
        raise InvalidRequest("attention is out of reach")

    play = open_page(page, own_site(embedding=INFO))
    play.set(max_tokens=4)
    look = play.look.open("retrieval")
    index(look, ("a.txt", b"the fox"))
    find(look)
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    with monkeypatch.context() as patched:
        patched.setattr(fake_inspection, "_divergence", refuse)
        look.panel.locator(".view-answer .send").click()
        expect(says(look)).to_contain_text("attention is out of reach")
        expect(look.panel.locator(".view-answer .send")).to_have_text("Continue")
    view(look, "Question")
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    expect(says(look)).to_contain_text("Which chunk did the answer use?")


def test_a_measurement_says_at_once_that_it_runs_and_may_be_stopped(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    play = open_page(page, own_site(embedding=INFO, ask_seconds=3.0))
    play.set(max_tokens=4)
    look = play.look.open("retrieval")
    index(look, ("a.txt", b"the fox"), ("b.txt", b"the lamp"))
    find(look)
    look.panel.get_by_role("button", name="Ask the model").click()
    play.wait_done()
    go = look.panel.locator(".view-answer .send")
    expect(go).to_have_text("Measure")
    go.click()
    expect(go).to_have_text("Stop", timeout=2500)
    expect(look.panel.get_by_role("progressbar", name="Measured")).to_be_visible()
    expect(says(look)).to_have_text("Measuring the attention to each chunk …")
    go.click()
    expect(go).to_have_text("Stopping …")
    expect(go).to_have_text("Continue")
    asked = [one["question"]["kind"] for one in play.messages.sent if one["type"] == "inspect"]
    assert asked == ["divergence"], "one measurement, which was stopped after its first question"
    go.click()
    expect(says(look)).to_contain_text("Measured: 1 of 2 chunks.")
    expect(says(look)).to_contain_text("changes most")


def page_chunks(page: Page) -> list[tuple[str, int, int]]:
    """Return name, first token and end of each chunk of the last answer's prompt."""
    script = """async () => {
      const { chunksIn } = await import("/static/js/look/retrieval/prompt-parts.js");
      const { partsOf } = await import("/static/js/turns/message-parts.js");
      const { state } = await import("/static/js/state.js");
      const [asked, turn] = state.turns.slice(-2);
      const { prompt } = turn.answers[0].segments[0];
      return chunksIn(prompt, partsOf(asked).files).map(({ name, from, to }) => [name, from, to]);
    }"""
    return [tuple(each) for each in page.evaluate(script)]


def test_what_of_a_chunk_is_cached_is_counted(page: Page, site: Callable[..., Site]) -> None:
    open_page(page, site())
    script = """async ([from, to, promptReused, promptMoved]) => {
      const { cachedOf } = await import("/static/js/look/retrieval/prompt-parts.js");
      return cachedOf({ from, to }, { promptReused, promptMoved });
    }"""
    before, over = {"first": 0, "end": 5, "source": 0}, {"first": 8, "end": 12, "source": 0}
    for asked, reused, moved, read in (
        ([10, 30, 0, []], 0, 0, 20),
        ([10, 30, 10, []], 0, 0, 20),
        ([10, 30, 25, []], 15, 0, 5),
        ([10, 30, 99, []], 20, 0, 0),
        ([10, 30, 12, [{"first": 15, "end": 50, "source": 0}]], 2, 15, 3),
        (
            [10, 30, 0, [before, over]],
            0,
            2,
            18,
        ),
    ):
        assert page.evaluate(script, asked) == {"reused": reused, "moved": moved, "read": read}


def test_an_excerpt_of_a_chunk_ends_with_a_word(page: Page, site: Callable[..., Site]) -> None:
    open_page(page, site())
    script = """async (text) =>
      (await import("/static/js/look/retrieval/prompt-parts.js")).excerpt(text)"""
    block = "a.txt, chunk 1:\n```\n{}\n```"
    assert page.evaluate(script, block.format("the fox\nand the owl")) == "the fox and the owl"
    cut = page.evaluate(script, block.format("lantern " * 20))
    assert cut == "lantern " * 14 + "lantern …"


def test_the_same_text_twice_in_a_prompt_is_two_chunks(
    page: Page, site: Callable[..., Site]
) -> None:
    open_page(page, site())
    script = """async (texts) => {
      const { chunksIn } = await import("/static/js/look/retrieval/prompt-parts.js");
      const files = ["ab\\n\\n", "ab\\n\\n", "?"].map((block) => ({ name: "", block }));
      const prompt = texts.map((text, id) => ({ id, text }));
      return chunksIn(prompt, files).map(({ from, to }) => [from, to]);
    }"""
    texts = ["ab", "<s>", "a", "b\n\na", "", "b", "\n\n"]
    assert page.evaluate(script, texts) == [[2, 4], [3, 6]], "the newest message is the last"


def test_chunks_whose_characters_are_split_over_tokens_are_found(
    page: Page, site: Callable[..., Site]
) -> None:
    open_page(page, site())
    script = """async ([blocks, texts]) => {
      const { chunksIn } = await import("/static/js/look/retrieval/prompt-parts.js");
      const files = blocks.map((block) => ({ name: "", block }));
      const prompt = texts.map((text, id) => ({ id, text }));
      return chunksIn(prompt, files).map(({ text, from, to }) => [text, from, to]);
    }"""
    blocks = ["a, chunk 1:\n灯笼 “ja” 🦊\n", "a, chunk 2:\n狐狸\n"]
    texts = ["<s>", "a, chunk 1:\n", "灯", *"\ufffd\ufffd", " \ufffd", "\ufffd", "ja", "”", " "]
    texts += [*"\ufffd\ufffd\ufffd", "\n", "a, chunk 2:", "\n", *"\ufffd" * 6, "\n", "?"]
    first, second = (block.rstrip() for block in blocks)
    assert page.evaluate(script, [blocks, texts]) == [[first, 1, 13], [second, 14, 22]]


def test_bad_documents_and_questions_are_answered_in_words(
    page: Page, site: Callable[..., Site], cache: Path, allowed_console: list[str]
) -> None:
    allowed_console.append("status of 400")
    look = open_page(page, site(embedding=INFO)).look.open("retrieval")
    give(look, ("scan.pdf", pdf_of([""])), ("after.txt", b"is not indexed"))
    expect(says(look)).to_contain_text("scan.pdf has no text, probably because its pages are scans")
    look.panel.get_by_role("button", name="Add text").click()
    expect(says(look)).to_contain_text("Pasted text is empty; choose a document with text")
    look.panel.get_by_label("Chunk size").fill("11")
    give(look, ("a.txt", b"the fox"))
    expect(says(look)).to_contain_text("Expected 4 to 10 tokens for a chunk")
    expect(look.panel.locator(".rt-documents tbody tr")).to_have_count(0)
    text = look.panel.get_by_label("Text to index")
    text.fill("the little fox was happy")
    look.panel.get_by_role("button", name="Add text").click()
    expect(says(look)).to_contain_text("Expected 4 to 10 tokens for a chunk")
    expect(text).to_have_value("the little fox was happy")
    view(look, "Question")
    look.panel.get_by_label("Your question").fill("the fox")
    page.keyboard.press("Enter")
    expect(says(look)).to_contain_text("There are no documents yet; add one first")
    view(look, "Answer")
    expect(look.message).to_contain_text("There is no answer yet. Find chunks for a question")
    view(look, "Documents")
    look.panel.get_by_label("Chunk size").fill("8")
    look.panel.get_by_role("button", name="Add text").click()
    expect(look.panel.locator(".rt-documents tbody th")).to_have_text(["pasted text"])
    expect(text).to_have_value("")
    look.panel.get_by_role("button", name="Remove pasted text").click()
    expect(look.panel.locator(".rt-documents tbody tr")).to_have_count(0)
    (cache).mkdir(parents=True)
    (cache / "chunks.json").write_text("{", "utf-8")
    look.panel.get_by_role("button", name="Close").click()
    look.open("retrieval")
    expect(says(look)).to_contain_text("remove all documents and add them again")
    look.panel.get_by_role("button", name="Remove all").click()
    expect(says(look)).not_to_contain_text("cannot be used")


def test_documents_of_an_earlier_start_are_counted(
    page: Page, own_site: Callable[..., Site], cache: Path
) -> None:
    look = open_page(page, own_site(embedding=INFO)).look.open("retrieval")
    index(look, ("a.txt", b"the fox"), ("b.txt", b"the lamp"))
    look = open_page(page, own_site(embedding=INFO)).look.open("retrieval")
    expect(says(look)).to_have_text("2 documents indexed.")
    index(look, ("c.txt", b"the owl"))
    look.panel.get_by_role("button", name="Remove c.txt").click()
    expect(says(look)).to_have_text("2 documents indexed.")
    look.panel.get_by_role("button", name="Remove all").click()
    expect(says(look)).to_have_text("No document is indexed yet.")


def test_files_are_dropped_and_their_indexing_cancelled(
    page: Page, site: Callable[..., Site], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = HeldVectors(monkeypatch)
    look = open_page(page, site(embedding=INFO)).look.open("retrieval")
    files = page.evaluate_handle(
        """(text) => {
          const files = new DataTransfer();
          files.items.add(new File([text], "dropped.md"));
          files.items.add(new File([text], "second.md"));
          return files;
        }""",
        STORY,
    )
    look.panel.locator(".rt-drop").dispatch_event("drop", {"dataTransfer": files})
    expect(says(look)).to_contain_text("dropped.md: 8 of ")
    expect(says(look)).to_contain_text("1 more file to go.")
    look.panel.get_by_role("button", name="Cancel").click()
    hold.go()
    expect(says(look)).to_have_text("dropped.md was cancelled; nothing is kept of it.")
    expect(look.panel.locator(".rt-documents tbody tr")).to_have_count(0)
    expect(page.locator("#attached li")).to_have_count(0)


def test_a_file_is_said_to_be_read_until_the_server_has_read_it(
    page: Page, site: Callable[..., Site], cache: Path
) -> None:
    """A PDF of many pages takes half a minute."""
    held: list[Route] = []
    page.route("**/api/retrieval/documents", lambda route: held.append(route), times=1)
    look = open_page(page, site(embedding=INFO)).look.open("retrieval")
    give(look, ("a.txt", b"the fox"), ("b.txt", b"the lamp"))
    expect(says(look)).to_have_text("a.txt: reading … 1 more file to go.")
    held.pop().continue_()
    expect(look.panel.locator(".rt-documents tbody th")).to_have_text(["a.txt", "b.txt"])


class HeldVectors:
    """Holds back the vectors of all chunks but the first batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_go = threading.Event()
        original = Retriever._ask

        def ask(retriever: Retriever, ids: list[list[int]], asker: int = 0) -> Any:
            if asker and retriever._run is not None and retriever._run.done:
                assert self._may_go.wait(30)
            return original(retriever, ids, asker)

        monkeypatch.setattr(Retriever, "_ask", ask)

    def go(self) -> None:
        self._may_go.set()


def test_without_an_embedding_model_it_says_how_to_load_one(
    page: Page, site: Callable[..., Site]
) -> None:
    look = open_page(page, site()).look.open("retrieval")
    expect(look.message).to_contain_text(
        "There is no embedding model; to load one, press the model’s name at the top of the page"
    )
