"""Several choices of one request, and settings that change while they are written."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from flask.testing import FlaskClient

from app.engine_client import OnEvent, UnavailableError
from app.http.errors import ClientGoneError
from app.openai.choices import MAX_SEED, Choices
from app.openai.operations import OPERATIONS
from gpu import CANNOT_FOLLOW, InvalidRequest, QueueFull, Request, SamplingParams
from gpu.events import Accepted, Done, Prefill, Reason, StepTimes, Timings, Token
from tests.app.conftest import Site, StartSite
from tests.app.openai.requests import GREEDY, HELLO, chat, chunks, complete, hold_next_run

# ---- when the runs start and end -------------------------------------------------------------


class RecordedRun:
    """A run that says what a test has it say."""

    def __init__(self, request: Request, on_event: OnEvent) -> None:
        self.request = request
        self.say = on_event
        self.changes: list[dict[str, Any]] = []
        self.cancelled = self.ended = False

    def update(self, **changes: Any) -> int:
        if self.ended:
            raise InvalidRequest("this run has ended; settings act on the next one", "id")
        self.changes.append(changes)
        return 7

    def cancel(self) -> None:
        self.cancelled = True


class Submissions:
    """The runs that were submitted; all but the first `room` are refused."""

    def __init__(self, room: int = 16) -> None:
        self.runs: list[RecordedRun] = []
        self.room = room

    def __call__(self, request: Request, on_event: OnEvent) -> RecordedRun:
        if len(self.runs) == self.room:
            raise QueueFull("there is no room")
        self.runs.append(RecordedRun(request, on_event))
        return self.runs[-1]


def token() -> Token:
    times = StepTimes(1, None, 0, 0, 0)
    return Token(0, 5, "a", -1.0, 0.5, 1, 1, 0.5, (1, 1, 1, 1), (), times, 1)


def done(reason: Reason = "length", message: str = "") -> Done:
    return Done(reason, 3, 1, Timings(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), message)


def accepted(params: SamplingParams) -> Accepted:
    return Accepted((), params, False, 0, 512)


def started(
    n: int,
    submissions: Submissions,
    params: SamplingParams | None = None,
    gone: Callable[[], bool] = lambda: False,
) -> Choices:
    """Return `n` choices, the first of which was accepted."""
    request = Request([1, 2, 3], params or SamplingParams(seed=MAX_SEED - 1))
    choices = Choices(submissions, [request], n, gone)
    first = submissions.runs[0]
    first.say(accepted(first.request.params))
    choices.wait_accepted()
    return choices


def test_the_others_start_with_the_first_ones_first_token() -> None:
    submissions = Submissions()
    choices = started(3, submissions)
    assert len(submissions.runs) == 1
    events = iter(choices)
    submissions.runs[0].say(token())
    found = next(events)
    assert found is not None
    assert found[0] == 0
    seeds = [run.request.params.seed for run in submissions.runs]
    assert seeds == [MAX_SEED - 1, MAX_SEED, 0]
    for run in submissions.runs:
        assert run.request.ids == [1, 2, 3]
        run.say(done())
    assert [index for index, _ in filter(None, events)] == [0, 1, 2]


def test_a_seed_is_drawn_once_for_all_choices() -> None:
    submissions = Submissions()
    choices = started(2, submissions, SamplingParams())
    submissions.runs[0].say(token())
    next(iter(choices))
    first, second = (run.request.params.seed for run in submissions.runs)
    assert first is not None
    assert second == first + 1
    assert [choices.seed_of(0), choices.seed_of(1)] == [first, second]


def test_a_choice_that_is_interrupted_ends_the_others_with_its_reason() -> None:
    submissions = Submissions()
    choices = started(2, submissions)
    submissions.runs[0].say(token())
    events = iter(choices)
    next(events)
    submissions.runs[1].say(done("error", "the device was lost"))
    with pytest.raises(UnavailableError, match="the device was lost"):
        list(events)
    assert submissions.runs[0].cancelled


def test_a_grammar_that_leads_nowhere_is_a_fault_of_the_request() -> None:
    submissions = Submissions()
    choices = started(1, submissions)
    submissions.runs[0].say(token())
    submissions.runs[0].say(done("error", f"{CANNOT_FOLLOW}: nothing can come next"))
    with pytest.raises(InvalidRequest, match=r"nothing can come next .* change the grammar") as no:
        list(choices)
    assert no.value.param == "grammar"
    assert "seed" not in str(no.value), "the same request would end the same way"


def test_a_choice_that_finds_no_room_waits_for_another_to_end() -> None:
    submissions = Submissions(room=2)
    choices = started(3, submissions)
    events = iter(choices)
    submissions.runs[0].say(token())
    next(events)
    assert len(submissions.runs) == 2
    submissions.room = 3
    submissions.runs[1].say(done())
    next(events)
    assert len(submissions.runs) == 3
    for run in (submissions.runs[0], submissions.runs[2]):
        run.say(done())
    assert [found and found[0] for found in events] == [0, 2]


def test_the_first_choice_is_refused_if_it_finds_no_room() -> None:
    with pytest.raises(QueueFull):
        started(1, Submissions(room=0))


def test_a_choice_whose_place_went_to_somebody_else_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the choices before it wrote is not lost."""
    monkeypatch.setattr("app.openai.choices.POLL_SECONDS", 0.01)
    monkeypatch.setattr("app.openai.choices.PING_SECONDS", 0.05)
    submissions = Submissions(room=1)
    choices = started(2, submissions)
    events = iter(choices)
    submissions.runs[0].say(done())
    assert next(events) == (0, done())
    assert next(events) is None, "it still waits, and says so"
    submissions.room = 2
    assert next(events) is None
    submissions.runs[1].say(done())
    assert list(events) == [(1, done())]


