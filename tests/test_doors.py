"""Which room may open which door. The lists below are the architecture; the README draws it.

A room is a module or a package right below gpu/. Rooms are listed below those they need, so no two
can need each other, and within a package no two modules do. An import inside a function counts
like any other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# room of gpu, a module or a package: the rooms it may open
GPU = {
    "errors": "",
    "cache_folder": "",
    "regular_file": "errors",
    "json_object": "errors regular_file",
    "gguf": "errors json_object regular_file",
    "sampling": "errors",
    "interventions": "errors",
    "script": "errors interventions sampling",
    "step": "errors",
    "events": "interventions sampling step",
    "inspection": "interventions sampling",
    "config": "errors gguf json_object sampling",
    "text": "errors gguf json_object regular_file",
    "reach": "config errors",
    "runner": "config reach step",
    "reference": "step",
    "perplexity": "errors reference step",
    "reap": "config errors inspection perplexity",
    "webgpu": "errors runner step",
    "checkpoint": "cache_folder config errors gguf json_object regular_file webgpu",
    "kv": "config errors webgpu",
    "lora": "checkpoint config errors json_object runner",
    "footprint": "checkpoint config errors kv lora",
    "inspect": "config errors inspection kv reference runner step",
    "ops": "checkpoint config errors kv runner step webgpu",
    "models": "checkpoint config kv ops webgpu",
    "plans": "checkpoint config errors kv lora models ops reach runner webgpu",
    "tuning": "cache_folder checkpoint errors ops runner step webgpu",
    "runners": "checkpoint config errors kv lora models ops plans reach runner step tuning webgpu",
    "pytorch": "checkpoint config errors kv lora reach reference runner step",
    "engine": "checkpoint config errors events inspect inspection interventions kv pytorch reach"
    " runner runners sampling script step text",
    "": "checkpoint config engine errors footprint gguf interventions kv lora perplexity reap"
    " runner runners sampling script text tuning webgpu",
    "bench": "checkpoint config errors kv models ops pytorch reference runner runners step tuning"
    " webgpu",
}  # fmt: skip

APP_MAY_OPEN = {"gpu", "gpu.events", "gpu.inspection"}
"""The engine's face, the messages of a run, and what may be asked about one."""

# package: who may import it; a name ending in a dot stands for every module below it
OUTSIDE = {
    "wgpu": {"gpu.webgpu."},
    "torch": {"gpu.pytorch.", "gpu.bench.peers.scripts.run_transformers", "app.tale.make."},
    "transformers": {"gpu.bench.peers.scripts.run_transformers"},
    "huggingface_hub": {"app.hub", "app.hub_cache", "app.hub_errors"},
    "tokenizers": {"gpu.text.", "app.tale.make."},
    "safetensors": {"gpu.checkpoint.writer", "app.tale.make."},
    "gguf": {"gpu.bench.peers.gguf_file", "gpu.gguf.types"},
    "onnx": {"gpu.bench.peers.onnx_file"},
    "llama_cpp": {"gpu.bench.peers.scripts.run_llama_cpp"},
    "onnxruntime": {"gpu.bench.peers.scripts.run_onnxruntime"},
    "flask": {"app."},
    "werkzeug": {"app."},
    "jinja2": {"app."},
    "click": {"app."},
}
NOT_AT_RUN_TIME = ("scipy", "peft", "pytest", "playwright")


def modules(package: str) -> dict[str, Path]:
    """Module name to file, of every module in a package."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module a file imports, with the line; `from gpu import x` counts as gpu.x when that is
    a module."""
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
    """The room of a module of gpu; "" is gpu/__init__.py."""
    return module.partition(".")[2].partition(".")[0]


MODULES = modules("gpu") | modules("app")


def test_every_room_of_the_engine_is_on_the_list() -> None:
    assert set(GPU) == {room_of(name) for name in modules("gpu")}


def test_rooms_are_listed_below_those_they_need() -> None:
    above: set[str] = set()
    for room, needs in GPU.items():
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


@pytest.mark.parametrize("room", GPU)
def test_no_two_modules_of_a_room_need_each_other(room: str) -> None:
    needs = {
        name: {module for module, _ in imports(MODULES[name]) if module in MODULES} - {name}
        for name in modules("gpu")
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
    code = f"import sys, {package}; print([m for m in ('torch', 'wgpu') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr
