"""Which room may open which door. The lists below are the architecture; the README draws it.

Rooms are listed below those they need, so no two can need each other. An import inside a function
counts like any other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# room: rooms of gpu it may open
GPU = {
    "errors": "",
    "stopping": "",
    "reference": "",
    "json_object": "errors",
    "token_bytes": "errors json_object",
    "tokenizer": "errors json_object token_bytes",
    "sampling": "errors",
    "script": "errors sampling",
    "events": "sampling",
    "inspection": "sampling",
    "run_clock": "events",
    "config": "errors json_object sampling",
    "checkpoint": "errors json_object",
    "shapes": "checkpoint config",
    "quantise": "",
    "packing": "errors quantise",
    "inventory": "checkpoint config errors packing",
    "tensor_summary": "checkpoint errors json_object",
    "blocks": "config errors",
    "prefix_cache": "blocks",
    "block_pool": "blocks prefix_cache",
    "kv_state": "",
    "attention_cut": "config",
    "reach": "config errors",
    "step": "config errors reach",
    "softmax": "",
    "divergence": "softmax step",
    "step_buffer": "blocks step",
    "reference_sampler": "softmax step",
    "waterfall": "inspection reference_sampler softmax step",
    "readings": "inspection kv_state softmax step",
    "plan_questions": "errors inspection step",
    "beam": "errors inspection readings softmax step",
    "commands": "",
    "native": "commands errors",
    "tiling": "",
    "lanes": "tiling",
    "tuning_cache": "tiling",
    "probed": "step tiling",
    "device": "errors lanes native step tiling",
    "calls": "commands device errors native",
    "timestamps": "commands device native step",
    "buffers": "device errors",
    "kernels": "device errors native",
    "plan": "buffers commands device kernels",
    "peaks": "buffers calls commands device errors kernels plan",
    "weights": "buffers checkpoint config errors packing",
    "kv_cache": "blocks buffers config",
    "ops": "attention_cut blocks buffers config errors kernels kv_cache plan step weights",
    "product_timer": "buffers calls commands device errors kernels ops packing plan step"
    " step_buffer tiling timestamps weights",
    "probe": "device kernels probed product_timer step tiling tuning_cache",
    "sampling_ops": "buffers errors kernels ops plan step",
    "results": "config sampling_ops step",
    "inspection_ops": "buffers config errors kv_cache ops plan",
    "reach_ops": "buffers config ops plan",
    "workspace": "buffers config step_buffer",
    "arenas": "buffers config step_buffer workspace",
    "reach_tables": "arenas buffers config reach reach_ops step_buffer workspace",
    "models.llama": "buffers config inspection_ops kv_cache ops plan reach_ops weights workspace",
    "plan_book": "arenas attention_cut buffers config device kernels kv_cache models.llama ops plan"
    " reach_tables sampling_ops step_buffer timestamps workspace",
    "plan_cost": "errors plan step",
    "kernel_source": "kernels",
    "listed_plan": "",
    "plan_view": "buffers kernel_source kernels listed_plan plan plan_book plan_cost step",
    "dispatch_timer": "commands device plan step timestamps",
    "step_queue": "buffers calls commands dispatch_timer kv_cache plan_book step step_buffer"
    " timestamps",
    "look_passes": "buffers config errors plan_book step step_buffer step_queue workspace",
    "wgpu_runner": "blocks buffers checkpoint config device kv_cache look_passes"
    " models.llama packing peaks plan_book plan_cost plan_view probe reach results step step_buffer"
    " step_queue weights",
    "torch_statistics": "step",
    "torch_reach": "reach step",
    "torch_llama": "blocks checkpoint config errors packing step torch_reach torch_statistics",
    "torch_runner": "blocks checkpoint config errors packing reach reference_sampler step"
    " torch_llama torch_reach torch_statistics",
    "token_stats": "events step",
    "sequence": "blocks events prefix_cache run_clock sampling script step stopping token_stats"
    " tokenizer",
    "kv_manager": "block_pool blocks errors kv_state prefix_cache sequence",
    "scheduler": "kv_manager kv_state sequence step",
    "turns": "errors inspection",
    "inspector": "beam errors inspection plan_questions readings scheduler sequence step waterfall",
    "engine_thread": "errors events inspection inspector scheduler sequence step turns",
    "engine": "checkpoint config engine_thread errors events inspection packing sampling script"
    " sequence step tokenizer torch_runner wgpu_runner",
    "bench": "",
    "bench.contestants": "blocks step",
    "bench.subject": "blocks checkpoint config device packing shapes wgpu_runner",
    "bench.work": "wgpu_runner",
    "bench.context": "bench.contestants bench.work blocks step wgpu_runner",
    "bench.quality": "bench.contestants blocks config divergence step step_buffer",
    "bench.floor": "bench.contestants blocks buffers calls commands kv_cache ops plan step"
    " step_buffer wgpu_runner",
    "bench.report": "bench.contestants bench.context bench.quality bench.work peaks step"
    " wgpu_runner",
    "bench.table": "",
    "bench.peers.peer": "bench.contestants errors",
    "bench.peers.torch": "bench.contestants bench.peers.peer bench.subject blocks packing step"
    " torch_llama torch_runner",
    "bench.peers.gguf_file": "bench.peers.peer bench.subject config packing",
    "bench.peers.onnx_file": "bench.peers.peer bench.subject config",
    "bench.peers.llama_cpp": "bench.peers.gguf_file bench.peers.peer bench.subject",
    "bench.peers.onnxruntime": "bench.peers.onnx_file bench.peers.peer bench.subject",
    "bench.peers.hf_folder": "bench.subject checkpoint config",
    "bench.peers.transformers": "bench.peers.hf_folder bench.peers.peer bench.subject",
    "bench.peers.scripts": "",
    "bench.peers.scripts.run_llama_cpp": "",
    "bench.peers.scripts.run_onnxruntime": "",
    "bench.peers.scripts.run_transformers": "",
    "bench.peers": "bench.peers.llama_cpp bench.peers.onnxruntime bench.peers.peer"
    " bench.peers.torch bench.peers.transformers bench.subject",
    "bench.__main__": "bench bench.contestants bench.context bench.floor bench.peers bench.quality"
    " bench.report bench.subject device errors packing probe shapes wgpu_runner",
    "models": "",
    "": "config device engine errors inventory probe probed sampling script step tensor_summary"
    " tokenizer",
}  # fmt: skip

APP_MAY_OPEN = {"gpu", "gpu.events", "gpu.inspection"}
"""The engine's face, the messages of a run, and what may be asked about one."""

