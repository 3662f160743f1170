"""Choice and description of adapters, and the error when there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpu.errors import DeviceError
from gpu.webgpu import device as devices
from gpu.webgpu.device import (
    WANTED_LIMITS,
    Device,
    choose_adapter,
    describe,
    list_adapters,
    list_devices,
)


def adapter(name: str, kind: str, driver: str = "a driver", **more: Any) -> Any:
    """An adapter as wgpu-py describes it."""
    info = {
        "device": name, "vendor": "a vendor", "description": driver, "adapter_type": kind,
        "backend_type": "Vulkan", **more,
    }  # fmt: skip
    limits = dict.fromkeys(WANTED_LIMITS, 64)
    return SimpleNamespace(info=info, features={"timestamp-query"}, limits=limits)


LAPTOP = [
    adapter("llvmpipe", "CPU", "Mesa 25"),
    adapter("Iris Xe", "IntegratedGPU", "Mesa 25"),
    adapter("GeForce RTX 4070", "DiscreteGPU", "NVIDIA 570"),
    adapter("Radeon", "Other"),
]


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, LAPTOP)


def give(monkeypatch: pytest.MonkeyPatch, adapters: list[Any]) -> None:
    gpu = SimpleNamespace(enumerate_adapters_sync=lambda: adapters)
    monkeypatch.setattr(devices.wgpu, "gpu", gpu)


@pytest.mark.usefixtures("laptop")
class TestALaptop:
    """Four adapters, in no order."""

    def test_real_gpus_come_before_software(self) -> None:
        names = [device.name for device in list_devices()]
        assert names == ["GeForce RTX 4070", "Iris Xe", "Radeon", "llvmpipe"]

    @pytest.mark.parametrize("wanted", [None, "", "0", "geforce", "NVIDIA"])
    def test_the_best_is_chosen_or_named(self, wanted: str | None) -> None:
        assert choose_adapter(wanted).info["device"] == "GeForce RTX 4070"

    @pytest.mark.parametrize(
        ("wanted", "name"),
        [("1", "Iris Xe"), ("3", "llvmpipe"), ("IRIS", "Iris Xe"), ("mesa", "Iris Xe")],
    )
    def test_another_is_chosen_by_index_or_by_a_part_of_its_name(
        self, wanted: str, name: str
    ) -> None:
        assert choose_adapter(wanted).info["device"] == name

    def test_a_number_that_is_no_index_may_be_part_of_a_name(self) -> None:
        assert choose_adapter("4070").info["device"] == "GeForce RTX 4070"

    @pytest.mark.parametrize("wanted", ["9", "40", "70", "407", "Voodoo", "-1"])
    def test_an_unknown_adapter_is_refused_with_those_available(self, wanted: str) -> None:
        with pytest.raises(DeviceError) as caught:
            choose_adapter(wanted)
        assert str(caught.value) == (
            f"no adapter matches {wanted!r}; there are: 0: GeForce RTX 4070; 1: Iris Xe; "
            "2: Radeon; 3: llvmpipe"
        )


def test_opengl_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, [adapter("llvmpipe", "CPU", backend_type="OpenGL"), LAPTOP[0]])
    assert [a.info["backend_type"] for a in list_adapters()] == ["Vulkan"]


def test_without_an_adapter_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(monkeypatch, [])
    assert list_devices() == []
    with pytest.raises(DeviceError) as caught:
        Device.open()
    assert "mesa-vulkan-drivers" in str(caught.value)
    assert "--backend torch" in str(caught.value)


def test_a_device_that_does_not_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_wanted: object) -> None:
        raise RuntimeError("out of handles")

    broken = adapter("Iris Xe", "IntegratedGPU")
    broken.request_device_sync = refuse
    give(monkeypatch, [broken])
    with pytest.raises(DeviceError, match="Iris Xe could not be opened: out of handles"):
        Device.open()


def test_an_adapter_is_described_for_people() -> None:
    info = describe(adapter("llvmpipe (LLVM 15)", "CPU", "Mesa 22"))
    assert (info.name, info.driver, info.backend) == ("llvmpipe (LLVM 15)", "Mesa 22", "Vulkan")
    assert (info.kind, info.software) == ("software device", True)
    assert info.features == ("timestamp-query",)
    assert info.lacks == ("timestamp-query-inside-passes", "subgroup", "shader-int64")
    assert info.limits == dict.fromkeys(WANTED_LIMITS, 64)


def test_details_that_a_driver_does_not_report_are_unknown() -> None:
    info = describe(adapter("", "IntegratedGPU", "", vendor=""))
    assert (info.name, info.driver) == ("unnamed adapter", "unknown driver")
    assert (info.kind, info.software) == ("integrated GPU", False)
    assert "shader-int64" not in info.lacks, "a GPU has no use for it"


@pytest.mark.parity
def test_the_device_at_hand_has_what_the_engine_needs(device: Device) -> None:
    info = device.info
    assert info == list_devices()[0]
    assert set(info.features).isdisjoint(info.lacks)
    assert device.has_timestamps == ("timestamp-query" in info.features)
    assert device.max_binding_bytes >= 128 << 20  # guaranteed by WebGPU
    assert device.max_binding_bytes <= info.limits["max-buffer-size"]
    assert device.wgpu.limits["max-storage-buffer-binding-size"] >= device.max_binding_bytes


def test_checking_follows_the_environment_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENGLASS_CHECKED", raising=False)
    assert not Device.open().checked
    monkeypatch.setenv("TOKENGLASS_CHECKED", "1")
    assert Device.open().checked
    assert not Device.open(checked=False).checked
