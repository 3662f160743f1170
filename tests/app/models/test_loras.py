"""LoRA adapters are found, checked against the model, and chosen by requests."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.models.hub_errors import NotOnHub
from app.models.loras import CONFIG, WEIGHTS, compatible_loras, find_loras
from gpu import ModelError
from tests.app.conftest import StartSite
from tests.app.fake_options import ENDLESS
from tests.app.models.fake_hub import FakeHub, Repo
from tests.app.ws.test_interventions import updated
from tests.gpu.lora import random_loras
from tests.gpu.lora.random_loras import LLAMA

TONE = {"loras": [{"name": "tone", "strength": 1.0}]}
BLEND = {"loras": [{"name": "tone", "strength": 0.25}, {"name": "brief", "strength": -1.0}]}

# ---- where they come from --------------------------------------------------------------------


def test_an_adapter_folder_is_used_in_place(tmp_path: Path) -> None:
    assert find_loras((f"tone={tmp_path}", f"b.2={tmp_path}")) == {
        "tone": tmp_path, "b.2": tmp_path,
    }  # fmt: skip
    assert find_loras(()) == {}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (("tone",), "must be NAME=FOLDER or NAME=OWNER/ADAPTER on the hub, but got 'tone'"),
        (("=somewhere",), "must be NAME=FOLDER"),
        (("tone=",), "must be NAME=FOLDER"),
        (("tone=not/here/at/all",), "there is no folder 'not/here/at/all'"),
        (("tone=.", "tone=.."), "--lora gives two adapters the name 'tone'"),
    ],
)
def test_a_name_without_an_adapter_is_refused(wanted: tuple[str, ...], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        find_loras(wanted)


def files(**changes: bytes | None) -> dict[str, bytes]:
    folder = random_loras.folder(LLAMA, "all")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {name: data for name, data in (found | changes).items() if data is not None}


def test_an_adapter_of_the_hub_is_fetched_once_and_nothing_else_of_it(hub: FakeHub) -> None:
    hub.repos["some/tone"] = Repo(files(**{"training_args.bin": b"pickle"}))
    folder = find_loras(("tone=some/tone",))["tone"]
    assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}
    assert (folder / WEIGHTS).read_bytes() == files()[WEIGHTS]
    assert compatible_loras(random_loras.base(LLAMA), {"tone": folder}) == {"tone": folder}
    assert find_loras(("tone=some/tone",))["tone"] == folder
    assert len(hub.fetched(WEIGHTS)) == 1


def test_an_adapter_of_the_hub_is_never_a_pickle(hub: FakeHub) -> None:
    hub.repos["some/tone"] = Repo(files(**{WEIGHTS: None, "adapter_model.bin": b"pickle"}))
    with pytest.raises(NotOnHub, match=r"has no adapter_model.safetensors; pickles can run code"):
        find_loras(("tone=some/tone",))
    assert hub.fetched("adapter_model.bin") == []


def test_a_repository_that_is_no_adapter(hub: FakeHub) -> None:
    with pytest.raises(NotOnHub, match=r"has no adapter_config.json; check that it is an adapter"):
        find_loras(("tone=some/tale",))


def test_a_damaged_adapter_leaves_the_model_and_the_others_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = random_loras.folder(LLAMA, "all")
    broken = Path(shutil.copytree(good, tmp_path / "broken"))
    (broken / WEIGHTS).write_bytes((good / WEIGHTS).read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        found = compatible_loras(random_loras.base(LLAMA), {"a": broken, "b": good})
    assert found == {"b": good}
    assert "LoRA adapter 'a': " in caplog.text
    assert "the model is served without this adapter" in caplog.text


# ---- over the socket -------------------------------------------------------------------------


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_the_page_is_told_of_adapters_and_of_every_change(
    start_site: StartSite, process: bool
) -> None:
    page = start_site(process=process, context=ENDLESS, loras=("tone", "brief")).page()
    told = page.messages[0]["model"]["loras"]
    assert told[0] == {"name": "tone", "rank": 8, "parameters": 40960, "modules": 32}
    assert [lora["name"] for lora in told] == ["tone", "brief"]
    params = {"max_tokens": ENDLESS}
    page.send_message("generate", id="a", ids=[5, 6, 7], params=params, reach=TONE)
    page.until("token")
    for reach in (BLEND, {}):
        page.send_message("update", id="a", reach=reach)
        page.until("updated", id="a")
    page.send_message("stop", id="a")
    page.until("done", id="a")
    assert [event.get("reach") for event in updated(page, "a")] == [BLEND, {}]


@pytest.mark.parametrize(
    ("reach", "words"),
    [
        ({"loras": [{"name": "other", "strength": 1}]}, "no adapter 'other'; loaded: tone"),
        ({"loras": [{"name": "tone", "strength": 9}]}, "strength must be a number from -8 to 8"),
        ({"loras": [{"name": "tone"}]}, "missing required field `strength`"),
    ],
)
def test_an_impossible_adapter_setting_is_refused(
    start_site: StartSite, reach: Any, words: str
) -> None:
    page = start_site(loras=("tone",)).page()
    page.send_message("generate", id="a", ids=[5], reach=reach)
    assert words in page.until("error", id="a")["message"]


# ---- /v1 -------------------------------------------------------------------------------------


def test_adapters_are_models_beside_the_base(start_site: StartSite) -> None:
    client = start_site(loras=("tone", "brief")).app.test_client()
    listed = client.get("/v1/models").json
    assert listed is not None
    assert [(m["id"], m.get("parent")) for m in listed["data"]] == [
        ("fake-story", None), ("tone", "fake-story"), ("brief", "fake-story"),
    ]  # fmt: skip

    def text(**fields: Any) -> tuple[str, str]:
        asked = {"prompt": "Once", "temperature": 0, "max_tokens": 8, **fields}
        answer = client.post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json is not None
        return answer.json["model"], answer.json["choices"][0]["text"]

    base, tone = text(), text(model="tone")
    assert (base[0], tone[0]) == ("fake-story", "tone")
    assert tone[1] != base[1]
    assert text(loras={"tone": 1.0})[1] == tone[1]
    assert text(model="fake-story", loras={"tone": 1.0})[1] == tone[1]
    assert text(loras={}) == base
    assert text(loras={"tone": 0.5, "brief": 1.0})[1] not in (base[1], tone[1])


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "other"}, 404, "with the adapters tone, not 'other'"),
        ({"model": "tone", "loras": {"tone": 0.5}}, 400, "model already names an adapter"),
        ({"loras": {"other": 0.5}}, 400, "there is no adapter 'other'; loaded: tone"),
        ({"loras": {"tone": "much"}}, 400, "got `str`"),
    ],
)
def test_adapters_that_are_not_there_are_refused(
    start_site: StartSite, fields: dict[str, Any], status: int, words: str
) -> None:
    client = start_site(loras=("tone",)).app.test_client()
    answer = client.post("/v1/chat/completions", json={
        "messages": [{"role": "user", "content": "Hello"}], **fields,
    })  # fmt: skip
    assert answer.status_code == status
    assert words in answer.text