# package: who may import it; a name ending in a dot stands for every room below it
OUTSIDE = {
    "wgpu": {
        "gpu.buffers",
        "gpu.calls",
        "gpu.device",
        "gpu.lanes",
        "gpu.kernels",
        "gpu.native",
        "gpu.timestamps",
    },
    "torch": {
        "gpu.torch_llama",
        "gpu.torch_reach",
        "gpu.torch_runner",
        "gpu.torch_statistics",
        "gpu.bench.peers.scripts.run_transformers",
        "app.tale.make.",
    },
    "transformers": {"gpu.bench.peers.scripts.run_transformers"},
    "tokenizers": {"gpu.tokenizer", "app.tale.make."},
    "safetensors": {"app.tale.make."},
    "gguf": {"gpu.bench.peers.gguf_file"},
    "onnx": {"gpu.bench.peers.onnx_file"},
    "llama_cpp": {"gpu.bench.peers.scripts.run_llama_cpp"},
    "onnxruntime": {"gpu.bench.peers.scripts.run_onnxruntime"},
    "flask": {"app."},
    "werkzeug": {"app."},
    "jinja2": {"app."},
    "click": {"app."},
}
NOT_AT_RUN_TIME = ("scipy", "pytest", "playwright")


def rooms(package: str) -> dict[str, Path]:
    """Module name to file, of every module in a package."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module a file imports, with the line; `from gpu import x` counts as gpu.x when that is
    a room."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: import by the whole name"
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield (inner if inner in ROOMS else module, node.lineno)


ROOMS = rooms("gpu") | rooms("app")


def test_every_room_of_the_engine_is_on_the_list() -> None:
    assert {f"gpu.{room}".rstrip(".") for room in GPU} == set(rooms("gpu"))


def test_rooms_are_listed_below_those_they_need() -> None:
    above: set[str] = set()
    for room, needs in GPU.items():
        assert set(needs.split()) <= above, f"{room} needs rooms that are listed below it"
        above.add(room)


@pytest.mark.parametrize("room", GPU)
def test_a_room_opens_only_the_doors_on_its_list(room: str) -> None:
    name = f"gpu.{room}".rstrip(".")
    allowed = {f"gpu.{need}" for need in GPU[room].split()}
    for module, line in imports(ROOMS[name]):
        if module.partition(".")[0] == "gpu":
            assert module in allowed, f"{ROOMS[name]}:{line}: {name} may not open {module}"


def test_the_engine_knows_nothing_of_the_app() -> None:
    for name, path in rooms("gpu").items():
        for module, line in imports(path):
            assert module.partition(".")[0] != "app", f"{path}:{line}: {name} imports {module}"


def test_the_app_knows_only_the_engines_face() -> None:
    for name, path in rooms("app").items():
        for module, line in imports(path):
            if module.partition(".")[0] == "gpu":
                assert module in APP_MAY_OPEN, f"{path}:{line}: {name} imports {module}"


@pytest.mark.parametrize("package", OUTSIDE)
def test_a_library_is_used_only_where_it_belongs(package: str) -> None:
    for name, path in ROOMS.items():
        for module, line in imports(path):
            if module.partition(".")[0] == package:
                at_home = any(
                    name == home or (home.endswith(".") and f"{name}.".startswith(home))
                    for home in OUTSIDE[package]
                )
                assert at_home, f"{path}:{line}: {name} imports {module}"


def test_what_only_tests_need_is_not_imported() -> None:
    for path in ROOMS.values():
        for module, line in imports(path):
            assert module.partition(".")[0] not in NOT_AT_RUN_TIME, f"{path}:{line}: {module}"


@pytest.mark.parametrize("package", ["gpu", "app"])
def test_importing_a_package_loads_neither_torch_nor_a_gpu_driver(package: str) -> None:
    code = f"import sys, {package}; print([m for m in ('torch', 'wgpu') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr
