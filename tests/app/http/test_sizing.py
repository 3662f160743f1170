"""`/api/sizing`: what a model would take, asked by the page."""

from __future__ import annotations

import msgspec
import pytest
from flask.testing import FlaskClient

from app import tale
from app.http.sizing import SizingAnswer
from app.models.known_configs import CONFIGS
from gpu import KNOWN_DEVICES, ModelShape, Workload, size_model
from tests.app.conftest import StartSite


def ask(http: FlaskClient, **query: object) -> SizingAnswer:
    found = http.get("/api/sizing", query_string=query)
    assert found.status_code == 200, found.text
    return msgspec.json.decode(found.data, type=SizingAnswer)


def test_the_running_model_is_sized_as_it_is_stored(http: FlaskClient) -> None:
    found = ask(http, context=256)
    assert found.models == ("fake-story", *tale.GOOD_FOR, *CONFIGS)
    shape = ModelShape.from_path("fake-story", tale.model_dir())
    assert found.sizing == size_model(shape, Workload("f16", "f16", context=256), KNOWN_DEVICES)


def test_another_model_and_workload_can_be_named(http: FlaskClient) -> None:
    name = "meta-llama/Llama-3.1-70B"
    found = ask(http, model=name, dtype="q4", kv_dtype="q8", users=3, context=8192, rate=7).sizing
    assert (found.model, found.dtype, found.kv.dtype) == (name, "q4", "q8")
    assert (found.users, found.context, found.rate) == (3, 8192, 7)


def test_another_model_is_sized_in_f16(http: FlaskClient) -> None:
    found = ask(http, model="Qwen/Qwen3-0.6B").sizing
    assert (found.dtype, found.kv.dtype, found.users, found.context) == ("f16", "f16", 1, 4096)


def test_a_device_of_the_page_comes_last(http: FlaskClient) -> None:
    found = ask(http, device="this machine", bytes_per_s=2e10, flops_per_s=3e11).sizing.devices[-1]
    assert found.device.name == "this machine"
    assert found.users is None
    assert found.decode.seconds == pytest.approx(1 / found.tokens_per_s)


@pytest.mark.parametrize("name", ["/etc/passwd", "someone/else", "."])
def test_no_path_and_no_other_model_of_the_hub_is_read(http: FlaskClient, name: str) -> None:
    found = http.get("/api/sizing", query_string={"model": name})
    assert found.status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        {"users": "many"},
        {"users": "0"},
        {"bytes_per_s": "-1"},
        {"bytes_per_s": "1", "memory_bytes": "-1"},
        {"bytes_per_s": "1", "memory_bytes": "0"},
        {"dtype": "q5"},
        {"context": "100000000"},
        {"else": "1"},
    ],
)
def test_what_makes_no_sense_is_refused(http: FlaskClient, query: dict[str, str]) -> None:
    found = http.get("/api/sizing", query_string=query)
    assert found.status_code == 400
    assert found.json is not None
    assert found.json["error"]["message"]


def test_well_known_models_are_sized_before_one_is_loaded(start_site: StartSite) -> None:
    site = start_site(fail="no GPU", wait=False)
    found = ask(site.app.test_client())
    assert found.models[0] == tale.NAME == found.sizing.model
