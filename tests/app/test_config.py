"""The settings and the command line."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import app.server
from app.cli.main import main
from app.config import Settings, SettingsError, is_loopback, setting_specs
from app.engine.loading import load_engine
from app.engine_client import Progress
from app.load_options import load_options
from app.models.model_source import ModelSource
from app.server import PortError, address, bind
from gpu import (
    AdapterInfo,
    AutotuneResult,
    AutotuneRow,
    DeviceError,
    DeviceInfo,
    LoadOptions,
    ModelError,
)
from gpu.engine.backends import check_options
from gpu.webgpu.device_policy import DevicePolicy
from gpu.webgpu.tiling import GPU, SOFTWARE

pytestmark = pytest.mark.smoke


def run(*args: str, env: dict[str, str | None] | None = None) -> Result:
    env = {"TOKENGLASS_MODEL": None, **(env or {})}
    result = CliRunner().invoke(main, args, env=env, catch_exceptions=False, terminal_width=1000)
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings that `serve` was called with; nothing is served."""
    found: list[Settings] = []

    def serve(settings: Settings, tell: Any) -> None:
        found.append(settings)

    monkeypatch.setattr(app.server, "serve", serve)
    return found


def test_every_setting_is_documented_in_help() -> None:
    text = re.sub(r"\s+", " ", run("serve", "--help").output)
    for row in setting_specs():
        assert row.flag in text
        assert row.help in text
        assert row.no_flag is None or f"{row.flag} / {row.no_flag}" in text
        assert f"env var: {row.env}" in text
        if row.default not in (None, ()):
            shown = row.flag.removeprefix("--") if row.type is bool else row.default
            assert f"default: {shown}" in text


def test_every_setting_has_a_row() -> None:
    assert {row.name for row in setting_specs()} == set(Settings.__dataclass_fields__)
    assert all(len(row.help) > 20 for row in setting_specs())


VALUES: dict[str, tuple[list[str], Any]] = {
    "model": (["folder"], "folder"),
    "revision": (["v1"], "v1"),
    "dtype": (["f32"], "f32"),
    "kv_dtype": (["q8q4"], "q8q4"),
    "backend": (["torch"], "torch"),
    "adapter": (["llvm"], "llvm"),
    "data_parallel_size": (["2"], 2),
    "pipeline_parallel_size": (["3"], 3),
    "max_data_parallel_size": (["3"], 3),
    "ray": (["head:6379"], "head:6379"),
    "upstream": (["http://localhost:8080"], "http://localhost:8080"),
    "tokenizer": (["folder"], Path("folder")),
    "lora": (["a=folder", "b=some/tone"], ("a=folder", "b=some/tone")),
    "expert_slots": (["4"], 4),
    "activations": (["q8"], "q8"),
    "context": (["128"], 128),
    "kv_memory": (["64"], 64),
    "kv_offload": (["8"], 8),
    "weight_cache": (["0"], 0),
    "max_num_seqs": (["2"], 2),
    "prefix_cache": (["false"], False),
    "prefix_sharing": (["all"], "all"),
    "cache_reuse": (["256"], 256),
    "spec_type": (["ngram"], "ngram"),
    "draft": (["bundled"], "bundled"),
    "embedding_model": (["folder"], "folder"),
    "encoder_decoder_model": (["folder"], "folder"),
    "switching": (["false"], False),
    "model_paths": (["false"], False),
    "training": (["all"], "all"),
    "retrieval": (["all"], "all"),
    "queue": (["0"], 0),
    "engine_timeout": (["600"], 600),
    "host": (["localhost"], "localhost"),
    "port": (["0"], 0),
    "token": (["secret"], "secret"),
    "allow_host": (["a.lan", "b.lan"], ("a.lan", "b.lan")),
    "allow_origin": (
        ["https://a.example", "http://b.lan:8080"],
        ("https://a.example", "http://b.lan:8080"),
    ),
    "hub_url": (
        ["https://hub.example", "https://cdn.example"],
        ("https://hub.example", "https://cdn.example"),
    ),
    "tool_url": (
        ["http://127.0.0.1:9000", "http://localhost:9001"],
        ("http://127.0.0.1:9000", "http://localhost:9001"),
    ),
    "compare_tokenizer": (["folder"], Path("folder")),
    "log_level": (["debug"], "debug"),
}


OTHERS = {
    "dtype": "f16",
    "kv_dtype": "q8",
    "activations": "f32",
    "prefix_sharing": "client",
    "training": "off",
    "retrieval": "off",
    "spec_type": "none",
    "allow_origin": "http://c.lan",
    "hub_url": "http://d.lan",
    "tool_url": "http://127.0.0.1:9002",
}
"""Values of settings that take names; "1" is valid for all others."""
NEEDED = {"max_data_parallel_size": ("--ray", "local")}
"""Flags without which a setting is refused."""


@pytest.mark.parametrize("row", setting_specs(), ids=lambda row: row.name)
def test_flag_goes_before_environment_goes_before_default(served: list[Settings], row: Any) -> None:
    given, value = VALUES[row.name]
    flags = [part for text in given for part in (row.flag, text)]
    if row.no_flag:
        flags = [row.no_flag]
    environment = {row.env: " ".join(given)}
    serve = ("serve", *NEEDED.get(row.name, ()))
    assert run(*serve).exit_code == 0
    assert run(*serve, env=environment).exit_code == 0
    assert run(*serve, *flags).exit_code == 0
    assert run(*serve, *flags, env={row.env: OTHERS.get(row.name, "1")}).exit_code == 0
    assert [getattr(settings, row.name) for settings in served] == [
        row.default,
        value,
        value,
        value,
    ]


@pytest.mark.parametrize(
    ("value", "loras"),
    [
        ("pirate=/a poet=/b", ("pirate=/a", "poet=/b")),
        ('pirate="/my adapters/a"  poet=/b', ("pirate=/my adapters/a", "poet=/b")),
        ("'pirate=/my adapters/a#1'", ("pirate=/my adapters/a#1",)),
        (r"pirate=C:\models\pirate", (r"pirate=C:\models\pirate",)),
        ("", ()),
    ],
)
def test_a_variable_has_values_with_spaces_in_quotes(
    served: list[Settings], value: str, loras: tuple[str, ...]
) -> None:
    assert run("serve", env={"TOKENGLASS_LORA": value}).exit_code == 0
    assert [settings.lora for settings in served] == [loras]


def test_a_variable_with_an_open_quote_is_refused(served: list[Settings]) -> None:
    result = run("serve", env={"TOKENGLASS_LORA": "pirate='/a"})
    assert result.exit_code == 2
    assert "a quotation mark has no other one in" in result.output
    assert not served


def test_run_serves_the_model_that_it_names(served: list[Settings]) -> None:
    assert run("run", "some/model", "--dtype", "q8", "--revision", "v1").exit_code == 0
    assert run("run").exit_code == 0
    assert run("run", "a/b", "--model", "c").exit_code == 2
    assert served == [Settings(model="some/model", dtype="q8", revision="v1"), Settings()]


def test_serve_is_what_is_meant_without_a_command(served: list[Settings]) -> None:
    assert run().exit_code == 0
    assert run("--port", "0").exit_code == 0
    assert [settings.port for settings in served] == [8000, 0]


@pytest.mark.parametrize(
    "args",
    [
        ["--port", "99999"],
        ["--port", "x"],
        ["--dtype", "q5"],
        ["--max-num-seqs", "0"],
        ["--context", "1"],
        ["--queue", "-1"],
        ["--nonsense"],
        ["nonsense"],
        ["--host", "0.0.0.0"],
        ["--host", "192.168.1.7"],
        ["--token", ""],
        ["--token", "a\nb"],
        ["--token", "schlüssel"],
        ["--token", " secret"],
        ["--token", "secret "],
        ["--allow-host", "https://box.lan"],
        ["--allow-host", "*"],
        ["--allow-host", ""],
        ["--allow-origin", "*"],
        ["--allow-origin", "null"],
        ["--allow-origin", "chat.example.org"],
        ["--allow-origin", "https://chat.example.org/"],
        ["--allow-origin", "https://user@chat.example.org"],
        ["--allow-origin", "ftp://chat.example.org"],
        ["--hub-url", "https://hub.example/models"],
        ["--hub-url", "hub.example; script-src *"],
        ["--tool-url", "http://127.0.0.1:9000/weather"],
        ["--tool-url", "http://127.0.0.1:*"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(served: list[Settings], args: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.output.count("Error: ") == 1
    assert not served


def test_others_may_come_in_with_a_token_only() -> None:
    with pytest.raises(SettingsError, match="--token"):
        Settings(host="0.0.0.0").validate()
    assert Settings(host="0.0.0.0", token="a secret").validate()
    assert Settings(host="::1").validate()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_a_revision_of_a_folder_is_refused(tmp_path: Path) -> None:
    result = run("serve", "--model", str(tmp_path), "--revision", "main")
    assert (result.exit_code, "--revision applies to" in result.output) == (2, True)


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["generate", "Once"]])
def test_a_bad_model_folder_is_one_line_and_exit_code_2(tmp_path: Path, command: list[str]) -> None:
    result = run(*command, "--model", str(tmp_path))
    assert result.exit_code == 2
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert str(tmp_path) in result.output


def test_a_port_in_use_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAKELEVEL", raising=False)  # these tests may have been started by make
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--port", str(port))
    assert result.exit_code == 1
    assert f"port {port} is in use" in result.output
    assert "--port" in result.output


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(PortError, match="not an address of this machine"):
        bind("192.0.2.1", 0)
    with pytest.raises(PortError, match="not an address"):
        bind("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(), "http://127.0.0.1:80/"),
        (Settings(host="::1"), "http://[::1]:80/"),
        (Settings(host="0.0.0.0", token="s"), f"http://{socket.gethostname()}:80/?token=TOKEN"),
    ],
)
def test_the_address_can_be_opened(settings: Settings, expected: str) -> None:
    assert address(settings, 80) == expected


def test_version() -> None:
    assert run("version").output.startswith("tokenglass ")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = DeviceInfo("Card", "driver 1", "Vulkan", "GPU", False, (), ("shader-f16",))
    slow = DeviceInfo("llvmpipe", "Mesa", "Vulkan", "CPU", True)
    monkeypatch.setattr("gpu.devices", lambda: [fast, slow])
    monkeypatch.setattr("gpu.is_tuned", lambda device: device is fast)
    lines = run("devices").output.splitlines()
    assert lines[0].startswith("0  Card")
    assert "shader-f16" in lines[1]
    assert lines[2] == "   kernels: measured"
    assert lines[3].startswith("1  llvmpipe")
    assert "software" in lines[3]
    assert lines[4] == "   kernels: default"
    monkeypatch.setattr("gpu.devices", list)
    result = run("devices")
    assert (result.exit_code, "Vulkan" in result.output) == (1, True)


CARD = AdapterInfo("Card", "driver 1", "Vulkan", "CPU", True)


ROWS = (
    AutotuneRow("1 row, f16", 1234.5, "n 1", "n 2", 1.084, 1.05, True),
    AutotuneRow("prompt, f16", 20.25, "shared_m 8", "shared_m 4", 1.2, 0.993, False),
    AutotuneRow("1 row, q4", 9.0, "n 1", "", None, None, False, "not measurable"),
)


def probed(**changes: Any) -> AutotuneResult:
    """Result of measuring `CARD`: the first of three choices replaces the default."""
    return replace(AutotuneResult(CARD, ROWS, (), 0, SOFTWARE, True), **changes)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Adapters that were measured; there are three, and the second cannot be opened."""
    which: list[str] = []

    def fake(adapter: str, progress: Any) -> AutotuneResult:
        which.append(adapter)
        if adapter == "1":
            raise DeviceError("Card could not be opened: it is busy")
        progress(0.5, "measuring the card")
        return probed(n_late=3, faults=("n 2: 7 of 9 results are wrong",), stored=False)

    monkeypatch.setattr("gpu.devices", lambda: 3 * [CARD])
    monkeypatch.setattr("gpu.autotune_device", fake)
    return which


def test_devices_are_measured_and_the_table_is_shown(probes: list[str]) -> None:
    result = run("devices", "--probe")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "measuring the card" in result.stderr
    assert probes == ["0", "1", "2"]
    assert lines[0].startswith("0  Card")
    assert lines[2:5] == [
        "   1 row, f16   1234.5   n 1         n 2         ×1.08     ×1.05  confirmed",
        "   prompt, f16  20.2     shared_m 8  shared_m 4  ×1.20     ×0.99  not confirmed",
        "   1 row, q4    9.0      n 1         –           –         –      not measurable",
    ]
    assert lines[5] == "   left out: n 2: 7 of 9 results are wrong"
    assert lines[6] == "   3 more were not measured: the time was up"
    assert lines[7].startswith("   not measurable: the time of the default")
    assert "cannot write to the cache folder" in lines[8]
    assert lines[9].startswith("   matmul: ")
    assert lines[9].endswith("(fastest when measured on this adapter)")
    chosen = lines[9 : lines.index("1  Card  (Vulkan, software; driver 1)")]
    assert [line.split(":")[0].strip() for line in chosen] == [
        "matmul", "activations of q8 and q4 weights", "attention", "attention of prompts",
        "weights", "rows", "rounding to int8", "sampling",
        "prompt chunk", "steps in flight", "layer times",
    ]  # fmt: skip
    lines = lines[len(chosen) :]
    assert lines[9].startswith("1  Card")
    assert lines[10] == "   cannot be measured: Card could not be opened: it is busy"
    assert lines[11].startswith("2  Card")


@pytest.mark.parametrize("confirmed", [True, False])
def test_what_is_measured_on_a_gpu_is_used_if_it_was_confirmed(
    monkeypatch: pytest.MonkeyPatch, confirmed: bool
) -> None:
    card = replace(CARD, kind="discrete GPU", software=False)
    chosen = replace(GPU, shared_m=4) if confirmed else GPU
    result = probed(device=card, stored=True if confirmed else None, chosen=chosen)
    monkeypatch.setattr("gpu.devices", lambda: [card])
    monkeypatch.setattr("gpu.autotune_device", lambda adapter, progress: result)
    lines = run("devices", "--probe").output.splitlines()
    if confirmed:
        assert "   stored: used from the next start on" in lines
        assert f"   matmul: {chosen} (fastest when measured on this adapter)" in lines
    else:
        assert any(
            line.startswith("   nothing stored: no other tiles were confirmed") for line in lines
        )
        default = DevicePolicy.of(card).tuning
        reason = "default for a GPU; --probe has confirmed no other"
        assert f"   matmul: {default} ({reason})" in lines


def test_one_device_is_measured_when_it_is_named(probes: list[str]) -> None:
    assert run("devices", "--probe", "--adapter", "radeon").exit_code == 0
    assert probes == ["radeon"]
    assert run("devices", "--probe", "--adapter", "1").exit_code == 1


def test_the_server_loads_with_the_kernels_measured_for_the_adapter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "gpu.Engine.load", lambda folder, options, **_: asked.update(asdict(options))
    )
    settings = Settings(activations="q8", dtype="f16")
    load_engine(settings, ModelSource(tmp_path), lambda fraction, message: None)
    assert asked["autotune"] is True
    assert asked["activations"] == "q8"


def test_reuse_of_chunks_needs_the_prefix_cache() -> None:
    with pytest.raises(SettingsError, match="--cache-reuse reuses blocks"):
        Settings(cache_reuse=256, prefix_cache=False).validate()
    assert load_options(Settings(cache_reuse=256).validate()).cache_reuse == 256


def test_host_memory_for_the_prefix_cache_needs_the_prefix_cache() -> None:
    with pytest.raises(SettingsError, match=r"--kv-offload .* --no-prefix-cache"):
        Settings(kv_offload=1, prefix_cache=False).validate()
    assert load_options(Settings(kv_offload=3).validate()).kv_offload_bytes == 3 << 30
    with pytest.raises(ModelError, match="prefix_cache"):
        check_options(LoadOptions(kv_offload_bytes=1, prefix_cache=False))


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_server_loads_with_or_without_the_prefix_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix_cache: bool
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        "gpu.Engine.load", lambda folder, options, **_: asked.update(asdict(options))
    )
    settings = Settings(prefix_cache=prefix_cache, dtype="f16")
    load_engine(settings, ModelSource(tmp_path), lambda fraction, message: None)
    assert asked["prefix_cache"] is prefix_cache


def test_only_a_server_compiles_ahead_of_requests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A single generation would wait for kernels that it does not need."""
    asked: dict[str, Any] = {}
    loads: list[Callable[[Progress], Any]] = []
    make = app.server.SupervisedEngine

    def noted(load: Callable[[Progress], Any], *others: Any, **named: Any) -> Any:
        loads.append(load)
        return make(load, *others, **named)

    monkeypatch.setattr(
        "gpu.Engine.load", lambda folder, options, **_: asked.update(asdict(options))
    )
    monkeypatch.setattr(app.server, "SupervisedEngine", noted)
    monkeypatch.setattr(app.server, "run", lambda server, *_, **__: server.server_close())
    app.server.serve(Settings(port=0), lambda line: None)
    loads[0](lambda fraction, message: None)
    assert asked["warm_up"] is True
    load_engine(Settings(dtype="f16"), ModelSource(tmp_path), lambda fraction, message: None)
    assert asked["warm_up"] is False


def test_a_longer_context_than_the_bundled_models_is_one_for_the_model_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bundled model only stands in for it on the page until then."""
    lines: list[str] = []
    monkeypatch.setattr(app.server, "run", lambda server, *_, **__: server.server_close())
    app.server.serve(Settings(port=0, context=4096), lines.append)
    assert lines


def test_a_device_error_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DeviceError("no adapter; install a driver")

    monkeypatch.setattr("gpu.devices", fail)
    result = run("devices")
    assert result.exit_code == 1
    assert result.output == "Error: no adapter; install a driver\n"


def test_engines_take_the_named_gpus_in_turn() -> None:
    settings = Settings(adapter="0,2", data_parallel_size=3).validate()
    assert [settings.for_replica(n).adapter for n in range(3)] == ["0", "2", "0"]
    for name in (None, "1", "llvmpipe (LLVM 15.0.6, 256 bits)"):
        settings = Settings(adapter=name, data_parallel_size=2).validate()
        assert [settings.for_replica(n).adapter for n in range(2)] == [name, name]
    with pytest.raises(SettingsError, match=r"names more GPUs \(0,1\) than"):
        Settings(adapter="0,1").validate()


def test_stages_of_engines_take_the_named_gpus_in_turn() -> None:
    settings = Settings(adapter="0,1,2", data_parallel_size=2, pipeline_parallel_size=2).validate()
    assert [settings.for_replica(n).adapter for n in range(2)] == ["0,1", "2,0"]
    options = load_options(settings.for_replica(1))
    assert [options.adapter_of_stage(i) for i in range(2)] == ["2", "0"]
    on_one = load_options(Settings(adapter="llvm", pipeline_parallel_size=2).validate())
    assert [on_one.adapter_of_stage(i) for i in range(2)] == ["llvm", "llvm"]
    with pytest.raises(SettingsError, match=r"names more GPUs \(0,1,2\) than"):
        Settings(adapter="0,1,2", pipeline_parallel_size=2).validate()
    with pytest.raises(SettingsError, match="--pipeline-parallel-size is about an engine on this"):
        Settings(upstream="http://localhost:1", pipeline_parallel_size=2).validate()


def test_a_number_of_engines_to_grow_to_needs_ray() -> None:
    with pytest.raises(SettingsError, match="add --ray, or set --data-parallel-size"):
        Settings(max_data_parallel_size=4).validate()
    assert Settings(max_data_parallel_size=4, ray="local").validate().n_engines == 4


def test_every_wrong_setting_is_explained() -> None:
    result = run("serve", "--host", "0.0.0.0", "--kv-offload", "1", "--no-prefix-cache")
    assert result.exit_code == 2
    assert "--host 0.0.0.0 makes this server reachable" in result.output
    assert "--kv-offload keeps evicted blocks" in result.output


def test_the_version_is_an_option_too() -> None:
    assert run("--version").output == run("version").output == f"tokenglass {app.version()}\n"


@pytest.mark.parametrize(("make", "words"), [(True, "make run PORT="), (False, "with --port (")])
def test_a_busy_port_says_how_to_take_another(
    monkeypatch: pytest.MonkeyPatch, make: bool, words: str
) -> None:
    monkeypatch.delenv("MAKELEVEL", raising=False)
    if make:
        monkeypatch.setenv("MAKELEVEL", "1")
    with app.server.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(app.server.PortError, match=f"port {port} is in use") as told:
            app.server.bind("127.0.0.1", port)
    assert words in str(told.value)
