"""`/api/retrieval` indexes documents and finds the chunks nearest to a question."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from flask.testing import FlaskClient

from app.config import Settings
from app.prompt.encoder_texts import EncoderInputs
from app.retrieval import retriever as retrieval
from app.retrieval.index import CHUNKS
from app.retrieval.retriever import ACTIVE_STATES, MAX_INDEXES, Retriever
from gpu import InvalidRequest, QueueFull
from tests.app.conftest import Site, StartSite
from tests.app.fake_encoder import INFO, TEXTS, ids_of
from tests.app.fake_inspection import fake_encoded
from tests.app.fake_options import FakeOptions, info_of
from tests.app.fake_tokenizer import STORY
from tests.app.page import PATIENCE_S
from tests.app.retrieval.pdf_files import pdf_of

ENGINE = info_of(FakeOptions(embedding=INFO))
SMALL = {"size": 8, "overlap": 2}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TOKENGLASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "retrieval"


@pytest.fixture
def site(start_site: StartSite, cache: Path) -> Site:
    return start_site(embedding=INFO, encoder_texts=TEXTS)


@pytest.fixture
def http(site: Site) -> FlaskClient:
    return site.app.test_client()


def body_of(name: str, data: bytes | str, **settings: int) -> dict[str, Any]:
    given = data.encode() if isinstance(data, str) else data
    return {
        "name": name,
        "data": base64.b64encode(given).decode(),
        "settings": {**SMALL, **settings},
    }


def offer_of(http: FlaskClient) -> dict[str, Any]:
    return dict(http.get("/api/retrieval").json or {})


def until_ended(http: FlaskClient) -> dict[str, Any]:
    end = time.monotonic() + 30
    while (offer := offer_of(http))["run"]["state"] in ACTIVE_STATES:
        assert time.monotonic() < end
        time.sleep(0.01)
    return offer


def add(http: FlaskClient, name: str, data: bytes | str, **settings: int) -> dict[str, Any]:
    response = http.post("/api/retrieval/documents", json=body_of(name, data, **settings))
    assert response.status_code == 202, response.json
    offer = until_ended(http)
    assert offer["run"]["state"] == "done", offer["run"]
    return offer


def refusal(response: Any, status: int = 400) -> str:
    assert response.status_code == status, response.json
    return str(response.json["error"]["message"])


def search(http: FlaskClient, question: str, top: int = 3) -> Any:
    return http.post("/api/retrieval/search", json={"question": question, "top": top})


def test_the_nearest_chunks_are_those_of_brute_force(http: FlaskClient, cache: Path) -> None:
    offer = add(http, "story.md", STORY)
    [document] = offer["documents"]
    assert document["name"] == "story.md"
    assert (document["chars"], document["chunks"]) == (len(STORY), offer["chunks"])
    assert offer["n_bytes"] == sum(file.stat().st_size for file in (cache / "local").iterdir())
    add(http, "two.pdf", pdf_of(["The owl was happy.", "The badger was not."]))
    chunks = json.loads((cache / "local" / CHUNKS).read_bytes())["chunks"]
    vectors = np.array([fake_encoded(ids_of(chunk["text"]), ENGINE) for chunk in chunks])
    question = "find a little fox"  # the prompt of a question is put in front
    scores = vectors @ fake_encoded(ids_of(question), ENGINE)
    wanted = np.argsort(-scores)[:5]
    answer = search(http, "a little fox", 5).json
    found = answer["found"]
    assert [one["id"] for one in found] == wanted.tolist()
    np.testing.assert_allclose([one["score"] for one in found], scores[wanted], rtol=1e-4)
    for one in found:
        chunk = chunks[one["id"]]
        assert (one["text"], one["page"]) == (chunk["text"], chunk["page"])
        assert one["document"] == ("story.md", "two.pdf")[chunk["document"]]
        own = [other for other in chunks if other["document"] == chunk["document"]]
        assert one["number"] == own.index(chunk) + 1
    assert answer["compared"] == len(chunks)
    np.testing.assert_allclose(answer["vector"], fake_encoded(ids_of(question), ENGINE), rtol=1e-5)
    assert "".join(answer["pieces"][1:-1]) == question[: len("".join(answer["pieces"][1:-1]))]
    assert {chunk["page"] for chunk in chunks if chunk["document"] == 1} == {1, 2}


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_chunks_are_compared_as_the_embedding_model_asks(
    start_site: StartSite, cache: Path, similarity: str
) -> None:
    encoder = msgspec.structs.replace(INFO, normalize=False, similarity=similarity)
    http = start_site(embedding=encoder, encoder_texts=TEXTS).app.test_client()
    add(http, "story.md", STORY)
    chunks = json.loads((cache / "local" / CHUNKS).read_bytes())["chunks"]
    engine = info_of(FakeOptions(embedding=encoder))
    vectors = np.array([fake_encoded(ids_of(chunk["text"]), engine) for chunk in chunks])
    question = fake_encoded(ids_of("find a little fox"), engine)
    scores = vectors @ question
    if similarity == "cosine":
        scores /= np.linalg.norm(vectors, axis=1) * np.linalg.norm(question)
    answer = search(http, "a little fox").json
    assert answer["similarity"] == similarity
    assert [one["id"] for one in answer["found"]] == np.argsort(-scores)[:3].tolist()
    np.testing.assert_allclose(
        [one["score"] for one in answer["found"]], np.sort(scores)[:-4:-1], rtol=1e-4
    )


def test_an_index_that_another_server_wrote_is_read_again(
    http: FlaskClient, start_site: StartSite, cache: Path
) -> None:
    add(http, "a.txt", "once upon a time")
    other = start_site(embedding=INFO, encoder_texts=TEXTS).app.test_client()
    add(other, "b.txt", "the little fox")
    assert [one["name"] for one in offer_of(http)["documents"]] == ["a.txt", "b.txt"]
    other.delete("/api/retrieval/documents")
    assert offer_of(http)["documents"] == []


def test_what_another_server_wrote_meanwhile_is_kept(
    http: FlaskClient, held: Held, start_site: StartSite
) -> None:
    other = start_site(embedding=INFO, encoder_texts=TEXTS).app.test_client()
    http.post("/api/retrieval/documents", json=body_of("a.md", STORY))
    assert held.begun.wait(20)
    add(other, "b.txt", "the little fox")
    held.may_go.set()
    until_ended(http)
    assert [one["name"] for one in offer_of(http)["documents"]] == ["b.txt", "a.md"]


def test_documents_are_replaced_and_removed(http: FlaskClient, cache: Path) -> None:
    add(http, "a b/ü.txt", "once upon a time")
    add(http, "b.txt", "the little fox")
    offer = add(http, "a b/ü.txt", "a lamp")
    assert [document["name"] for document in offer["documents"]] == ["b.txt", "a b/ü.txt"]
    offer = http.delete("/api/retrieval/documents/a%20b/%C3%BC.txt").json
    assert [document["name"] for document in offer["documents"]] == ["b.txt"]
    response = http.delete("/api/retrieval/documents/c.txt")
    assert "there is no document 'c.txt' in the index" in refusal(response)
    assert http.delete("/api/retrieval/documents").json["documents"] == []
    assert list(cache.iterdir()) == []
    assert "there are no documents yet; add one first" in refusal(search(http, "a"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (body_of("a.txt", "x", size=11), "expected 4 to 10 tokens for a chunk, which is what"),
        (body_of("a.txt", "x", overlap=5), "expected an overlap of 0 to 4 tokens"),
        (body_of("a.txt", " "), "a.txt is empty"),
        (body_of("a.pdf", pdf_of([""])), "a.pdf has no text"),
        (body_of("a.png", b"\0"), "a.png is not a text file"),
        (body_of("", "x"), "expected a name"),
        ({"name": "a.txt"}, "missing required field `data`"),
        ({"name": "a.txt", "data": "?"}, "Invalid base64"),
        ({"name": "a.txt", "data": "", "more": 1}, "unknown field `more`"),
    ],
)
def test_bad_documents_are_refused(
    http: FlaskClient, cache: Path, body: dict[str, Any], says: str
) -> None:
    assert says in refusal(http.post("/api/retrieval/documents", json=body))
    offer = offer_of(http)
    assert (offer["run"], offer["documents"]) == (None, [])
    assert not cache.exists()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"question": ""}, "Expected `str` of length >= 1"),
        ({"question": "  "}, "the question is empty"),
        ({"question": "a" * 2001}, "Expected `str` of length <= 2000"),
        ({"question": "a", "top": 21}, "Expected `int` <= 20"),
        ({"question": "a", "top": 0}, "Expected `int` >= 1"),
        ([], "Expected `object`"),
    ],
)
def test_bad_questions_are_refused(http: FlaskClient, body: Any, says: str) -> None:
    add(http, "a.txt", "once upon a time")
    assert says in refusal(http.post("/api/retrieval/search", json=body))


def test_large_bodies_are_taken_by_one_route_only(http: FlaskClient) -> None:
    large = "once upon a time\n" * 100_000  # more than a request may have elsewhere
    message = refusal(http.post("/api/retrieval/documents", json=body_of("a.txt", large)))
    assert "larger chunks" in message
    assert http.post("/api/retrieval/search", json={"question": large}).status_code == 413


def test_large_bodies_in_chunked_encoding_are_taken_by_one_route_only(
    site: Site, start_site: StartSite
) -> None:
    large = "once upon a time\n" * 100_000
    documents, body = "/api/retrieval/documents", body_of("a.txt", large)
    status, answer = send_chunked(site, documents, body)
    assert status == 400
    assert b"larger chunks" in answer
    assert send_chunked(site, documents, body_of("a.txt", large * 6))[0] == 413
    assert send_chunked(site, "/api/retrieval/search", {"question": large})[0] == 413
    refusing = start_site(embedding=INFO, encoder_texts=TEXTS, settings=strangers())
    assert send_chunked(refusing, documents, body)[0] == 413


def send_chunked(site: Site, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Return status and body of the answer."""
    connection = HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        pieces = iter([json.dumps(body).encode()])  # chunked, as its length is not known
        connection.request("POST", path, pieces, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_too_many_documents_are_refused(http: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MAX_DOCUMENTS", 1)
    add(http, "a.txt", "once")
    response = http.post("/api/retrieval/documents", json=body_of("b.txt", "once"))
    assert "an index holds at most 1 documents; remove one first" in refusal(response)
    add(http, "a.txt", "another")


# ---- progress, cancelling, faults ----------------------------------------------------------------


class Held:
    """Holds the vectors of chunks back until a test lets them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go = threading.Event(), threading.Event()
        self.error: Exception | None = None
        original = Retriever._ask

        def ask(retriever: Retriever, ids: list[list[int]], asker: int = 0) -> Any:
            if asker and retriever._run is not None and retriever._run.done:
                self.begun.set()
                assert self.may_go.wait(20)
                if self.error is not None:
                    raise self.error
            return original(retriever, ids, asker)

        monkeypatch.setattr(Retriever, "_ask", ask)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.may_go.set()


def test_progress_is_shown_and_one_document_is_indexed_at_a_time(
    http: FlaskClient, held: Held
) -> None:
    assert http.post("/api/retrieval/documents", json=body_of("a.md", STORY)).status_code == 202
    assert held.begun.wait(20)
    run = offer_of(http)["run"]
    assert (run["name"], run["state"], run["done"]) == ("a.md", "encoding", retrieval.BATCH)
    assert run["total"] > retrieval.BATCH
    assert run["seconds_left"] == pytest.approx(
        run["seconds"] * (run["total"] - run["done"]) / run["done"]
    )
    second = http.post("/api/retrieval/documents", json=body_of("b.md", "x"))
    assert "another document is being indexed" in refusal(second, 429)
    assert "is being indexed" in refusal(http.delete("/api/retrieval/documents"), 429)
    held.may_go.set()
    assert until_ended(http)["run"]["state"] == "done"


def test_questions_of_an_indexing_are_forgotten_before_the_next_can_begin(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next has questions of its own, which must not be cancelled."""
    states: list[str] = []
    forget = site.engine.cancel_questions

    def forget_and_tell(asker: int) -> None:
        states.append(offer_of(site.app.test_client())["run"]["state"])
        forget(asker)

    monkeypatch.setattr(site.engine, "cancel_questions", forget_and_tell)
    add(site.app.test_client(), "a.txt", "once upon a time")
    assert states == ["encoding"]


def test_nothing_is_kept_of_an_indexing_that_is_cancelled(
    http: FlaskClient, held: Held, cache: Path
) -> None:
    http.post("/api/retrieval/documents", json=body_of("a.md", STORY))
    assert held.begun.wait(20)
    assert http.delete("/api/retrieval").status_code == 202
    held.may_go.set()
    offer = until_ended(http)
    assert (offer["run"]["state"], offer["documents"]) == ("cancelled", [])
    assert not cache.exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (QueueFull("the engine has too much to do"), "the engine has too much to do"),
        (OSError(28, "No space left on device"), "cannot be written: No space left on device"),
        (ValueError("?"), "the server made a mistake; see its log"),
    ],
)
def test_an_indexing_that_fails_says_why(
    http: FlaskClient, held: Held, error: Exception, says: str
) -> None:
    add_first = body_of("a.md", STORY)
    held.error = error
    held.may_go.set()
    http.post("/api/retrieval/documents", json=add_first)
    offer = until_ended(http)
    assert offer["run"]["state"] == "failed"
    assert says in offer["run"]["message"]
    held.error = None
    add(http, "a.md", STORY)


def test_a_damaged_index_is_shown_and_can_be_removed(http: FlaskClient, cache: Path) -> None:
    add(http, "a.txt", "once upon a time")
    (cache / "local" / CHUNKS).write_text("{", "utf-8")
    assert "remove all documents and add them again" in offer_of(http)["problem"]
    assert "cannot be used" in refusal(search(http, "a"))
    again = http.post("/api/retrieval/documents", json=body_of("b.txt", "x"))
    assert "cannot be used" in refusal(again)
    assert http.delete("/api/retrieval/documents").json["problem"] == ""
    add(http, "b.txt", "x")


def test_the_index_of_another_embedding_model_is_refused(http: FlaskClient, cache: Path) -> None:
    add(http, "a.txt", "once upon a time")
    content = json.loads((cache / "local" / CHUNKS).read_bytes())
    content["encoder"]["probe"].reverse()
    content["encoder"]["name"] = "other"
    (cache / "local" / CHUNKS).write_text(json.dumps(content), "utf-8")
    says = "the index was made with the embedding model other, but little-encoder is loaded"
    assert says in refusal(search(http, "a"))
    assert says in refusal(http.post("/api/retrieval/documents", json=body_of("b.txt", "x")))


# ---- who may -------------------------------------------------------------------------------------


def strangers(**settings: Any) -> Settings:
    return Settings(host="127.0.0.1", port=0, allow_host=("box.lan",), **settings)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settings": strangers()}, "this server keeps documents only if its page"),
        ({"settings": Settings(port=0, retrieval="off")}, "this server keeps no documents"),
        ({"embedding": None, "encoder_texts": None}, "there is no embedding model; to load one"),
        ({"settings": Settings(port=0, upstream="http://a.lan")}, "runs on another machine"),
    ],
)
def test_documents_are_refused_where_they_are_not_kept(
    start_site: StartSite, cache: Path, options: dict[str, Any], says: str
) -> None:
    site = start_site(**{"embedding": INFO, "encoder_texts": TEXTS, **options})
    http = site.app.test_client()
    assert says in offer_of(http)["why_not"]
    for response in (
        http.post("/api/retrieval/documents", json=body_of("a.txt", "x")),
        http.delete("/api/retrieval/documents"),
        http.delete("/api/retrieval/documents/a.txt"),
        search(http, "a"),
    ):
        assert says in refusal(response)
    large = http.post("/api/retrieval/documents", json=body_of("a.txt", "x" * 2_000_000))
    assert large.status_code == 413
    assert http.delete("/api/retrieval").status_code == 202
    assert not cache.exists()


def test_without_faiss_it_says_what_to_install(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert offer_of(http)["why_not"] == "retrieval needs FAISS: pip install 'tokenglass[search]'"


def test_each_session_has_its_own_documents(start_site: StartSite, cache: Path) -> None:
    site = start_site(embedding=INFO, encoder_texts=TEXTS, settings=strangers(retrieval="all"))
    first, second = site.app.test_client(), site.app.test_client()
    for http in (first, second):
        http.get("/")  # brings the cookie
    assert add(first, "a.txt", "once upon a time")["folder"] == "", "paths are not told"
    assert (offer_of(second)["documents"], offer_of(second)["run"]) == ([], None)
    assert "there are no documents yet" in refusal(search(second, "a"))
    add(second, "b.txt", "the little fox")
    assert [one["document"] for one in search(first, "a").json["found"]] == ["a.txt"]
    assert len(list(cache.iterdir())) == 2


def test_the_oldest_indexes_give_way(
    start_site: StartSite, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = start_site(embedding=INFO, encoder_texts=TEXTS, settings=strangers(retrieval="all"))
    cache.mkdir(parents=True)
    old = ["local", *(f"old{i}" for i in range(MAX_INDEXES))]
    for i, name in enumerate(old):
        (cache / name).mkdir()
        (cache / name / CHUNKS).write_text("{}")
        os.utime(cache / name, (i, i))
    add(site.app.test_client(), "a.txt", "once upon a time")
    names = {folder.name for folder in cache.iterdir()}
    assert {*old} - names == {"old0"}, "that of this machine stays"
    assert len(names - {"local"}) == MAX_INDEXES


def test_an_index_outlives_the_server(start_site: StartSite, cache: Path) -> None:
    for _ in range(2):
        http = start_site(embedding=INFO, encoder_texts=TEXTS).app.test_client()
        if not offer_of(http)["documents"]:
            add(http, "a.txt", "once upon a time")
    assert search(http, "a").json["found"][0]["document"] == "a.txt"


def test_without_a_folder_nothing_is_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "cache_folder", lambda: None)
    retriever = Retriever(site.engine, EncoderInputs(TEXTS), Settings(port=0))
    with pytest.raises(InvalidRequest, match="TOKENGLASS_CACHE=FOLDER"):
        retriever.offer("somebody")
