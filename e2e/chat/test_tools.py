"""A conversation with tools: cards of calls, results for the model, and the tools themselves."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from playwright.sync_api import Page, Route, expect

from e2e.chat.answer_options import AnswerOptions
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import until

CALLED = '{"expression": "(17 + 25) * 2"}'
CALL = f'<tool_call>\n{{"name": "calculator", "arguments": {CALLED}}}\n</tool_call>'


@pytest.fixture
def calling(page: Page, site: Callable[..., Site]) -> Callable[..., AnswerOptions]:
    """Return a function that opens a page whose model writes `text`, whatever it is asked."""

    def open_page(text: str, tool_url: tuple[str, ...] = ()) -> AnswerOptions:
        answers = site(text=text, ends=True, context=4096, delay=0, tool_url=tool_url)
        play = Playground(page, answers).open()
        play.set(temperature=0, max_tokens=200)
        return AnswerOptions(play)

    return open_page


def ask(page: Page, text: str = "What is 17 plus 25, twice?") -> None:
    page.locator("#prompt").fill(text)
    page.locator("#prompt").press("Enter")


@pytest.mark.quick
def test_the_person_runs_a_call_and_the_model_gets_its_result(
    page: Page, calling: Callable[[str], AnswerOptions]
) -> None:
    options = calling(CALL)
    options.open().check("Calculator")
    options.close()
    expect(options.chips).to_have_text("Toolscalculator")
    ask(page)
    card = options.cards
    expect(card).to_have_attribute("data-state", "waiting")
    expect(card.locator("dd")).to_have_text("(17 + 25) * 2")
    assert len(options.requests()) == 1
    card.get_by_role("button", name="Run tool").press("Enter")
    expect(card.first).to_have_attribute("data-state", "done")
    expect(card.first.locator(".tool-result")).to_have_text("84")
    expect(card).to_have_count(2)  # this model calls again, and the second call waits
    expect(card.nth(1)).to_have_attribute("data-state", "waiting")

    first, second = options.requests()
    (described,) = first["tools"]
    assert described["function"]["name"] == "calculator"
    assert first["tool_choice"] == "required"
    assert "tool_choice" not in second
    assert second["tools"] == first["tools"]
    user, assistant, result = second["messages"]
    assert user["role"] == "user"
    (call,) = assistant["tool_calls"]
    assert (assistant["content"], call["function"]["arguments"]) == ("", CALLED)
    assert result == {"role": "tool", "content": "84", "tool_call_id": call["id"]}


def test_calls_run_by_themselves_up_to_the_limit(
    page: Page, calling: Callable[[str], AnswerOptions]
) -> None:
    options = calling(CALL)
    options.open().check("Calculator", "Run calls without asking")
    options.dialog.get_by_label("Limit of answers with calls").fill("2")
    options.close()
    ask(page)
    expect(options.cards).to_have_count(3)
    states = [card.get_attribute("data-state") for card in options.cards.all()]
    assert states == ["done", "done", "waiting"]
    expect(page.locator(".tool-note").last).to_contain_text("2 times for this message, the limit")
    assert len(options.requests()) == 3
    options.cards.last.get_by_role("button", name="Run tool").press("Enter")
    expect(options.cards).to_have_count(4)


def test_what_a_call_gets_wrong_is_said_to_the_model(
    page: Page, calling: Callable[[str], AnswerOptions]
) -> None:
    wrong = '{"name": "calculator", "arguments": {"expression": "2 +"}}'
    unknown = '{"name": "weather", "arguments": {}}'
    options = calling(f"<tool_call>{wrong}</tool_call><tool_call>{unknown}</tool_call>")
    options.open().check("Calculator")
    options.close()
    ask(page)
    expect(options.cards).to_have_count(2)
    options.cards.nth(0).get_by_role("button", name="Run tool").press("Enter")
    expect(options.cards.nth(0)).to_have_attribute("data-state", "failed")
    assert len(options.requests()) == 1  # the other call has no result yet
    options.cards.nth(1).get_by_role("button", name="Run tool").press("Enter")
    expect(options.cards).to_have_count(4)
    expect(options.cards.nth(0)).to_contain_text("Error: expected a number at the end")
    expect(options.cards.nth(1)).to_contain_text("there is no tool “weather”")
    results = options.requests()[1]["messages"][-2:]
    assert [result["role"] for result in results] == ["tool", "tool"]
    assert results[0]["content"] == "Error: expected a number at the end"


def test_calls_and_results_are_kept(page: Page, calling: Callable[[str], AnswerOptions]) -> None:
    options = calling(CALL)
    options.open().check("Calculator")
    options.close()
    ask(page)
    options.cards.get_by_role("button", name="Run tool").press("Enter")
    expect(options.cards).to_have_count(2)
    page.reload()
    expect(page.locator("body")).to_have_attribute("data-engine", "ready")
    expect(options.cards.first.locator(".tool-result")).to_have_text("84")
    expect(options.chips).to_have_text("Toolscalculator")
    ask(page, "And once more?")
    expect(options.cards).to_have_count(3)
    roles = [message["role"] for message in options.requests()[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


class Weather(BaseHTTPRequestHandler):
    """A tool of a person: answers with the city that it was asked about."""

    asked: ClassVar[list[Any]] = []

    def do_OPTIONS(self) -> None:
        self.send_response(204)
        self.allow()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((body, self.headers.get("Cookie"), self.headers.get("Referer")))
        self.send_response(200)
        self.allow()
        self.wfile.write(f"Rain in {body['arguments']['city']}".encode())

    def allow(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        self.send_header("Access-Control-Allow-Headers", "content-type")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def weather() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Weather)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_tool_of_ones_own_is_called_where_the_server_allows_it(
    page: Page, calling: Callable[..., AnswerOptions], weather: str
) -> None:
    call = '{"name": "weather", "arguments": {"city": "Paris"}}'
    options = calling(f"<tool_call>{call}</tool_call>", tool_url=(weather,)).open()
    dialog = options.dialog
    dialog.get_by_text("A tool of your own").click()
    address = dialog.get_by_label("Address")
    described = dialog.get_by_label("Name, description and parameters")
    error = page.locator("#own-tool-error")
    described.fill(json.dumps({"name": "weather", "description": "Weather of a city"}))
    for refused, why in (
        ("ftp://127.0.0.1/", "The address must begin with http:// or https://."),
        ("weather", "The address must begin with http:// or https://."),
        (weather.replace("//", "//me:secret@"), "must not contain a user name or password"),
        (weather.replace("127.0.0.1", "localhost"), "start it with --tool-url http://localhost:"),
        ("http://127.0.0.1.example.org/", "This server does not let its page call"),
        ("https://example.org/weather", "start it with --tool-url https://example.org."),
    ):
        address.fill(refused)
        dialog.get_by_role("button", name="Add the tool").click()
        expect(error).to_contain_text(why)
    address.fill(f"{weather}/weather")
    for wrong in ("{", "[]", '{"name": "a b"}', '{"name": "a", "parameters": {"type": "array"}}'):
        described.fill(wrong)
        dialog.get_by_role("button", name="Add the tool").click()
        expect(error).to_contain_text(re.compile("description|parameters"))
    described.fill(json.dumps({"name": "weather", "description": "Weather of a city"}))
    dialog.get_by_role("button", name="Add the tool").click()
    expect(error).to_be_hidden()
    expect(options.box("weather")).to_be_checked()
    options.close()
    ask(page)
    options.cards.get_by_role("button", name="Run tool").press("Enter")
    expect(options.cards.first.locator(".tool-result")).to_have_text("Rain in Paris")
    body, cookie, referrer = Weather.asked[-1]
    assert body == {"name": "weather", "arguments": {"city": "Paris"}}
    assert cookie is None
    assert referrer is None


TOOL = "http://tool.example"


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_result_that_comes_while_the_line_is_cut_is_sent_afterwards(
    page: Page, site: Callable[..., Site], allowed_console: list[str], by_itself: bool
) -> None:
    allowed_console.append("WebSocket connection to")
    call = '{"name": "weather", "arguments": {}}'
    text = f"<tool_call>{call}</tool_call>"
    answers = site(text=text, ends=True, context=4096, delay=0, tool_url=(TOOL,))
    play, held = Playground(page, answers), list[Route]()
    play.route_sockets()
    page.route(f"{TOOL}/", lambda route: held.append(route))
    play.open().set(temperature=0, max_tokens=200)
    options = AnswerOptions(play).open()
    options.dialog.get_by_text("A tool of your own").click()
    options.dialog.get_by_label("Address").fill(f"{TOOL}/")
    described = json.dumps({"name": "weather", "description": "Weather of a city"})
    options.dialog.get_by_label("Name, description and parameters").fill(described)
    options.dialog.get_by_role("button", name="Add the tool").click()
    if by_itself:
        options.check("Run calls without asking")
        options.dialog.get_by_label("Limit of answers with calls").fill("1")
    options.close()
    ask(page)
    if not by_itself:
        options.cards.get_by_role("button", name="Run tool").press("Enter")
    until(page, lambda: held, "the call")
    play.offline = True
    play.cut()
    expect(play.notice).to_contain_text("The server cannot be reached")
    held[0].fulfill(body="Rain", headers={"Access-Control-Allow-Origin": "*"})
    send = page.get_by_role("button", name="Send results")
    expect(options.cards).to_have_attribute("data-state", "done")
    expect(send).to_be_disabled()
    play.offline = False
    if not by_itself:
        send.click()
    expect(options.cards).to_have_count(2)
    assert options.requests()[-1]["messages"][-1]["content"] == "Rain"
    expect(send.first).to_be_hidden()


def test_a_kept_tool_that_this_server_does_not_allow_says_why(
    page: Page, calling: Callable[..., AnswerOptions], weather: str
) -> None:
    calling("")
    call = """async (url) => {
      const { callOwn } = await import("/static/js/tools/own-tool.js");
      return callOwn({ name: "weather", url }, {}).catch((error) => error.message);
    }"""
    asked = len(Weather.asked)
    refusal = page.evaluate(call, f"{weather}/weather")
    assert refusal.endswith(
        f"does not let its page call {weather}; start it with --tool-url {weather}."
    )
    assert len(Weather.asked) == asked


def test_a_required_call_follows_the_schema(page: Page, bundled: Site) -> None:
    """The bundled model knows nothing of tools; the grammar makes it write a call all the same."""
    play = Playground(page, bundled).open()
    play.set(temperature=1, seed=5, max_tokens=120)
    options = AnswerOptions(play)
    options.open().check("Search")
    options.close()
    ask(page, "A fox")
    expect(options.cards).to_have_count(1)
    done = play.messages.events("done")[-1]
    (call,) = done["tool_calls"]
    query = json.loads(call["arguments"])["query"]
    assert call["name"] == "search"
    assert 2 <= len(query) <= 60
    assert options.cards.locator("dd").inner_text().strip() == query.strip()
    expect(page.get_by_test_id("stats")).to_contain_text("grammar complete")


def test_a_required_call_that_is_written_in_parts_is_one_call(
    page: Page, bundled: Site, tmp_path: Path
) -> None:
    """Each part goes on in the schema where the one before ended, also when it is written again."""
    play = Playground(page, bundled).open()
    play.set(temperature=1, seed=5, max_tokens=12)
    options = AnswerOptions(play)
    options.open().check("Search")
    options.close()
    ask(page, "A fox")
    for n in (12, 24):
        play.wait_tokens(n)
        play.wait_done()
        expect(options.cards).to_have_count(0)
        if n == 24:
            play.set(max_tokens=120)
        play.continue_button.click()
    play.wait_tokens(25)
    play.wait_done()
    expect(options.cards).to_have_count(1)
    (call,) = play.messages.events("done")[-1]["tool_calls"]
    assert call["name"] == "search"
    n = len(play.numbers())
    made = play.playback
    made.open(made.save(tmp_path / "call.json"))
    made.again.click()
    expect(made.said).to_have_text(f"The same {n} tokens.", timeout=60_000)


def test_an_answer_that_a_stop_string_ended_goes_on_with_its_tools(
    page: Page, calling: Callable[[str], AnswerOptions]
) -> None:
    options = calling(CALL)
    options.open().check("Calculator")
    options.close()
    page.locator("#stop-strings").fill("name")
    page.locator("#stop-strings").press("Enter")
    ask(page)
    expect(page.get_by_test_id("stats")).to_contain_text("grammar complete")
    page.get_by_role("button", name="Continue").click()
    until(page, lambda: len(options.requests()) == 2, "the request that goes on")
    first, second = options.requests()
    assert second["tools"] == first["tools"]
    assert "tool_choice" not in second


def test_an_edited_answer_is_continued_by_a_model_that_knows_the_tools(
    page: Page, calling: Callable[[str], AnswerOptions]
) -> None:
    options = calling("Let me see.")
    options.open().check("Calculator")
    options.close()
    ask(page)
    expect(page.locator(".answer")).to_have_text("Let me see.")
    expect(page.get_by_role("button", name="Regenerate")).to_be_enabled()
    page.locator(".turn.model").hover()
    page.locator(".turn.model").get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Answer to put in its place").fill("I compute:")
    page.get_by_role("button", name="Continue from here").click()
    until(page, lambda: len(options.requests()) == 2, "the request that goes on")
    first, second = options.requests()
    assert second["tools"] == first["tools"]
    assert second["messages"][-1] == {"role": "assistant", "content": "I compute:"}
    assert "tool_choice" not in second


# ---- the tools -------------------------------------------------------------------------------

EXPRESSIONS: dict[str, float] = {
    "(17 + 25) * 2": 84,
    "2^3^2": 512,
    "-2^2": -4,
    "2**-1": 0.5,
    "7 % 4 - 1": 2,
    "1.5e3 / 3": 500,
    "sqrt(1764) + abs(-3)": 45,
    "max(1, 2, sin(0)) × 3": 6,
    "6 ÷ 4": 1.5,
    "ln(e) + log(100) + cos(pi)": 2,
    "0.1 + 0.2": 0.3,
    "--3": 3,
    "0 * -1": 0,
}
WRITTEN = {
    "999999 * 9999999": "9999989000001",
    "2^53 - 1": "9007199254740991",
    "0.1 * 30": "3",
    "123456789 * 987654321": "1.21932631113e+17",
    "2 / 3": "0.666666666667",
}
"""All digits of an integer that is exact, twelve of another number."""
WRONG = {
    "": "the expression is empty",
    "2 +": "expected a number at the end",
    "(2": "expected “)” at the end",
    "2 3": "expected an operator before “3”",
    "1/0": "division by zero",
    "alert(1)": "“alert” is not known",
    "constructor": "“constructor” is not known",
    "sqrt(1, 2)": "sqrt takes one number, but got 2",
    "2 & 3": "but got “&”",
    "10^999": "is not a finite number",
    "(" * 200: "at most 100 levels",
    "1+" * 600: "may have 1000 characters",
}


def test_the_calculator_computes_and_runs_nothing(play: Callable[..., Playground]) -> None:
    values = play().page.evaluate(
        """async (all) => {
          const { calculate } = await import("/static/js/tools/calculator.js");
          const valueOf = (text) => {
            try { return calculate(text); } catch (error) { return error.message; }
          };
          return all.map(valueOf);
        }""",
        [*EXPRESSIONS, *WRONG, *WRITTEN],
    )
    for (text, wanted), value in zip(EXPRESSIONS.items(), values, strict=False):
        assert float(value) == wanted, text
    for (text, words), value in zip(WRONG.items(), values[len(EXPRESSIONS) :], strict=False):
        assert words in value, text
    assert dict(zip(WRITTEN, values[-len(WRITTEN) :], strict=True)) == WRITTEN


TEXT = """The fox lives in the old forest. A fox is red.

