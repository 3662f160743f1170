"""Rooms import only the rooms that the lists below allow; docs/architecture.md draws them.

A room is a module or a package right below gpu/ or app/. Rooms are listed below those they need, so
no two rooms can need each other, and neither can two modules of one room. An import inside a
function counts like any other.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).parent.parent

# room of gpu, a module or a package: the rooms it may open
GPU = {
    "errors": "",
    "files": "errors",
    "grammar": "errors",
    "gguf": "errors files",
    "architectures": "errors files gguf",
    "sampling_params": "errors",
    "info": "sampling_params",
    "step": "errors sampling_params",
    "watermark": "errors sampling_params step",
    "load_options": "",
    "stage_hosts": "",
    "pace": "errors",
    "config": "architectures errors files gguf sampling_params",
    "text": "errors files gguf grammar",
    "interventions": "config errors step",
    "scheduled_updates": "errors interventions sampling_params",
    "request": "grammar interventions sampling_params scheduled_updates",
    "events": "grammar interventions sampling_params step",
    "places": "errors",
    "speculative": "events",
    "reference": "step",
    "webgpu": "errors info step",
    "tracing": "errors webgpu",
    "checkpoint": "architectures config errors files gguf webgpu",
    "kv": "config errors step webgpu",
    "runner": "config info interventions kv step",
    "lora": "checkpoint config errors files info",
    "inspection": "config errors grammar interventions kv reference runner sampling_params step",
    "analysis": "architectures checkpoint config errors files gguf inspection kv load_options lora"
    " reference step",
    "ops": "checkpoint config errors kv sampling_params step webgpu",
    "models": "architectures checkpoint config kv ops step webgpu",
    "plans": "checkpoint config errors info interventions kv lora models ops sampling_params step"
    " webgpu",
    "tuning": "checkpoint config errors files info kv models ops plans step webgpu",
    "runners": "checkpoint config errors info interventions kv load_options lora models ops plans"
    " reference runner sampling_params stage_hosts step tuning webgpu",
    "pytorch": "architectures checkpoint config errors info interventions kv load_options lora"
    " reference runner step",
    "engine": "checkpoint config errors events info inspection interventions kv load_options"
    " pace places pytorch reference request runner runners sampling_params scheduled_updates"
    " speculative stage_hosts step text watermark",
    "export": "checkpoint config errors files info load_options lora models ops plans runners"
    " sampling_params step webgpu",
    "": "analysis checkpoint config engine errors export files gguf grammar info interventions kv"
    " load_options lora pace places request runners sampling_params scheduled_updates stage_hosts"
    " text tuning watermark webgpu",
    "checks": "architectures checkpoint config kv load_options models ops reference runners"
    " sampling_params step webgpu",
    "bench": "checkpoint checks config engine errors events files info kv load_options"
    " models ops pytorch reference request runner runners sampling_params step text tuning webgpu",
}  # fmt: skip

# room of app: the rooms it may open; "app" is app/__init__.py, which makes the Flask application,
# and "server" runs it
APP = {
    "config": "",
    "protocol": "config",
    "processes": "",
    "terminal": "",
    "tale": "",
    "engine_client": "protocol",
    "load_options": "config",
    "prompt": "engine_client processes tale protocol",
    "models": "config engine_client load_options prompt tale terminal protocol",
    "engine": "config engine_client load_options models processes prompt tale protocol",
    "train": "config engine engine_client models processes prompt",
    "retrieval": "config engine_client processes prompt",
    "replicas": "engine_client models protocol",
    "cluster": "config engine engine_client load_options models replicas protocol",
    "upstream": "config engine_client protocol",
    "http": "config engine_client models prompt retrieval tale train protocol",
    "local": "config engine_client http models processes prompt tale protocol",
    "ws": "engine_client http prompt protocol",
    "openai": "engine_client http prompt protocol",
    "app": "config engine_client http local models openai prompt tale train ws protocol",
    "server": "app cluster config engine engine_client http models prompt replicas tale"
    " terminal train upstream protocol",
    "site": "app config load_options http local models",
    "cli": "app config engine engine_client server models prompt retrieval site tale"
    " terminal train protocol",
    "__main__": "cli",
}  # fmt: skip

APP_MAY_OPEN = {"gpu", "gpu.bench.machine", "gpu.events", "gpu.inspection.requests"}
"""The engine's face, the report of a machine, the messages of a run, and what may be asked about
one."""

# package: who may import it; a name ending in a dot stands for every module below it
OUTSIDE = {
    "wgpu": {"gpu.webgpu."},
    "torch": {
        "app.train.loop",
        "app.train.one_step",
        "gpu.pytorch.",
        "gpu.bench.peers.scripts.run_transformers",
        "gpu.bench.peers.scripts.run_continuous_batching",
    },
    "peft": {"app.train.loop"},
    "transformers": {
        "app.train.loop",
        "gpu.bench.peers.scripts.run_transformers",
        "gpu.bench.peers.scripts.run_continuous_batching",
    },
    "faiss": {"app.retrieval.index"},
    "pypdf": {"app.retrieval.pdf_process"},
    "pip": {"app.models.pip_fetch"},
    "filelock": {"app.models.wheels"},
    "huggingface_hub": {
        "app.models.hub",
        "app.models.hub_cache",
        "app.models.hub_errors",
        "app.models.hub_search",
    },
    "tokenizers": {"gpu.text."},
    "llguidance": {
        "gpu.text.grammar_matcher",
        "gpu.text.grammar_vocabulary",
        "gpu.text.json_closing",
        "gpu.text.json_schema",
    },
    "safetensors": {"gpu.checkpoint.writer"},
    "gguf": {"gpu.bench.peers.gguf_file", "gpu.gguf.types"},
    "onnx": {"gpu.bench.peers.onnx_file"},
    "llama_cpp": {
        "gpu.bench.peers.scripts.run_llama_cpp",
        "gpu.bench.peers.scripts.run_llama_cpp_server",
    },
    "xllamacpp": {"gpu.bench.peers.scripts.run_llama_cpp_server"},
    "onnxruntime": {"gpu.bench.peers.scripts.run_onnxruntime"},
    "flask": {"app", "app.server", "app.http.", "app.local.routes", "app.openai.", "app.ws."},
    "werkzeug": {"app.server", "app.http.", "app.ws."},
    "prometheus_client": {"app.http.metrics"},
    "jinja2": {"app.http.page_data", "app.prompt.sandbox", "app.prompt.template_process"},
    "click": {"app.cli."},
    "ray": {"app.cluster."},
}
NOT_AT_RUN_TIME = ("scipy", "pytest", "playwright")


@functools.cache
def modules(package: str) -> dict[str, Path]:
    """Module name to file, of every module in a package."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Return every module a file imports, with the line; `from gpu import x` counts as gpu.x when
    that is a module."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import by the whole name"
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield (inner if inner in MODULES else module, node.lineno)


