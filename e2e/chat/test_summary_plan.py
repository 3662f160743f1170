"""How many turns a summary covers so that a message fits. Every character is a token here."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Error, Page

pytestmark = pytest.mark.quick

PLAN = """async ({ chat, limits }) => {
  const { planSummary } = await import("/static/js/chat/summary-plan.js");
  const { messagesOf } = await import("/static/js/turns/summary.js");
  const sizeOf = (messages) => messages.reduce((sum, { content }) => sum + content.length, 0);
  let nCounts = 0;
  const count = async (messages) => {
    nCounts += 1;
    return sizeOf(messages);
  };
  const plan = await planSummary(chat, limits, count);
  const sent = [...messagesOf(chat.turns, chat.system), { content: chat.text }];
  return { plan, nCounts, size: sizeOf(sent), read: plan && sizeOf(plan.messages) };
}"""

CONTEXT = 8000
STEP, SUMMARY = CONTEXT // 4, CONTEXT // 8
MAX_TOKENS = 100
ROOM = CONTEXT - MAX_TOKENS
FEW = 60
"""More characters than stand around a summary."""


def turn(asked: int, answered: int, *, mark: str = "x") -> list[dict[str, Any]]:
    """Return what a person said in `asked` characters and the answer to it."""
    return [said(mark * asked), model("a" * answered)]


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "mode": "chat", "text": text}


def model(text: str, *, covers: int = 0, reason: str = "eos") -> dict[str, Any]:
    """Return an answer, or a summary of the first `covers` messages."""
    answer = {"text": text, "segment": {"state": "done", "reason": reason}}
    own = {"summary": {"covers": covers}} if covers else {}
    return {"role": "model", "mode": "chat", "given": "", "shown": 0, "answers": [answer], **own}


def plan(
    page: Page, turns: list[dict[str, Any]], text: str, *, system: str = "", context: int = CONTEXT
) -> dict[str, Any]:
    chat = {"turns": turns, "system": system, "text": text}
    given = {"chat": chat, "limits": {"context": context, "maxTokens": MAX_TOKENS}}
    found: dict[str, Any] = page.evaluate(PLAN, given)
    return found


def test_nothing_is_summarised_while_there_is_room(loaded: Page) -> None:
    turns = turn(3000, 500) + turn(3000, 500)
    assert plan(loaded, turns, "t" * (ROOM - 7000))["plan"] is None
    assert plan(loaded, turns, "t" * (ROOM - 6999))["plan"] is not None
    assert plan(loaded, [], "t" * CONTEXT)["plan"] is None, "there is nothing to summarise"


@pytest.mark.parametrize("sizes", [[700] * 12, [3000, 200, 3000, 300, 1500], [100] * 79])
def test_a_quarter_of_the_context_is_free_after_a_summary_of_as_few_turns_as_can_be(
    loaded: Page, sizes: list[int]
) -> None:
    turns = [each for size in sizes for each in turn(size // 2, size - size // 2)]
    text = "t" * (ROOM + 1 - sum(sizes))
    found = plan(loaded, turns, text, system="s" * 50)
    covers = found["plan"]["covers"]
    rest = [len(text) + 50 + SUMMARY + sum(sizes[n:]) for n in range(len(sizes) + 1)]
    assert rest[covers] <= ROOM - STEP
    assert rest[covers - 1] + FEW > ROOM - STEP
    assert found["nCounts"] < 6 + 3 * len(sizes).bit_length()


def test_the_request_is_the_chat_so_far_which_the_cache_has(loaded: Page) -> None:
    turns = turn(4000, 100, mark="1") + turn(2000, 0, mark="2") + turn(2000, 0, mark="3")
    *read, asked = plan(loaded, turns, "t" * 400, system="Be brief.")["plan"]["messages"]
    expected = [("system", "Be brief."), ("user", "1" * 4000), ("assistant", "a" * 100)]
    assert [(each["role"], each["content"]) for each in read] == expected
    assert asked["role"] == "user"
    assert asked["content"].startswith("Summarise our conversation so far in at most 600 words")


def test_a_later_summary_reads_the_earlier_one_and_not_what_that_covers(loaded: Page) -> None:
    turns = turn(2500, 0, mark="1") + turn(3600, 0, mark="2") + turn(2000, 0, mark="3")
    turns += [model("OLD", covers=1), *turn(2000, 0, mark="4")]
    found = plan(loaded, turns, "t" * 300)
    assert found["plan"]["covers"] == 2
    texts = [each["content"] for each in found["plan"]["messages"]]
    assert texts[1:3] == ["OLD", "2" * 3600]
    assert not any("1" * 2500 in text or "3" * 2000 in text for text in texts)


def test_a_summary_that_was_stopped_or_failed_counts_for_nothing(loaded: Page) -> None:
    turns = turn(2500, 0) + turn(2500, 0) + turn(2500, 0)
    whole = plan(loaded, turns, "t" * 500)
    for reason in ("cancelled", "error", ""):
        broken = [*turns, model("half of", covers=2, reason=reason)]
        assert plan(loaded, broken, "t" * 500) == whole
    done = [*turns, model("all of it", covers=2)]
    assert plan(loaded, done, "t" * 500)["plan"] is None


def test_turns_longer_than_the_context_are_summarised_in_pieces(loaded: Page) -> None:
    """As after a move to a model with a shorter context."""
    sizes = [3000] * 7
    turns = [each for size in sizes for each in turn(size, 0)]
    pieces = []
    while (found := plan(loaded, turns, "t" * 3000))["plan"]:
        assert found["read"] + SUMMARY <= CONTEXT
        assert not found["plan"]["slides"]
        pieces.append(found["plan"]["covers"])
        turns.append(model("m" * SUMMARY, covers=pieces[-1]))
        assert len(pieces) < 10
    assert pieces == [2, 3, 4, 5, 6]
    assert found["size"] <= ROOM


def test_a_turn_that_is_too_long_by_itself_slides_through_the_context(loaded: Page) -> None:
    found = plan(loaded, turn(7000, 800) + turn(100, 0), "t" * 10)["plan"]
    assert (found["covers"], found["slides"]) == (1, True)


def test_a_message_that_is_too_long_beside_any_summary_is_refused(loaded: Page) -> None:
    with pytest.raises(Error, match=r"8,2\d\d tokens together, but the context has 8,000"):
        plan(loaded, turn(3000, 0), "t" * 7200)


def test_the_summary_is_found_in_a_prompt_whose_characters_are_split(loaded: Page) -> None:
    asked, text = "Summarise our conversation so far.", "Der 🦊 fand 灯笼."
    pieces = [text[:4].strip(), " ", "\ufffd", "\ufffd", " fand ", "\ufffd", "\ufffd", "."]
    before = ["<|user|>", *asked, "<|end|>", "<|assistant|>"]
    prompt = [*before, *pieces, "<|end|>", "<|user|>", "Der", " rest"]
    span = loaded.evaluate(
        """async ([asked, text, prompt]) => {
          const { summarySpan } = await import("/static/js/turns/summary-span.js");
          const user = { role: "user", content: asked };
          const messages = [user, { role: "assistant", content: text }];
          const of = (originalRequest) =>
            summarySpan({ prompt: prompt.map((each) => ({ text: each })), originalRequest });
          return [of({ messages }), of({ messages: [user] })];
        }""",
        [asked, text, prompt],
    )
    assert span == [{"first": 1, "end": len(before) + len(pieces)}, None]
