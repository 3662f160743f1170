"""Temperature, top-k and top-p moved by hand while the bundled model writes: each acts from the
token that the engine names, and what the page shows of it is what `transformers` and NumPy say."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, WebSocketRoute, expect

from e2e import oracle
from e2e.net.message_log import MessageLog
from e2e.playground import Playground
from e2e.site import Site
from e2e.waiting import TWO_FRAMES, until

ASK = "Tell me a story about a fox who finds a lantern"
START = {"temperature": "1", "top_k": "0", "top_p": "0.95", "min_p": "0"}
LIVE = ("temperature", "top_k", "top_p")
MOST = 900
TOKENS = 20
"""Tokens written after each change, at least."""
LOGITS_OFF = 2e-3
"""Bound on differences of logits: keys and values have 16 bits here and 64 in the oracle."""


@dataclass(frozen=True)
class Shown:
    """Figures of a token on the page: the number of kept candidates, and shares in per cent."""

    kept: int
    mass: float
    by_top_k: float
    by_top_p: float


@pytest.mark.quick
def test_each_slider_acts_from_the_acknowledged_token_on(page: Page, bundled: Site) -> None:
    write_past_the_end(page)
    play = Playground(page, bundled).open()
    messages = play.messages
    play.set(**START, repetition_penalty="1", seed=2024, max_tokens=MOST)
    # Faster, a busy machine moves the last slider after the last token.
    page.get_by_label("Tokens a second").select_option("5 / s")
    play.ask(ASK)
    play.wait_tokens(6)
    by_keys(page, "temperature", "PageUp", "PageUp", "ArrowRight", "ArrowRight")
    settle(page, play, messages, temperature=1.5)
    play.set(top_k="5")
    settle(page, play, messages, top_k=5)
    by_mouse(page, "top_p", 0.6)
    number_of_top_p = page.locator("#n-top_p")
    expect(number_of_top_p).not_to_have_value(START["top_p"])
    settle(page, play, messages, top_p=float(number_of_top_p.input_value()))
    play.stop.click()
    play.wait_done()

    logits = row_logits(messages)
    changes = messages.events("updated")
    acted = [last_of(changes, name) for name in LIVE]
    assert [change["params"][name] for change, name in zip(acted, LIVE, strict=True)] == [
        1.5,
        5,
        pytest.approx(0.6, abs=0.05),
    ]
    for change, name in zip(acted, LIVE, strict=True):
        index = change["index"]
        assert index + TOKENS <= len(messages.events("token")), (
            "it was moved while text was written"
        )
        was, now = settings_at(messages, index - 1), settings_at(messages, index)
        assert {n for n in LIVE if was[n] != now[n]} == {name}, "one change at a time"
        mark = play.answer.locator(f'.mark-change[data-at="{index}"]')
        expect(mark).to_have_text(re.compile(rf"{name.replace('_', '-')} .* → {now[name]:g}$"))
        bite = first_bite(messages, logits, index, was)
        for at in sorted({index - 1, index, index + 1, bite}):
            seen = shown(page, at)
            expect_as(seen, logits[at], settings_at(messages, at))
            assert seen.kept == messages.events("token")[at]["n_kept"]


def first_bite(
    messages: MessageLog, logits: oracle.Doubles, index: int, was: dict[str, Any]
) -> int:
    """The first token since a change at which the setting before would have kept other candidates:
    a token that is nearly certain is kept alone by any."""
    now = settings_at(messages, index)
    for at in range(index, len(logits)):
        assert settings_at(messages, at) == now, "the next change came before this one had acted"
        if differ(logits[at], was, now):
            return at
    raise AssertionError("no token was chosen from other candidates than before")


def write_past_the_end(page: Page) -> None:
    """Let texts go on after the token that ends a story: how soon the model chooses it depends on
    when the sliders were moved."""

    def on_socket(route: WebSocketRoute) -> None:
        server = route.connect_to_server()

        def on_message(text: str | bytes) -> None:
            message = json.loads(text)
            if message["type"] == "generate":
                message["params"]["ignore_eos"] = True
            server.send(json.dumps(message))

        route.on_message(on_message)

    page.route_web_socket("**/ws", on_socket)


# ---- by hand ---------------------------------------------------------------------------------


def by_keys(page: Page, name: str, *keys: str) -> None:
    page.locator(f"#s-{name}").focus()
    for key in keys:
        page.keyboard.press(key)


def by_mouse(page: Page, name: str, share: float) -> None:
    """Drag the thumb to a share of the slider's length, in one movement: of two settings that are
    near each other, hardly any token shows which one acted."""
    slider = page.locator(f"#s-{name}")
    box = slider.bounding_box()
    assert box is not None
    now = float(slider.input_value())
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + now * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], y)
    page.mouse.up()


def settle(page: Page, play: Playground, messages: MessageLog, **wanted: float) -> None:
    """Wait until the engine has acknowledged a setting, some tokens were written with it, and one
    of them was chosen from other candidates than it would have been before."""

    def acknowledged() -> int | None:
        for change in messages.events("updated"):
            if wanted.items() <= change["params"].items():
                return int(change["index"])
        return None

    def has_acted() -> bool:
        was, now = settings_at(messages, index - 1), settings_at(messages, index)
        return any(differ(each, was, now) for each in row_logits(messages)[index:])

    until(page, lambda: acknowledged() is not None, f"the engine to acknowledge {wanted}")
    index = acknowledged() or 0
    play.wait_tokens(index + TOKENS)
    until(page, has_acted, "a token chosen from other candidates")


def last_of(changes: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The change that gave a setting its last value."""
    last = changes[-1]["params"][name]
    return next(change for change in changes if change["params"][name] == last)


def settings_at(messages: MessageLog, index: int) -> dict[str, Any]:
    """The settings that acted on a token, as the engine acknowledged them."""
    acting: dict[str, Any] = messages.events("accepted")[-1]["params"]
    for change in messages.events("updated"):
        if change["index"] <= index:
            acting = change["params"]
    return acting


# ---- what the page says ----------------------------------------------------------------------


def shown(page: Page, index: int) -> Shown:
    page.evaluate("async (index) => (await import('/static/js/view.js')).pin(index)", index)
    page.evaluate(TWO_FRAMES)
    expect(page.locator("#tok-no")).to_have_text(str(index + 1))
    kept, *removed = (read(span) for span in page.locator(".mass > span").all())
    by = {name: number(share) for name, share in removed}
    count = re.fullmatch(r"([\d,]+) of 4,096 kept", kept[0])
    assert count is not None
    return Shown(int(count[1].replace(",", "")), number(kept[1]), by["top-k"], by["top-p"])


def read(span: Locator) -> tuple[str, str]:
    share = span.locator("b").inner_text()
    return span.inner_text().removesuffix(share).strip(), share


def number(share: str) -> float:
    """Read a share such as "93.1 %", "−6.9 %", "<0.1 %" or "0"."""
    return 0.0 if share.startswith("<") else float(share.lstrip("−").removesuffix(" %"))


# ---- what it should say ----------------------------------------------------------------------


def row_logits(messages: MessageLog) -> oracle.Doubles:
    """Logits of every written token's row, by `transformers` in double precision."""
    prompt = [token["id"] for token in messages.events("accepted")[-1]["prompt"]]
    ids = prompt + [token["id"] for token in messages.events("token")]
    return oracle.logits(ids)[len(prompt) - 1 : -1]


def filtered(
    logits: oracle.Doubles, temperature: float, top_k: int, top_p: float, **_: Any
) -> tuple[int, float, float, float]:
    """How many tokens the two filters keep; their share of softmax(logits / T), and what top-k and
    top-p took of it. Top-p counts in shares of what top-k left."""
    powers = np.exp((logits - logits.max()) / temperature)
    p = np.sort(powers / powers.sum())[::-1]
    left = p[: top_k or len(p)]
    reached = np.cumsum(left) / left.sum()
    n = 1 + int(np.count_nonzero(reached < top_p)) if top_p < 1 else len(left)
    kept = float(left[:n].sum())
    return n, kept, float(1 - left.sum()), float(left.sum()) - kept


def expect_as(seen: Shown, logits: oracle.Doubles, settings: dict[str, Any]) -> None:
    """The page rounds to a tenth of a per cent; the edge of top-p may lie a token further where
    the two models' shares of it differ."""
    exact = {name: settings[name] for name in LIVE}
    edges = [
        filtered(logits, **{**exact, "top_p": min(1.0, exact["top_p"] + off)})[0]
        for off in (-LOGITS_OFF, LOGITS_OFF)
    ]
    assert edges[0] <= seen.kept <= edges[1]
    _, *shares = filtered(logits, **exact)
    n_off = 100 * LOGITS_OFF + 0.05 + 100 * edge_share(logits, exact)
    for told, share in zip((seen.mass, seen.by_top_k, seen.by_top_p), shares, strict=True):
        assert told == pytest.approx(100 * share, abs=n_off)


def edge_share(logits: oracle.Doubles, exact: dict[str, Any]) -> float:
    """Return the share of the tokens on which the two may differ at the edge of top-p."""
    kept = [
        filtered(logits, **{**exact, "top_p": min(1.0, exact["top_p"] + off)})[1]
        for off in (-LOGITS_OFF, LOGITS_OFF)
    ]
    return kept[1] - kept[0]


def differ(logits: oracle.Doubles, was: dict[str, Any], now: dict[str, Any]) -> bool:
    """Would the setting before have kept another number of tokens, clearly?"""
    before, after = (filtered(logits, **{n: s[n] for n in LIVE}) for s in (was, now))
    return abs(before[0] - after[0]) > 1 or abs(before[1] - after[1]) > 0.02
