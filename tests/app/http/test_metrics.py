"""/metrics: what runs did, as Prometheus reads it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families

from app.config import Settings
from app.ws.sessions import Retention
from gpu import EngineStats
from gpu.pace import LEAST_PACE
from tests.app.conftest import StartSite
from tests.app.fake_engine import FakeEngine
from tests.app.page import wait_until

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"


def scrape(client: FlaskClient) -> dict[str, float]:
    """Return the samples by name; those with labels by name{value}."""
    response = client.get("/metrics")
    assert response.status_code == 200
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = ",".join(value for name, value in sample.labels.items() if name != "le")
            edge = sample.labels.get("le", "")
            key = sample.name.removeprefix("tokenglass:") + (f"{{{labels}}}" if labels else "")
            found[key + (f"<={edge}" if edge else "")] = sample.value
    return found


def write(client: FlaskClient, n: int, **fields: object) -> None:
    body = {"prompt": "Once upon", "max_tokens": n, "temperature": 0, **fields}
    assert client.post("/v1/completions", json=body).status_code == 200


def test_runs_and_tokens_are_counted(http: FlaskClient) -> None:
    before = scrape(http)
    write(http, 7)
    write(http, 5, stop=" there")
    after = scrape(http)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("generation_tokens_total") == grown("inter_token_latency_seconds_count") + 2
    assert grown("time_to_first_token_seconds_count") == 2
    assert grown("prompt_tokens_total") == 6
    assert grown("e2e_request_latency_seconds_count") == 2
    assert grown("request_success_total{length}") >= 1
    assert grown("time_to_first_token_seconds_sum") > 0


def test_the_engine_tells_what_runs_and_waits(start_site: StartSite) -> None:
    """In a process of its own it tells once a second."""
    site = start_site(n_slots=1, delay=0.02, process=True)
    client = site.app.test_client()
    page = site.page()
    for id, pace in (("one", LEAST_PACE), ("two", LEAST_PACE), ("three", 0)):
        page.send_message("generate", id=id, prompt="Once", params={"max_tokens": 400}, pace=pace)
    deadline = time.monotonic() + 20
    found: dict[str, float] = {}
    while time.monotonic() < deadline and found.get("num_requests_paused") != 1:
        time.sleep(0.1)
        found = scrape(client)
    assert found["num_requests_running"] == 1
    assert found["num_requests_waiting"] == 1
    assert 0 < found["kv_cache_usage_perc"] < 1
    assert found["engine_up"] == 1


def test_texts_that_are_kept_for_pages_have_a_size(start_site: StartSite) -> None:
    site = start_site(retention=Retention(n_finished=1))
    client, page = site.app.test_client(), site.page()
    sizes = []
    for id, n in (("one", 3), ("two", 30), ("three", 30)):
        page.send_message("generate", id=id, prompt="Once", params={"max_tokens": n})
        page.until("done", id=id)
        wait_until(lambda: scrape(client)["kept_generations"] == 1)
        sizes.append(scrape(client)["kept_generations_bytes"])
    assert 0 < 3 * sizes[0] < sizes[1]
    assert sizes[2] < 1.5 * sizes[1], "an older one is dropped"


def test_copies_to_host_memory_and_back_are_counted(
    http: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = EngineStats(
        prompt_tokens=100,
        reused_tokens=60,
        loaded_tokens=48,
        used_host_blocks=5,
        n_host_blocks=20,
        stored_bytes=700,
        loaded_bytes=300,
    )
    monkeypatch.setattr(FakeEngine, "stats", stats)
    found = scrape(http)
    assert found["prefix_cache_queries_total"] == 100
    assert found["prefix_cache_hits_total"] == 12, "on the device"
    assert found["external_prefix_cache_queries_total"] == 88
    assert found["external_prefix_cache_hits_total"] == 48
    assert found["kv_offload_cpu_cache_usage_perc"] == 0.25
    assert found["kv_offload_total_bytes_total{GPU_to_CPU}"] == 700
    assert found["kv_offload_total_bytes_total{CPU_to_GPU}"] == 300


def test_without_offloading_its_metrics_are_left_out(http: FlaskClient) -> None:
    assert not [name for name in scrape(http) if "offload" in name or "external" in name]


def test_without_an_engine_it_says_so(start_site: StartSite) -> None:
    site = start_site(fail="no such adapter", wait=False)
    client = site.app.test_client()
    deadline = time.monotonic() + 10
    while site.engine.status.state != "failed" and time.monotonic() < deadline:
        time.sleep(0.02)
    found = scrape(client)
    assert found["engine_up"] == 0
    assert "num_requests_running" not in found


def test_the_token_guards_it(start_site: StartSite) -> None:
    client = start_site(settings=Settings(port=0, token="secret")).app.test_client()
    assert client.get("/metrics").status_code == 401
    allowed = client.get("/metrics", headers={"Authorization": "Bearer secret"})
    assert allowed.status_code == 200


def test_every_metric_of_the_dashboard_exists(http: FlaskClient) -> None:
    write(http, 3)
    names = {
        sample.name
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
    }
    text = json.dumps(json.loads(DASHBOARD.read_text()))
    wanted = set(re.findall(r"tokenglass:\w+", text))
    assert len(wanted) >= 10
    assert wanted <= names


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_it_is_read_only(http: FlaskClient, method: str) -> None:
    assert getattr(http, method)("/metrics").status_code == 405