def test_a_client_that_leaves_while_a_choice_waits_ends_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.openai.choices.POLL_SECONDS", 0.01)
    gone = False
    submissions = Submissions(room=1)
    choices = started(2, submissions, gone=lambda: gone)
    events = iter(choices)
    submissions.runs[0].say(done())
    next(events)
    gone = True
    with pytest.raises(ClientGoneError):
        next(events)
    assert list(choices) == []


def test_prompts_start_side_by_side_and_their_choices_when_they_are_read() -> None:
    submissions = Submissions()
    requests = [Request([id], SamplingParams()) for id in (1, 2)]
    choices = Choices(submissions, requests, 2, lambda: False)
    assert [run.request.ids for run in submissions.runs] == [[1], [2]]
    events = iter(choices)
    submissions.runs[1].say(token())
    assert next(events) == (2, token())
    submissions.runs[0].say(token())
    assert next(events) == (0, token())
    assert [run.request.ids for run in submissions.runs] == [[1], [2], [2], [1]]
    first, *others = (run.request.params.seed for run in submissions.runs)
    assert first is not None
    assert others == [first, first + 1, first + 1], "prompts have the seeds that they have alone"
    choices.cancel()
    assert all(run.cancelled for run in submissions.runs)


def test_a_prompt_that_is_refused_ends_those_before_it() -> None:
    submissions = Submissions()

    def submit(request: Request, on_event: OnEvent) -> RecordedRun:
        if request.ids == [9]:
            raise InvalidRequest("there is no token 9", "prompt")
        return submissions(request, on_event)

    requests = [Request([id], SamplingParams(seed=1)) for id in (1, 9)]
    with pytest.raises(InvalidRequest):
        Choices(submit, requests, 1, lambda: False)
    assert submissions.runs[0].cancelled


def test_a_client_that_leaves_cancels_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.openai.choices.POLL_SECONDS", 0.01)
    gone = False
    submissions = Submissions()
    choices = started(2, submissions, gone=lambda: gone)
    events = iter(choices)
    submissions.runs[0].say(token())
    next(events)
    gone = True
    monkeypatch.setattr("app.openai.choices.PING_SECONDS", 0.05)
    assert next(events) is None
    assert [run.cancelled for run in submissions.runs] == [True, True]


def test_a_client_that_leaves_is_noticed_at_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.openai.choices.POLL_SECONDS", 60)
    gone = False
    submissions = Submissions()
    events = iter(started(1, submissions, gone=lambda: gone))
    (run,) = submissions.runs
    run.say(token())
    next(events)
    assert not run.cancelled
    gone = True
    run.say(token())
    next(events)
    assert run.cancelled
    run.say(done("cancelled"))
    with pytest.raises(ClientGoneError):
        list(events)


def test_progress_of_a_prompt_does_not_hold_up_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream has nothing to send for it, so without pings the line would be silent."""
    seconds = 0.0
    clock = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr("app.openai.choices.time", clock)
    submissions = Submissions()
    events = iter(started(1, submissions))
    for n_done in range(6):
        submissions.runs[0].say(Prefill(n_done, 6, 0, 0.0, None, 1))
    is_ping = []
    for _ in range(8):
        is_ping.append(next(events) is None)
        seconds += 2
    assert is_ping == [False, False, False, True, False, False, True, False]


def test_a_change_reaches_choices_that_have_not_started() -> None:
    submissions = Submissions()
    choices = started(2, submissions)
    assert choices.update(temperature=0.25) == {0: 7}
    submissions.runs[0].say(token())
    next(iter(choices))
    assert submissions.runs[0].changes == [{"temperature": 0.25}]
    assert submissions.runs[1].request.params.temperature == 0.25
    with pytest.raises(InvalidRequest, match="temperature"):
        choices.update(temperature=-1.0)
    assert len(submissions.runs[0].changes) == 1


def test_a_change_passes_over_choices_whose_end_was_not_read_yet() -> None:
    submissions = Submissions()
    choices = started(2, submissions)
    first = submissions.runs[0]
    first.say(token())
    first.ended = True
    assert choices.update(temperature=0.25) == {}, "the other one will start with it"
    next(iter(choices))
    second = submissions.runs[1]
    assert second.request.params.temperature == 0.25
    assert choices.update(temperature=0.5) == {1: 7}
    assert second.changes == [{"temperature": 0.5}]
    second.ended = True
    with pytest.raises(InvalidRequest, match="has ended"):
        choices.update(temperature=0.75)


# ---- over HTTP -------------------------------------------------------------------------------


def test_every_choice_is_the_text_of_its_seed(http: FlaskClient) -> None:
    answer = complete(http, n=3, seed=40, max_tokens=10)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["seed"] for choice in answer["choices"]] == [40, 41, 42]
    alone = [complete(http, seed=seed, max_tokens=10) for seed in (40, 41, 42)]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [one["choices"][0]["text"] for one in alone]
    assert len(set(texts)) == 3


def test_the_prompt_of_several_choices_counts_once(http: FlaskClient) -> None:
    usage = complete(http, n=3, max_tokens=10)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        2,
        30,
        32,
    )


def test_chat_choices_have_their_own_logprobs(http: FlaskClient) -> None:
    answer = chat(http, n=2, seed=3, max_tokens=6, logprobs=True)
    assert [choice["message"]["role"] for choice in answer["choices"]] == ["assistant"] * 2
    for choice in answer["choices"]:
        pieces = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert "".join(pieces) == choice["message"]["content"]


def test_best_of_returns_the_likeliest(http: FlaskClient) -> None:
    every = complete(http, n=5, seed=8, max_tokens=8, logprobs=0)["choices"]
    means = [sum(c["logprobs"]["token_logprobs"]) / 8 for c in every]
    assert max(means) > means[0]  # so that returning the first would be noticed
    likeliest = sorted(every, key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
    best = complete(http, n=2, best_of=5, seed=8, max_tokens=8)
    assert [choice["text"] for choice in best["choices"]] == [c["text"] for c in likeliest[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert [choice["seed"] for choice in best["choices"]] == [c["seed"] for c in likeliest[:2]]
    assert best["usage"]["completion_tokens"] == 40


def test_a_stream_of_several_choices_says_what_the_whole_says(http: FlaskClient) -> None:
    whole = chat(http, n=3, seed=5, max_tokens=9)
    response = http.post(
        "/v1/chat/completions",
        json={
            "messages": HELLO,
            "n": 3,
            "seed": 5,
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    *parts, last = chunks(response.text)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 27
    texts, ends, roles = ["", "", ""], [0, 0, 0], [0, 0, 0]
    for part in parts:
        (choice,) = part["choices"]
        assert not ends[choice["index"]], "a choice goes on after its end"
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles[choice["index"]] += "role" in choice["delta"]
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert (roles, ends) == ([1, 1, 1], [1, 1, 1])
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]


# ---- settings that change --------------------------------------------------------------------

CHANGE = next(each for each in OPERATIONS if each.path == "/v1/generations/{id}/params")


def open_stream(port: int, **fields: Any) -> tuple[http.client.HTTPResponse, dict[str, Any]]:
    """Start a stream; return its response and its first chunk."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"prompt": "Once", "stream": True, **fields}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    line = response.readline()
    return response, json.loads(line.removeprefix(b"data: "))


