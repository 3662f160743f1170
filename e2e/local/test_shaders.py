"""The shaders compile in a browser too: Tint is a second opinion on WGSL, stricter than naga.

Every source that plans of unlike models ask for is compiled by Chromium's WebGPU, on a device with
no more than the limits that every device has, but for the workgroup memory of the largest tiles,
and made a pipeline with the constants that switch most of it on. (naga compiles every set
of constants whenever a plan is recorded.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from gpu.webgpu.device_policy import FEW_ROWS_BYTES
from gpu.webgpu.kernel_source import workgroup_memory
from gpu.webgpu.kernels import Kernel, compose, shader_names
from tests.gpu.models import variants
from tests.gpu.models.variants import n_switched_on
from tests.gpu.ops.rig import without_int64

NEEDS = re.compile(r"^// needs: (\w+)$", re.MULTILINE)
TILE = re.compile(r"^// (?:A tile of|One split of) .*$", re.MULTILINE)
"""First line of the ways of matmul and attention to load."""
WORKGROUP_BYTES = 16 << 10
"""Workgroup memory of every WebGPU device."""
SITE = "http://127.0.0.1:1/"
"""WebGPU wants a page of a secure origin; nobody listens there, the browser is given a page."""

OPEN_DEVICE = """async (maxComputeWorkgroupStorageSize) => {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return null;
  const requiredFeatures = ["subgroups"].filter((name) => adapter.features.has(name));
  const requiredLimits = { maxComputeWorkgroupStorageSize };
  window.device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  return adapter.info.vendor;
}"""

COMPILE = """async (variants) => {
  const compile = async ({ code, constants }) => {
    const module = device.createShaderModule({ code });
    const { messages } = await module.getCompilationInfo();
    const found = messages.map((m) => `${m.type} in line ${m.lineNum}: ${m.message}`);
    if (found.length) return found;
    const compute = { module, entryPoint: "main", constants };
    try {
      await device.createComputePipelineAsync({ layout: "auto", compute });
    } catch (error) {
      return [String(error)];
    }
    return [];
  };
  return Promise.all(variants.map(compile));
}"""


@pytest.fixture(scope="module")
def page(
    launch_browser: Callable[..., Browser], browser_type_launch_args: dict[str, Any]
) -> Iterator[Page]:
    """A page with an open WebGPU device in `window.device`."""
    args = [*browser_type_launch_args["args"], "--enable-unsafe-webgpu"]
    browser = launch_browser(args=args)
    page = browser.new_page()
    page.route(SITE, _answer)
    page.goto(SITE)
    vendor = page.evaluate(OPEN_DEVICE, FEW_ROWS_BYTES)
    assert vendor is not None, "this browser has no WebGPU adapter; Debian's chromium has one"
    yield page
    browser.close()


def _answer(route: Route) -> None:
    route.fulfill(body="<!doctype html><title>shaders</title>", content_type="text/html")


def compile_all(page: Page, kernels: list[tuple[str, str, dict[str, float]]]) -> list[list[str]]:
    """Compile each (name, source, constants) in the browser and return its messages."""
    found: list[list[str]] = page.evaluate(
        COMPILE,
        [{"code": enabled(code), "constants": constants} for _, code, constants in kernels],
    )
    return found


def enabled(code: str) -> str:
    """Browsers want what naga refuses: a line for each feature that a shader needs."""
    return "".join(f"enable {name};\n" for name in sorted(set(NEEDS.findall(code)))) + code


def as_numbers(kernel: Kernel) -> dict[str, float]:
    return {name: float(value) for name, value in kernel.constants.items()}


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    return kernels_of({"software": True}, {"software": False})


def kernels_of(*kinds: dict[str, bool]) -> list[Kernel]:
    """Return a kernel for each source of these kinds of device, the one with most of its constants
    switched on. Numbers of 64 bits are naga's own: those of a device without. Only the browser
    compiles them: naga and the driver have done that in other tests, and would take six times as
    long as all the rest."""
    device = without_int64(Device.open())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiler, "begin", lambda *_: Future[Any]())
        recorded = [kernel for kind in kinds for kernel in variants.recorded(device, **kind)]
    return variants.one_a_source(recorded)


@pytest.mark.quick
def test_every_shader_compiles_in_the_browser(page: Page, kernels: list[Kernel]) -> None:
    """Each in the variant with most of it switched on."""
    largest = {k.name: k for k in sorted(kernels, key=lambda k: (n_switched_on(k), len(k.source)))}
    assert set(largest) == set(shader_names())
    expect_nothing_said(page, list(largest.values()))


@pytest.mark.slow
def test_every_variant_compiles_in_the_browser(page: Page, kernels: list[Kernel]) -> None:
    assert len(kernels) > 80
    large = {k.name: workgroup_memory(k) for k in kernels if workgroup_memory(k) > WORKGROUP_BYTES}
    assert set(large) <= {"attention", "matmul", "qkv", "moe_matmul"}
    assert max(large.values()) <= FEW_ROWS_BYTES
    expect_nothing_said(page, kernels)


@pytest.mark.slow
def test_every_unrolled_tile_compiles_in_the_browser(page: Page) -> None:
    """The longest source of each shader with each way to load: the driver takes seconds for one."""
    found = [
        kernel
        for kernel in kernels_of({"software": False, "unrolls": True})
        if "{ const " in kernel.source
    ]
    found.sort(key=lambda kernel: len(kernel.source))
    longest = {(k.name, *TILE.findall(k.source)): k for k in found}
    assert len(longest) >= 8
    expect_nothing_said(page, list(longest.values()))


def expect_nothing_said(page: Page, kernels: list[Kernel]) -> None:
    said = compile_all(page, [(k.name, k.source, as_numbers(k)) for k in kernels])
    wrong = [
        f"{kernel.name}.wgsl with {dict(kernel.constants)}: {line}"
        for kernel, lines in zip(kernels, said, strict=True)
        for line in lines
    ]
    assert not wrong, "\n".join(wrong[:20])


def test_the_browser_notices_what_naga_lets_pass(page: Page, allowed_console: list[str]) -> None:
    """A barrier behind a branch that may differ between lanes, and constants left unset."""
    allowed_console += ["must only be called from uniform control flow", "Missing overridable"]
    sizes = ("HEAD_VEC4S", "GROUP", "HEADS", "ROWS", "QUAD_SIZE")
    prelude = {f"const {name}": "4u" for name in (*sizes, "LANES", "VALUE_GROUPS", "SPLIT_ROWS")}
    source = compose("attention", prelude, {"kv": "kv_f32", "quad": "quad_load"})
    barrier = "workgroupBarrier();"
    assert barrier in source
    uneven = source.replace(barrier, f"if (lane > 3u) {{ {barrier} }}")
    said = compile_all(page, [("uneven", uneven, {}), ("unset", source, {"SPLIT": 32})])
    assert "uniform control flow" in said[0][0]
    assert said[1]
