"""Files for other engines hold the model's weights, and a missing engine is reported."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from gpu.bench import quality
from gpu.bench.peers import PEERS, SERVING_PEERS, PeerMissing, gguf_file, hf_folder, onnx_file
from gpu.bench.peers.peer import ChildPeer
from gpu.bench.subject import BenchModel
from gpu.checkpoint.reader import Checkpoint
from gpu.config import ModelConfig
from gpu.reference.ops import apply_rope
from gpu.webgpu.device import Device
from tests.gpu.models import random_llama

NAMES = ("head128_llama3", "odd100_tied", "tiny")
PYTHONS = dict(
    pair.split("=", 1) for pair in os.environ.get("TOKENGLASS_PEER_PYTHONS", "").split() if pair
)
"""Pythons with the peers, e.g. "llama.cpp=/opt/llama/bin/python"; default: this Python."""

HALF = 2.0**-11
SMALLEST = 2.0**-24
"""Rounding error of float16: relative, and absolute for small numbers."""
ROUNDING = {"f32": 0.0, "f16": HALF, "q8": 1 / 127 + HALF, "q4": 1 / 8 + HALF}
"""Rounding error of a weight, relative to the largest of its block: one quantisation step, because
the largest may be clipped, and the rounding of the scale."""


def subject(name: str) -> BenchModel:
    return BenchModel.from_folder(random_llama.folder(name))


def close(got: Any, want: Any, dtype: str) -> None:
    """Equal but for rounding; blocks of 32 round by their largest weight."""
    error = np.abs(got - want)
    largest = np.abs(want)
    if dtype in ("q8", "q4"):
        width = -(-want.shape[-1] // 32) * 32
        padded = np.pad(largest, ((0, 0), (0, width - want.shape[-1])))
        blocks = padded.reshape(len(want), -1, 32).max(-1)
        largest = np.repeat(blocks, 32, axis=1)[:, : want.shape[-1]]
    assert (error <= ROUNDING[dtype] * largest + SMALLEST * (dtype != "f32")).all()


# ---- GGUF ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q4"])
@pytest.mark.parametrize("name", [*NAMES, "head100_all_bias"])
def test_a_gguf_file_holds_every_weight(name: str, dtype: str, tmp_path: Path) -> None:
    model = subject(name)
    gguf_file.write(model, dtype, tmp_path / "model.gguf")
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    entries = list(gguf_file.entries(model))
    used = {entry.source for entry in entries}
    tied = {"lm_head.weight"} if model.config.tie_embeddings else set()
    assert used == set(model.checkpoint.names()) - tied
    for entry in entries:
        tensor = tensors.pop(entry.name)
        got = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        want = model.checkpoint.read_f32(entry.source)
        if entry.heads:
            want = gguf_file.interleaved(want, entry.heads)
        exact = tensor.tensor_type.name == "F32"
        kinds = {"Q8_0": "q8", "Q4_0": "q4", "F16": "f16"}
        assert want.ndim == 2 or exact
        close(got.reshape(want.shape), want, "f32" if exact else kinds[tensor.tensor_type.name])
    assert set(tensors) == ({"rope_freqs.weight"} if name == "head128_llama3" else set())


def test_a_gguf_file_says_what_the_model_is(tmp_path: Path) -> None:
    model = subject("head128_llama3")
    gguf_file.write(model, "f16", tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    config = model.config
    found = {name: field.contents() for name, field in fields.items()}
    assert found["general.architecture"] == "llama"
    assert found["llama.attention.head_count_kv"] == config.n_kv_heads
    assert found["llama.rope.freq_base"] == config.rope.theta
    assert found["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(config.norm_eps)
    assert found["llama.vocab_size"] == config.vocab_size


def test_gguf_rotates_neighbours_where_this_engine_rotates_halves() -> None:
    """RoPE commutes with the reordering of rows."""
    rng = np.random.default_rng(0)
    heads, head_dim = 3, 8
    q = rng.normal(size=(heads * head_dim, 1))
    angles = rng.normal(size=head_dim // 2)
    rotations = np.stack([np.cos(angles), np.sin(angles)], -1)
    ours = apply_rope(q.reshape(heads, head_dim), rotations)
    pairs = gguf_file.interleaved(q, heads).reshape(heads, -1, 2)
    turns = np.exp(1j * angles)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turns
    theirs = np.stack([turned.real, turned.imag], -1).reshape(heads, head_dim)
    again = gguf_file.interleaved(ours.reshape(-1, 1), heads).reshape(heads, head_dim)
    np.testing.assert_allclose(theirs, again, atol=1e-12)


# ---- ONNX ------------------------------------------------------------------------------------


LENGTHS = {"seqlens_k", "total_sequence_length"}


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q4"])
@pytest.mark.parametrize("name", NAMES)
def test_an_onnx_graph_holds_every_weight(name: str, dtype: str, tmp_path: Path) -> None:
    model = subject(name)
    onnx_file.write(model, dtype, tmp_path / "model.onnx", context=64)
    graph = onnx.load(tmp_path / "model.onnx").graph
    weights = {w.name: numpy_helper.to_array(w, str(tmp_path)) for w in graph.initializer}
    read, config = model.checkpoint.read_f32, model.config
    head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    close(_product(weights, "logits", config.hidden_size), read(head), dtype)
    for i in range(config.n_layers):
        prefix = f"model.layers.{i}"
        qkv = np.concatenate([read(f"{prefix}.self_attn.{p}_proj.weight") for p in "qkv"])
        close(_product(weights, f"{prefix}.self_attn.qkv", config.hidden_size), qkv, dtype)
        down = read(f"{prefix}.mlp.down_proj.weight")
        close(_product(weights, f"{prefix}.mlp.down", config.intermediate_size), down, dtype)
        gain = weights[f"{prefix}.input_layernorm.weight"]
        close(gain, read(f"{prefix}.input_layernorm.weight"), "f16")
    assert len([n for n in graph.node if n.op_type == "GroupQueryAttention"]) == config.n_layers
    assert len(graph.output) == 1 + 2 * config.n_layers


def _product(weights: dict[str, Any], name: str, k: int) -> Any:
    """Return the matrix (n, k) of a matmul, as float32."""
    stored = weights[f"{name}.weight"]
    if stored.dtype != np.uint8:
        return stored.T.astype(np.float32)
    n, blocks, n_bytes = stored.shape
    if n_bytes == 16:
        stored = np.stack([stored & 15, stored >> 4], -1).reshape(n, blocks, 32)
    scales = weights[f"{name}.scales"].reshape(n, blocks, 1).astype(np.float32)
    middle = 8 if n_bytes == 16 else 128
    return ((stored.astype(np.float32) - middle) * scales).reshape(n, -1)[:, :k]


def test_models_with_biases_are_not_written_as_onnx(tmp_path: Path) -> None:
    with pytest.raises(PeerMissing, match="biases"):
        onnx_file.write(subject("head100_all_bias"), "f32", tmp_path / "model.onnx", context=64)


def test_the_graph_of_transformers_js_makes_the_lengths_of_a_mask(tmp_path: Path) -> None:
    """In one file, with the same operators otherwise."""
    model = subject(NAMES[0])
    onnx_file.write_for_transformers_js(model, "f32", tmp_path / "masked.onnx", context=64)
    onnx_file.write(model, "f32", tmp_path / "model.onnx", context=64)
    masked, graph = (onnx.load(tmp_path / f"{name}.onnx").graph for name in ("masked", "model"))
    names = {each.name for each in masked.input}
    assert names == {each.name for each in graph.input} - LENGTHS | {"attention_mask"}
    made = {output for node in masked.node for output in node.output}
    assert made >= LENGTHS
    assert [node.op_type for node in masked.node][5:] == [node.op_type for node in graph.node]
    assert not any(weight.external_data for weight in masked.initializer)


# ---- Hugging Face ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "q4"])
@pytest.mark.parametrize("name", [*NAMES, "llama3_old_shards", "linear_old", "head100_all_bias"])
def test_a_hugging_face_folder_is_the_model(name: str, dtype: str, tmp_path: Path) -> None:
    model = subject(name)
    hf_folder.write(model, dtype, tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    assert config == replace(model.config, torch_dtype=None)
    written = Checkpoint.open(tmp_path)
    assert set(written.names()) == set(model.checkpoint.names())
    for tensor in written.names():
        want = model.checkpoint.read_f32(tensor)
        assert written.dtype(tensor) == ("F32" if dtype == "f32" else "F16")
        close(written.read_f32(tensor), want, "f32" if dtype == "f32" else "f16")


def test_a_large_matrix_is_written_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = BenchModel.from_shape("tiny")
    monkeypatch.setattr(hf_folder, "ROWS_BYTES", 7 * 4 * model.config.hidden_size)
    hf_folder.write(model, "f32", tmp_path)
    written = Checkpoint.open(tmp_path)
    for tensor in written.names():
        np.testing.assert_array_equal(
            written.read_f32(tensor), model.checkpoint.read_f32(tensor), tensor
        )


# ---- engines ---------------------------------------------------------------------------------

CHILDREN = ["llama.cpp", "onnxruntime", "transformers"]
SLOW = ["transformers", "torch-compiled"]


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """Python that has NumPy only."""
    for package in (Path(np.__file__).parent, Path(np.__file__).parents[1] / "numpy.libs"):
        if package.exists():
            (tmp_path / package.name).symlink_to(package)
    bare = tmp_path / "python"
    bare.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" -S "$@"\n', "utf-8"
    )
    bare.chmod(0o755)
    return str(bare)


@pytest.mark.parametrize("peer", CHILDREN)
def test_an_engine_that_is_not_installed_is_named(peer: str, bare_python: str) -> None:
    with pytest.raises(PeerMissing, match=r"not installed \(pip install"):
        PEERS[peer](subject("tiny"), "f16", 16, bare_python)


@pytest.mark.parametrize("peer", SERVING_PEERS)
def test_a_serving_engine_that_is_not_installed_is_named(peer: str, bare_python: str) -> None:
    with pytest.raises(PeerMissing, match=r"not installed \(pip install"):
        SERVING_PEERS[peer](subject("tiny"), "f16", 16, 2, bare_python)


@pytest.mark.slow
@pytest.mark.parametrize("peer", SERVING_PEERS)
def test_a_serving_engine_writes_every_stream(peer: str) -> None:
    """Three streams of prompts of unlike lengths, then fewer again; each token has its time."""
    try:
        engine = SERVING_PEERS[peer](subject("head128_llama3"), "f32", 64, 3, PYTHONS.get(peer))
    except PeerMissing as missing:
        pytest.skip(f"{peer}: {missing}")
    prompts = [random_llama.ids("head128_llama3", n) for n in (9, 1, 24)]
    for asked in (prompts, prompts[:1]):
        found = engine.streams(asked, 6)
        assert [len(times) for times in found.times] == [6] * len(asked)
        for start, times in zip(found.asked, found.times, strict=True):
            assert times == sorted(times)
            assert times[0] > start
        assert found.cpu_s > 0
    engine.close()


XLLAMACPP = """
import json, threading
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

