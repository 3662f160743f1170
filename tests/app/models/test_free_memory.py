"""Free memory is read from the system, the container and the drivers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from app.config import Settings
from app.models.free_memory import FreeMemory, card_bytes, free_memory, host_bytes
from gpu import DeviceInfo


def device(kind: str, name: str) -> DeviceInfo:
    return DeviceInfo(name, "driver", "Vulkan", kind, False)


def test_devices_that_share_host_memory_have_the_hosts_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [device("discrete GPU", "Card"), device("software device", "llvmpipe")]
    monkeypatch.setattr("gpu.devices", lambda: found)
    monkeypatch.setattr("app.models.free_memory.host_bytes", lambda: 77)
    own, shared = FreeMemory(None, 77, shared=False), FreeMemory(77, 77, shared=True)
    assert free_memory(Settings()) == own
    assert free_memory(Settings(adapter="1")) == shared
    assert free_memory(Settings(adapter="LLVM")) == shared
    assert free_memory(Settings(adapter="7")) == own
    assert free_memory(Settings(adapter="nonsense")) == own
    assert free_memory(Settings(backend="torch")) == shared
    found.clear()
    assert free_memory(Settings()) == own
    assert (own.plus(5).device, shared.plus(5).device) == (None, 82)


def test_engines_on_one_device_share_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [device("discrete GPU", "NVIDIA A"), device("software device", "llvmpipe")]
    monkeypatch.setattr("gpu.devices", lambda: found)
    monkeypatch.setattr("app.models.free_memory.host_bytes", lambda: 90)
    monkeypatch.setattr("app.models.free_memory.card_bytes", lambda device: 60)
    assert free_memory(Settings(data_parallel_size=3)) == FreeMemory(20, 30, False, 3)
    two_cards = Settings(data_parallel_size=3, adapter="0,2")
    assert free_memory(two_cards) == FreeMemory(30, 30, False, 3), "two engines on one of them"
    software = Settings(data_parallel_size=3, adapter="1")
    assert free_memory(software) == FreeMemory(30, 30, True, 3)
    stages = Settings(pipeline_parallel_size=2, adapter="0,2")
    assert free_memory(stages) == FreeMemory(60, 45, False, 1, 2), "a card for each stage"
    local = Settings(pipeline_parallel_size=2, ray="local")
    assert free_memory(local) == FreeMemory(60, 45, False, 1, 2), "Ray gives each stage a card"
    cluster = Settings(pipeline_parallel_size=2, ray="head:6379")
    assert free_memory(cluster) == FreeMemory(None, None, False, 1, 2), "machines are others"


def test_free_memory_of_nvidia_cards_is_read_from_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    card = device("discrete GPU", "NVIDIA B")
    assert card_bytes(card) is None, "no tool"
    for says, wanted in {
        "echo 'NVIDIA A, 9'; echo 'NVIDIA B, 20'; echo 'NVIDIA B, 30'": 30 << 20,
        "echo 'NVIDIA A, 9'": None,
        "echo 'NVIDIA B, [N/A]'": None,
        "echo 'NVIDIA B, 20'; exit 9": None,
    }.items():
        tool.write_text(f"#!/bin/sh\n{says}\n")
        tool.chmod(0o755)
        assert card_bytes(card) == wanted, says
    assert card_bytes(device("discrete GPU", "Arc")) is None


def test_free_memory_of_amd_cards_is_read_from_sysfs(tmp_path: Path) -> None:
    card = device("discrete GPU", "AMD Radeon RX 7900 XTX (RADV NAVI31)")
    assert card_bytes(card, tmp_path) is None
    place = tmp_path / "sys/class/drm/card3/device"
    place.mkdir(parents=True)
    for which in ("total", "used"):
        (place / f"mem_info_vram_{which}").write_text("500\n")
    assert card_bytes(card, tmp_path) == 0, "full, not unknown"
    for i, (total, used) in enumerate(((900, 100), (500, 100))):
        place = tmp_path / f"sys/class/drm/card{i}/device"
        place.mkdir(parents=True)
        (place / "mem_info_vram_total").write_text(f"{total}\n")
        (place / "mem_info_vram_used").write_text(f"{used}\n")
    (tmp_path / "sys/class/drm/card2/device").mkdir(parents=True)
    assert card_bytes(card, tmp_path) == 800


def test_host_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  100 kB\nMemAvailable:   64 kB\n")
    assert host_bytes(tmp_path) == 64 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("5000\n")
    (group / "memory.stat").write_text("anon 900\nfile 4100\n")
    (group / "memory.max").write_text("max\n")
    assert host_bytes(tmp_path) == 64 * 1024
    (group / "memory.max").write_text("25000\n")
    assert host_bytes(tmp_path) == 20_000
    shutil.rmtree(tmp_path / "proc")
    assert host_bytes(tmp_path) == 20_000
    (group / "memory.stat").write_text("anon 900\nactive_file 1000\ninactive_file 3000\n")
    assert host_bytes(tmp_path) == 24_000, "cached files give way"
    real = host_bytes()
    assert real is None or real > 10_000_000
