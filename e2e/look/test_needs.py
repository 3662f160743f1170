"""What a model would take, on the page: figures of the server, and beside them those of the run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app import tale
from e2e.look.panel import LookPanel
from e2e.look.test_looks import open_page, violations
from e2e.playground import Playground
from e2e.site import Site
from gpu import KNOWN_DEVICES, DeviceSpec, ModelShape, Sizing, Workload, size_model
from tests.app.fake_engine import FakeEngine
from tests.app.fake_options import FakeOptions
from tests.app.fake_plan import fake_plan

LLAMA = "meta-llama/Llama-3.1-70B"
N = 12


def sized(*devices: DeviceSpec, **work: Any) -> Sizing:
    """Return the sizing of the model that the fake engine runs."""
    shape = ModelShape.from_path("fake-story", tale.model_dir())
    return size_model(shape, Workload("f16", "f16", **work), (*KNOWN_DEVICES, *devices))


def figures(look: LookPanel) -> dict[tuple[str, str], float]:
    """Return the instrument's numbers by subject and name."""
    return {
        (row["of"], row["figure"]): float(row["value"]) for row in look.csv() if row["value"] != ""
    }


@pytest.mark.quick
def test_the_figures_are_those_of_the_server(page: Page, site: Callable[..., Site]) -> None:
    look = open_page(page, site()).look.open("needs")
    found, expected = figures(look), sized()
    for part in expected.parts:
        assert found[part.name, "parameters"] == part.parameters
        assert found[part.name, "read for a token"] == part.token_bytes
    assert found["memory", "total"] == expected.need.total
    assert found["wanted", "bandwidth"] == expected.bytes_per_s
    for bounds in expected.devices:
        assert found[bounds.device.name, "users that fit"] == bounds.users
        assert found[bounds.device.name, "time per token"] == bounds.decode.seconds
    expect(look.panel.locator(".nd-head")).to_contain_text("× 20 tokens/s = 138 MB/s")
    expect(look.panel.get_by_text("fits into the device’s cache of 50.0 MB")).to_be_visible()
    look.panel.get_by_role("button", name="RTX 3060").click()
    held = 100 * 3e6 / expected.decode.n_bytes
    words = look.panel.get_by_text("The device’s cache of 3.0 MB")
    expect(words).to_contain_text(f"holds {held:.1f} % of what a step reads")
    assert violations(page) == []


def test_another_model_number_of_users_and_device(
    page: Page, site: Callable[..., Site], allowed_console: list[str]
) -> None:
    allowed_console.append("status of 400")
    look = open_page(page, site()).look.open("needs")
    form = look.panel.get_by_role("form", name="Model, work and device")
    expect(form.get_by_label("Tokens each")).to_have_value("1024")
    form.get_by_label("Users").fill("4")
    form.get_by_label("Model").select_option(LLAMA)
    expect(form.get_by_label("Tokens each")).to_have_value("4096")
    form.get_by_label("Tokens each").fill("256")
    expect(look.panel.locator(".nd-head")).to_contain_text("70.6 billion parameters × 1.97 bytes")
    look.panel.get_by_role("button", name="A100").click()
    expect(look.panel.get_by_text("A100: NVIDIA A100 data sheet")).to_contain_text("does not fit")
    expect(form.get_by_label("Device", exact=True)).to_have_value("A100")
    form.get_by_label("Weights as").select_option("q4")
    expect(look.panel.get_by_text("for 4 users with 256 tokens each")).to_be_visible()
    expect(look.panel.get_by_text("A100 has 80.0 GB.")).to_be_visible()
    form.get_by_label("Device", exact=True).select_option("Another device")
    form.get_by_label("Bandwidth, GB/s").fill("500")
    form.get_by_label("Users").fill("0")
    form.get_by_label("Users").press("Enter")
    expect(look.panel.get_by_role("status").last).to_contain_text("Users is 0, expected 1 to")
    form.get_by_label("Users").fill("1")
    form.get_by_label("Users").press("Enter")
    expect(look.panel.get_by_text("The size of the device’s cache is not known.")).to_be_visible()
    row = look.panel.get_by_role("row", name=re.compile("^Another device"))
    expect(row).to_contain_text("bandwidth")


def test_this_machine_is_measured_and_its_run_is_beside_the_bound(
    page: Page, site: Callable[..., Site]
) -> None:
    play = open_page(page, site(delay=0.002))
    play.set(max_tokens=N, seed=3)
    play.ask()
    play.wait_tokens(N)
    play.wait_done()
    look = play.look.open("needs")
    look.panel.get_by_label("Device", exact=True).select_option("This machine")
    look.panel.get_by_role("button", name="Measure peak rates").click()
    words = look.panel.get_by_text("The step of token 12")
    expect(words).to_contain_text(re.compile(r"The run writes [\d.,]+ tokens/s; the bound is"))
    (event,) = play.messages.events("token")[-1:]
    moved = fake_cost(play)
    bound = 1000 * max(moved[0] / 2e10, moved[1] / 3e11)
    share = 100 * bound / (event["times"]["gpu"] or event["times"]["interval"])
    shown = re.search(r": ([\d.<]+) % of the bound", words.inner_text())
    assert shown is not None
    assert shown[1] == ("<0.1" if share < 0.05 else f"{share:.1f}")
    cache = look.panel.get_by_role("row", name=re.compile("^cache of 40.0 KB, if it held all"))
    expect(cache).to_contain_text("50.0 GB/s")
    took = re.search(r"([\d.]+) µs", cache.inner_text())
    assert took is not None
    assert float(took[1]) == pytest.approx(1e6 * moved[0] / 5e10, rel=0.01)
    look.panel.get_by_label("Model", exact=True).select_option(LLAMA)
    expect(look.panel.locator(".nd-head")).to_contain_text("70.6 billion parameters")
    expect(look.panel.get_by_text("The step that writes a token after")).to_be_visible()
    expect(look.panel.get_by_role("row", name=re.compile("^measured"))).to_have_count(0)


def fake_cost(play: Playground) -> tuple[int, int]:
    """Return bytes and operations of the last step, of the fake engine's plan."""
    prompt = play.messages.events("accepted")[0]["prompt"]
    plan = fake_plan(FakeEngine(FakeOptions()).info, 1, len(prompt) + N - 2)
    return plan["n_bytes"], plan["flops"]


def test_a_closed_instrument_asks_nothing(page: Page, site: Callable[..., Site]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    play = open_page(page, site())
    play.set(max_tokens=3)
    play.ask()
    play.wait_done()
    assert not [url for url in asked if "sizing" in url or "needs" in url]