The owl sleeps by day.

Foxes and owls rarely meet, and the owl does not mind the fox at all, said the badger."""


def bm25(query: str) -> list[tuple[str, float]]:
    """Return the passages of TEXT and their scores by the formula of Robertson and Zaragoza."""
    passages = TEXT.split("\n\n")
    words = [re.findall(r"\w+", passage.lower()) for passage in passages]
    mean = sum(map(len, words)) / len(words)
    scored = []
    for passage, own in zip(passages, words, strict=True):
        score = 0.0
        for term in set(re.findall(r"\w+", query.lower())):
            n = sum(term in other for other in words)
            weight = math.log(1 + (len(words) - n + 0.5) / (n + 0.5))
            count = own.count(term)
            score += weight * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(own) / mean))
        scored.append((passage, score))
    return sorted((each for each in scored if each[1]), key=lambda each: -each[1])


def test_the_search_ranks_passages_by_bm25(play: Callable[..., Playground]) -> None:
    page = play().page
    for query in ("the red fox", "owl", "badger owl", "whale"):
        found = page.evaluate(
            """async ([text, query]) => {
              const { search } = await import("/static/js/tools/search.js");
              return search([{ name: "a", text }], query, 9);
            }""",
            [TEXT, query],
        )
        wanted = bm25(query)
        assert [each["passage"] for each in found] == [passage for passage, _ in wanted], query
        assert [each["score"] for each in found] == pytest.approx([s for _, s in wanted])