def room_of(module: str) -> str:
    """Return the room of a module; "" is gpu/__init__.py, and "app" is app/__init__.py."""
    package, _, inner = module.partition(".")
    return inner.partition(".")[0] or ("app" if package == "app" else "")


MODULES = modules("gpu") | modules("app")


@pytest.mark.parametrize(("package", "rooms"), [("gpu", GPU), ("app", APP)])
def test_every_room_is_on_the_list(package: str, rooms: dict[str, str]) -> None:
    assert {room_of(name) for name in modules(package)} <= set(rooms)


@pytest.mark.parametrize("rooms", [GPU, APP], ids=["gpu", "app"])
def test_rooms_are_listed_below_those_they_need(rooms: dict[str, str]) -> None:
    above: set[str] = set()
    for room, needs in rooms.items():
        assert set(needs.split()) <= above, f"{room} needs rooms that are listed below it"
        above.add(room)


@pytest.mark.parametrize("room", GPU)
def test_a_room_opens_only_the_doors_on_its_list(room: str) -> None:
    allowed = {room, *GPU[room].split()}
    used = {room}
    for name in (name for name in modules("gpu") if room_of(name) == room):
        for module, line in imports(MODULES[name]):
            if module.partition(".")[0] == "gpu":
                used.add(room_of(module))
                assert room_of(module) in allowed, f"{name}:{line}: may not open {module}"
    assert used == allowed, "doors on the list that nobody opens"


@pytest.mark.parametrize("room", APP)
def test_a_room_of_the_app_opens_only_the_doors_on_its_list(room: str) -> None:
    allowed = {room, *APP[room].split()}
    for name in (name for name in modules("app") if room_of(name) == room):
        for module, line in imports(MODULES[name]):
            if module.partition(".")[0] == "app":
                assert room_of(module) in allowed, f"{name}:{line}: may not open {module}"


@pytest.mark.parametrize(
    ("package", "room"), [("gpu", room) for room in GPU] + [("app", room) for room in APP]
)
def test_no_two_modules_of_a_room_need_each_other(package: str, room: str) -> None:
    needs = {
        name: {module for module, _ in imports(MODULES[name]) if module in MODULES} - {name}
        for name in modules(package)
        if room_of(name) == room
    }
    needs = {name: needed & set(needs) for name, needed in needs.items()}
    while needs:
        free = {name for name, needed in needs.items() if not needed}
        assert free, f"need each other: {needs}"
        needs = {name: needed - free for name, needed in needs.items() if name not in free}


def test_the_engine_knows_nothing_of_the_app() -> None:
    for name, path in modules("gpu").items():
        for module, line in imports(path):
            assert module.partition(".")[0] != "app", f"{path}:{line}: {name} imports {module}"


def test_the_app_knows_only_the_engines_face() -> None:
    for name, path in modules("app").items():
        for module, line in imports(path):
            if module.partition(".")[0] == "gpu":
                assert module in APP_MAY_OPEN, f"{path}:{line}: {name} imports {module}"


@pytest.mark.parametrize("package", OUTSIDE)
def test_a_library_is_used_only_where_it_belongs(package: str) -> None:
    for name, path in MODULES.items():
        for module, line in imports(path):
            if module.partition(".")[0] == package:
                at_home = any(
                    name == home or (home.endswith(".") and f"{name}.".startswith(home))
                    for home in OUTSIDE[package]
                )
                assert at_home, f"{path}:{line}: {name} imports {module}"


def test_what_only_tests_need_is_not_imported() -> None:
    for path in MODULES.values():
        for module, line in imports(path):
            assert module.partition(".")[0] not in NOT_AT_RUN_TIME, f"{path}:{line}: {module}"


@pytest.mark.parametrize("package", ["gpu", "app"])
def test_importing_a_package_loads_neither_torch_nor_a_gpu_driver(package: str) -> None:
    code = (
        f"import sys, {package}; "
        "print([m for m in ('torch', 'wgpu', 'llguidance') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "app.cli.generate",
        "app.cli.perplexity",
        "app.cli.reap",
        "app.cli.search",
        "app.cli.train",
        "app.engine.main",
    ],
)
def test_loading_a_model_needs_no_flask(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('flask', 'werkzeug') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr
