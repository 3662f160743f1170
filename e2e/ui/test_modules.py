"""The page's pure modules, called in the browser they run in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from gpu.sampling_params import SETTINGS, SamplingParams

pytestmark = pytest.mark.quick

Call = Callable[..., Any]


def test_ranges_are_those_of_the_server(loaded: Page) -> None:
    settings = loaded.evaluate(
        "async () => (await import('/static/js/settings/sampling-settings.js')).SETTINGS"
    )
    shown = {
        setting.name: setting
        for setting in SETTINGS
        if setting.name not in ("seed", "first_index")  # without a number box
    }
    assert {each["name"]: (each["min"], each["max"]) for each in settings} == {
        name: setting.declared.range for name, setting in shown.items()
    }
    for each in settings:
        box = loaded.locator(f"#n-{each['name']}, #{each['name']}")
        expect(box).to_have_count(1)
    sliders = loaded.locator("#sliders .sl, #penalties .sl")
    expect(sliders).to_have_count(sum(each["slider"] is not None for each in settings))


def test_the_presets_are_settings_that_the_server_takes(loaded: Page) -> None:
    presets = loaded.evaluate(
        "async () => (await import('/static/js/settings/sampling-settings.js')).PRESETS"
    )
    for values in presets.values():
        assert set(values) == {s.name for s in SETTINGS if s.declared.slider is not None}
        SamplingParams(**values).validate()


def test_names_keep_their_letters_at_the_beginning(call: Call) -> None:
    for message, sentence in {
        "the model is gone": "The model is gone.",
        "Is it?": "Is it?",
        "weights/0000.bin is another file": "weights/0000.bin is another file.",
        "http://here/ was not found": "http://here/ was not found.",
        "max_tokens must be 1": "max_tokens must be 1.",
        "model: not found": "Model: not found.",
        "": "",
    }.items():
        assert call("ui/format", "sentence", message) == sentence


def test_stop_strings_are_read_and_written(call: Call) -> None:
    for text, stops in {
        "": [],
        "The end": ["The end"],
        "a, b ,c": ["a", "b", "c"],
        r"\n\n, end": ["\n\n", "end"],
        r"one\, two, \\": ["one, two", "\\"],
        ", ,": [],
    }.items():
        assert call("settings/sampling-settings", "parseStops", text) == {"value": stops}
        assert call(
            "settings/sampling-settings",
            "parseStops",
            call("settings/sampling-settings", "writeStops", stops),
        ) == {"value": stops}
    assert "error" in call(
        "settings/sampling-settings", "parseStops", ",".join("abcdefghijklmnopq")
    )
    assert "error" in call("settings/sampling-settings", "parseStops", "x" * 257)


def test_seeds_have_64_bits_on_the_wire(call: Call) -> None:
    text = '{"seed":"1"} and \\"seed\\":\\"2\\"'
    message = {"type": "generate", "prompt": text, "params": {"seed": "18446744073709551615"}}
    encoded = call("net/socket", "encode", message)
    assert '"params":{"seed":18446744073709551615}' in encoded
    assert json.loads(encoded)["prompt"] == text


def test_numbers_are_written_for_people(call: Call) -> None:
    cases = [
        ("duration", [9.3], "9.3 ms"),
        ("duration", [840], "840 ms"),
        ("duration", [2950], "2.95 s"),
        ("duration", [200_000], "3 min 20 s"),
        ("duration", [119_700], "2 min 0 s"),
        ("bytes", [65536], "65.5 KB"),
        ("bytes", [999_700], "1.0 MB"),
        ("bytes", [8_400_000], "8.4 MB"),
        ("ordinal", [0], "1st"),
        ("ordinal", [10], "11th"),
        ("ordinal", [21], "22nd"),
        ("ordinal", [111], "112th"),
        ("percent", [0.00001], "<0.1"),
        ("percent", [0.275], "27.5"),
        ("tokenLabel", [" the"], "the"),
        ("tokenLabel", ["\n\n"], "↵↵"),
        ("tokenLabel", [" "], "␣"),
        ("tokenLabel", ["", "end"], "end"),
    ]
    for name, arguments, expected in cases:
        assert call("ui/format", name, *arguments) == expected, (name, arguments)


def test_scales_are_rounded_outwards(call: Call) -> None:
    for value, up, down in [(3, 5, 2), (0.5, 0.5, 0.5), (71, 100, 50), (0.013, 0.02, 0.01)]:
        assert call("turns/metrics", "round125", value, 1) == pytest.approx(up)
        assert call("turns/metrics", "round125", value, -1) == pytest.approx(down)


EVENTS = """async (events) => {
  const { Answer } = await import("/static/js/turns/answer.js");
  const answer = new Answer();
  const segment = answer.begin("a", { capture: true, params: {} });
  const taken = events.map(([seq, event]) => answer.applyEvent(segment, seq, event));
  const marks = answer.marks.map(({ index, changes, shown }) => ({ index, changes, shown }));
  const warmth = answer.tokens.map((token) => answer.settingsAt(token).temperature);
  return { taken, text: answer.text, marks, warmth, state: segment.state };
}"""

PARAMS = {
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "repetition_penalty": 1,
    "max_tokens": 9,
}
ACCEPTED = {
    "type": "accepted",
    "prompt": [],
    "params": PARAMS,
    "capture": True,
    "position": 0,
    "context": 64,
}


def token(index: int, text: str) -> dict[str, Any]:
    return {"type": "token", "index": index, "text": text, "kv_blocks": 1}


def updated(index: int, temperature: float) -> dict[str, Any]:
    params = {**PARAMS, "temperature": temperature}
    return {"type": "updated", "index": index, "params": params, "capture": True}


def test_messages_seen_before_are_dropped_and_gaps_are_noticed(loaded: Page) -> None:
    events = [
        [1, ACCEPTED],
        [2, token(0, "A")],
        [2, token(0, "A")],
        [4, token(2, "C")],
        [3, token(1, "B")],
    ]
    result = loaded.evaluate(EVENTS, events)
    assert result["taken"] == [True, True, False, None, True]
    assert result["text"] == "AB"
    assert result["state"] == "writing"


def test_marks_tell_a_drag_once_and_keep_what_each_token_saw(loaded: Page) -> None:
    events = [[1, ACCEPTED], [2, updated(5, 0.9)], [3, updated(8, 1.2)], [4, updated(40, 1.3)]]
    marks = loaded.evaluate(EVENTS, events)["marks"]
    shown = [[(c["from"], c["to"]) for c in mark["shown"]] for mark in marks]
    seen = [[(c["from"], c["to"]) for c in mark["changes"]] for mark in marks]
    assert [mark["index"] for mark in marks] == [5, 8, 40]
    assert shown == [[], [(0.7, 1.2)], [(1.2, 1.3)]]
    assert seen == [[(0.7, 0.9)], [(0.9, 1.2)], [(1.2, 1.3)]]


def test_every_token_knows_the_settings_it_was_chosen_with(loaded: Page) -> None:
    events = [
        [1, ACCEPTED],
        [2, token(0, "A")],
        [3, updated(2, 0.9)],
        [4, token(1, "B")],
        [5, token(2, "C")],
        [6, updated(4, 1.2)],
        [7, token(3, "D")],
        [8, token(4, "E")],
    ]
    assert loaded.evaluate(EVENTS, events)["warmth"] == [0.7, 0.7, 0.9, 0.9, 1.2]


TREES = {
    "one": (["abcd"], [0], ["abcd"]),
    "parting": (["abcd", "abxy"], [0, 1], ["ab", "cd", "xy"]),
    "order of lines": (
        ["abcd", "abxy", "abcq", "zz"],
        [0, 2, 1, 3],
        ["", "ab", "c", "d", "q", "xy", "zz"],
    ),
    "one ends where the other goes on": (["ab", "abcd"], [0, 1], ["ab", "cd"]),
    "the same again": (["abc", "abc"], [0, 1], ["abc", ""]),
}


@pytest.mark.parametrize(("texts", "lines", "stretches"), TREES.values(), ids=TREES)
def test_texts_that_begin_alike_make_a_tree(
    call: Call, texts: list[str], lines: list[int], stretches: list[str]
) -> None:
    tree = call("look/branches/tree", "treeOf", [[{"id": c} for c in text] for text in texts])
    assert tree["rows"] == lines
    nodes = tree["nodes"]
    assert [texts[n["leaves"][0]][n["from"] : n["to"]] for n in nodes] == stretches
    for node in nodes:
        shared = {texts[leaf][: node["to"]] for leaf in node["leaves"]}
        assert len(shared) == 1, "who shares a stretch begins alike"
        assert lines[node["row"]] == node["leaves"][0]
    for leaf, text in enumerate(texts):
        path = [n for n in nodes if leaf in n["leaves"]]
        assert "".join(text[n["from"] : n["to"]] for n in path) == text


@pytest.mark.parametrize(
    ("logprobs", "total", "mean"),
    [([-1.5, -0.5], -2.0, -1.0), ([], None, None), ([-1.0, None], None, None)],
)
def test_a_likelihood_is_known_when_all_of_its_parts_are(
    loaded: Page, logprobs: list[float | None], total: float | None, mean: float | None
) -> None:
    found = loaded.evaluate(
        "async (values) => (await import('/static/js/look/branches/tree.js'))"
        ".likelihoodOf(values.map((logprob) => ({ logprob: logprob ?? NaN })))",
        logprobs,
    )
    assert found == {"n": len(logprobs), "total": total, "mean": mean}


def test_seeds_are_read_as_the_server_takes_them(call: Call) -> None:
    most = 2**64 - 1
    assert call("settings/sampling-settings", "parseSeed", str(most)) == {"value": str(most)}
    assert call("settings/sampling-settings", "parseSeed", " 007 ") == {"value": "7"}
    assert call("settings/sampling-settings", "parseSeed", "") == {"value": ""}
    for text in (str(most + 1), "9" * 20, "-1", "1.5", "0x10", "seed"):
        assert "error" in call("settings/sampling-settings", "parseSeed", text), text
