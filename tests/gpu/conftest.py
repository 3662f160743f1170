"""Fixtures: the device, opened once per run, and trained models. A missing device is a failure: a
suite that checks the GPU's numbers must not pass without one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gpu.checkpoint import uploader
from gpu.checkpoint.packing import pack
from gpu.text.tokenizer import Tokenizer
from gpu.tracing.tracer import LIMITS
from gpu.webgpu.compiler import Compiler
from gpu.webgpu.device import Device
from gpu.webgpu.kernels import Kernels
from tests.golden import Trained, trained_models
from tests.gpu import other_devices
from tests.gpu.inexact import WAYS
from tests.gpu.ops.rig import Rig
from tests.gpu.text import made_tokenizers
from tests.gpu.text.tokenizer_families import FAMILIES
from tests.quick_cases import mark_other_cases_slow

MAX_PIPELINES = 600
"""A software driver takes 3.5 MB for each; all that a run of the tests compiles would be 5 GB."""


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    """The best adapter, opened as users get it: trusted shaders and raw replay, unless
    TOKENGLASS_CHECKED is set. It compiles each pipeline once, whichever test asks for it: half of
    the work of a test with a small model is compiling."""
    device = Device.open(more_limits=LIMITS if Rig.races else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compiler, "_compile", compiles_once(device))
        yield device


def compiles_once(device: Device) -> Callable[..., Any]:
    """Return what stands in for `Compiler._compile`: it keeps the pipelines of `device` that were
    used last."""
    compile, pipelines, lock = Compiler._compile, dict[tuple[Any, ...], Any](), threading.Lock()

    def compile_once(
        self: Compiler, name: str, source: str, constants: Mapping[str, float], layout: Any
    ) -> Any:
        if self._device.wgpu is not device.wgpu:
            return compile(self, name, source, constants, layout)
        key = (self._device.checked, source, *sorted(constants.items()))
        with lock:
            pipeline = pipelines.pop(key, None)
        if pipeline is None:
            pipeline = compile(self, name, source, constants, layout)
        with lock:
            pipelines[key] = pipeline
            if len(pipelines) > MAX_PIPELINES:
                del pipelines[next(iter(pipelines))]
        return pipeline

    return compile_once


@pytest.fixture(scope="session")
def checked_device() -> Device:
    """A device that checks every call and every load."""
    return Device.open(checked=True)


@pytest.fixture(scope="session")
def kernels(device: Device) -> Kernels:
    return Kernels(device)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `make test` run each value of each parameter, not every combination."""
    mark_other_cases_slow(items)


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "run every op again with the lanes of its workgroups in other orders"
    parser.addoption("--lane-orders", action="store_true", help=help)
    help = "trace the memory accesses of every op, and fail where lanes race"
    parser.addoption("--races", action="store_true", help=help)
    help = "let the device pose as one of another kind"
    parser.addoption("--pose", choices=other_devices.KINDS, help=help)
    help = "let kernels compute as badly as WGSL allows"
    parser.addoption("--inexact", choices=WAYS, help=help)
    help = "what memory holds where nothing was written"
    parser.addoption("--leftovers", choices=other_devices.LEFTOVERS, help=help)


def pytest_configure(config: pytest.Config) -> None:
    Rig.lane_orders = bool(config.getoption("lane_orders", default=False))
    Rig.races = bool(config.getoption("races", default=False))
    patch = pytest.MonkeyPatch()  # for the whole run
    if kind := config.getoption("pose", default=None):
        other_devices.pose(patch, kind)
    if way := config.getoption("inexact", default=None):
        other_devices.make_inexact(patch, way)
    if name := config.getoption("leftovers", default=None):
        Rig.leftover = other_devices.LEFTOVERS[name]
        other_devices.leave(patch, Rig.leftover)


@pytest.fixture(scope="session")
def rig(device: Device, kernels: Kernels) -> Rig:
    return Rig(device, kernels)


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(model, id=model.name, marks=[pytest.mark.slow] if i else [])
        for i, model in enumerate(trained_models())
    ],
)
def trained(request: pytest.FixtureRequest) -> Trained:
    """A trained model with its golden texts: the bundled one and, for slow tests, stories260k if it
    is available."""
    model: Trained = request.param
    return model


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the chunks that the host quantises while weights are loaded."""
    names: list[str] = []

    def noted(dtype: str, rows: Any, name: str, out: Any) -> Any:
        names.append(name)
        return pack(dtype, rows, name, out)

    monkeypatch.setattr(uploader, "pack", noted)
    return names


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Tokenizer:
    """One tokenizer of each family."""
    make, config = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return Tokenizer.load(made_tokenizers.save(folder, make(), config))