__version__ = "1.0"
Type = Enum("Type", "DEVICE_TYPE_CPU DEVICE_TYPE_IGPU")


def CommonParams():
    return SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )


def get_device_info():
    return [{"type": kind, "description": f"made by {kind.value}"} for kind in Type]


class Answers(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["ignore_eos"] and asked["temperature"] == 0.8
        self.send_response(200)
        self.end_headers()
        words = asked["prompt"].replace("><", "> <").split()
        for text in ("".join(words[:2]), *words[2:], ""):
            event = json.dumps({"choices": [{"text": text}]})
            self.wfile.write(f"data: {event}\\n\\n".encode())
        self.wfile.write(b"data: [DONE]\\n\\n")


class Server:
    def __init__(self, params):
        assert (params.n_parallel, params.n_ctx) == (2, 2 * 17)
        server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{server.server_port}"
"""
"""A package with the names of xllamacpp, whose server answers with the prompt, two tokens at once
first."""


def test_every_token_that_a_server_streams_has_its_time(tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text(XLLAMACPP, "utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n', "utf-8")
    python.chmod(0o755)
    engine = SERVING_PEERS["llama-server"](subject("tiny"), "f16", 16, 2, str(python))
    assert engine.device == "made by 2, xllamacpp 1.0"
    for times in engine.streams([[1, 12, 7], [3, 3, 4]], 3).times:
        assert times[0] == times[1] <= times[2]
    with pytest.raises(PeerMissing, match="a stream has 2 tokens, not 3"):
        engine.streams([[1, 12, 7], [3, 3]], 3)
    engine.close()


def test_an_engine_that_fails_is_quoted(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit('no such luck')\n", "utf-8")
    folder = tempfile.TemporaryDirectory()
    with pytest.raises(PeerMissing, match="peer's process ended with status 1: no such luck"):
        ChildPeer("peer", script, [], None, folder)
    assert not Path(folder.name).exists()


def test_an_engine_in_a_process_of_its_own_is_timed(tmp_path: Path) -> None:
    script = tmp_path / "answers.py"
    script.write_text(
        "import json, sys\n"
        "print(json.dumps({'device': 'a device'}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    assert json.loads(line) == {'prompt': [1, 2, 3, 4], 'tokens': 6}\n"
        "    print(json.dumps({'prefill_s': 2, 'decode_s': 3}), flush=True)\n",
        "utf-8",
    )
    peer = ChildPeer("peer", script, [], None, tempfile.TemporaryDirectory())
    peer.run([1, 2, 3, 4], 6)
    with pytest.raises(PeerMissing, match="AssertionError"):
        peer.run([1], 6)
    peer.close()
    assert peer.device == "a device"
    assert (peer.figures.prefill_tok_s, peer.figures.decode_tok_s) == ([2], [2])


@pytest.mark.slow
def test_torch_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(PeerMissing, match=r"compiled does not run here: .*/nowhere/c\+\+"):
        PEERS["torch-compiled"](subject("tiny"), "f32", 16, None)


@pytest.mark.parametrize(
    "peer", [*CHILDREN[:2], *(pytest.param(peer, marks=pytest.mark.slow) for peer in SLOW)]
)
def test_an_engine_computes_the_same_model(device: Device, peer: str) -> None:
    model = subject("head128_llama3")
    ids = random_llama.ids("head128_llama3", 24)
    try:
        engine = PEERS[peer](model, "f32", 64, PYTHONS.get(peer))
    except PeerMissing as missing:
        pytest.skip(f"{peer}: {missing}")
    assert isinstance(engine, ChildPeer)
    engine.run(ids, 8)  # its cache is not reused
    theirs = np.array(engine.logits(ids), np.float32)
    engine.close()
    ours = quality.all_logits(model.runner(device, "f32", 64), ids)
    # llama.cpp stores keys and values as float16.
    assert np.abs(theirs - ours).max() <= 1e-2 * np.abs(ours).max()
