"""The page's state and focus change only through the functions that say what changed.

`state` (static/js/state.js) and `view` (view.js) are read-only to tsc, which does not see what
`Object.assign` and the methods of an array do.
"""

from __future__ import annotations

import re

import pytest

from tests.serving import ROOT

JS = ROOT / "static/js"
OWN = ("state.js", "view.js")
HELD = r"\b(?<!\.)(?:state|view|liveState\(\)|state\.replay\??\.suspended)"
CHANGES = re.compile(
    rf"{HELD}\.(?:(?:settings|conversation)\.)?\w+\s*(?:[-+*/|&?]{{0,3}}=(?![=>])|\+\+|--)"
    rf"|Object\.assign\(\s*{HELD}(?:\.(?:settings|conversation))?\s*,"
    rf"|{HELD}\??\.(?:turns|left)\.(?:push|pop|shift|unshift|splice|sort|reverse|fill)\("
)


@pytest.mark.parametrize(
    ("code", "is_change"),
    [
        ("state.problem = null;", True),
        ("liveState().active = answer;", True),
        ("view.pinned ??= 0;", True),
        ("state.conversation.own ||= own;", True),
        ("Object.assign(state, { turns });", True),
        ("Object.assign(state.settings, values);", True),
        ("state.turns.push(turn);", True),
        ("if (state.active === answer) stop();", False),
        ("const on = () => state.active;", False),
        ("segment.state = 'done';", False),
        ("state.active.segment.left = true;", False),
        ("const last = state.turns.at(-1);", False),
    ],
)
def test_each_way_to_change_it_is_found(code: str, is_change: bool) -> None:
    assert bool(CHANGES.search(code)) is is_change


def test_only_their_own_functions_change_state_and_view() -> None:
    found = [
        f"{path.relative_to(JS)}: {match[0]}"
        for path in sorted(JS.rglob("*.js"))
        if path.relative_to(JS).as_posix() not in OWN
        for match in CHANGES.finditer(path.read_text("utf-8"))
    ]
    assert not found