def test_settings_change_while_an_answer_is_written(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = hold_next_run(site, monkeypatch)
    client = site.app.test_client()
    response, first = open_stream(site.port, **GREEDY, max_tokens=60, ignore_eos=True)
    changed = client.post(f"/v1/generations/{first['id']}/params", json={"temperature": 2.0})
    assert changed.status_code == 200, changed.text
    assert changed.json is not None
    jsonschema.validate(changed.json, CHANGE.answer)
    (choice,) = changed.json["choices"]
    go_on()
    parts = [first, *chunks(response.read().decode().lstrip("\n"))]
    texts = [part["choices"][0]["text"] for part in parts]
    greedy = client.post(
        "/v1/completions",
        json={"prompt": "Once", **GREEDY, "max_tokens": 60, "ignore_eos": True, "logprobs": 0},
    )
    assert greedy.json is not None
    expected = greedy.json["choices"][0]["text"]
    assert 0 < choice["first_token"] < 60
    assert expected.startswith("".join(texts[: choice["first_token"]]))
    assert "".join(texts) != expected


@pytest.mark.parametrize("name", ["temperature", "frequency_penalty", "watermark_bias"])
def test_what_log_probabilities_are_computed_from_cannot_change(
    start_site: StartSite, name: str
) -> None:
    site = start_site(delay=0.1)  # 48 seconds for a text
    client = site.app.test_client()
    for n_top, status in ((3, 400), (0, 200)):
        response, first = open_stream(site.port, max_tokens=480, logprobs=n_top)
        changed = client.post(f"/v1/generations/{first['id']}/params", json={name: 1.5})
        assert changed.status_code == status, changed.text
        assert changed.json is not None
        if status == 400:
            assert changed.json["error"]["param"] == name
        response.close()


def test_an_answer_that_has_ended_is_not_found(http: FlaskClient) -> None:
    ended = complete(http, max_tokens=2)["id"]
    for id in (ended, "cmpl-unknown"):
        response = http.post(f"/v1/generations/{id}/params", json={"temperature": 1})
        assert response.status_code == 404
        assert response.json is not None
        assert response.json["error"]["code"] == "generation_not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"seed": 5}, "seed"),
        ({"prompt": "a"}, "prompt"),
        ({}, None),
        ([], None),
    ],
)
def test_a_bad_change_names_the_field(start_site: StartSite, body: Any, param: str | None) -> None:
    site = start_site(delay=0.1)  # 48 seconds for the text
    response, first = open_stream(site.port, max_tokens=480)
    changed = site.app.test_client().post(f"/v1/generations/{first['id']}/params", json=body)
    assert changed.status_code == 400
    assert changed.json is not None
    assert changed.json["error"]["param"] == param
    response.close()
