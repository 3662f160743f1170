"""A model as an ONNX graph, in the form that onnxruntime's GPU providers run fastest.

The graph is the one that onnxruntime-genai's builder makes for its WebGPU provider: fused
(com.microsoft) operators for the norms, and for RoPE with attention over a cache that is an input
and an output; quantised matmuls as MatMulNBits.

    input_ids (1, n) int64, seqlens_k (1,) int32: tokens so far - 1, total_sequence_length () int32,
    past_key_values.I.key and .value (1, n_kv_heads, past, head_dim)
    → logits (1, n, vocab_size) or with `last_only` (1, 1, vocab_size), present.I.key and .value

transformers.js gives an attention_mask (1, total) int64 instead of the two lengths, and the graph
makes them of it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.bench.peers.peer import PeerMissing
from gpu.bench.subject import BenchModel
from gpu.config import ModelConfig

BLOCK = 32
BITS = {"q8": 8, "q4": 4}
OPSETS = {"": 21, "com.microsoft": 1}
IR_VERSION = 10
INT8_ACCURACY = 4
"""MatMulNBits' accuracy_level: quantise activations where integer dot products exist."""

Array = npt.NDArray[Any]


def write(
    subject: BenchModel,
    dtype: str,
    path: Path,
    context: int,
    last_only: bool = True,
    masked: bool = False,
) -> None:
    """Write the graph to `path` and its weights to `path`.data. `masked`: with an attention mask
    as input, for transformers.js. Raises PeerMissing if the `onnx` package is not installed or the
    graph does not support the model."""
    try:
        import onnx
    except ModuleNotFoundError:
        raise PeerMissing("the onnx package is not installed (pip install onnx)") from None
    if subject.config.attention_bias or subject.config.mlp_bias:
        raise PeerMissing("models with biases are not written as ONNX")
    with Path(f"{path}.data").open("wb") as data:
        graph = _Graph(onnx, dtype, data)
        _record(graph, subject, context, last_only, masked)
        onnx.save_model(graph.model(), path)


def write_for_transformers_js(subject: BenchModel, dtype: str, path: Path, context: int) -> None:
    """Write the graph and its weights to one file. Raises PeerMissing as `write` does."""
    with tempfile.TemporaryDirectory(prefix="tokenglass-onnx-") as folder:
        apart = Path(folder) / "model.onnx"
        write(subject, dtype, apart, context, masked=True)
        import onnx  # `write` has said it if this is missing

        onnx.save_model(onnx.load(apart), path)


def quantised(weight: Array, bits: int) -> tuple[Array, Array]:
    """Quantise weight (n, k) in blocks of 32.

    Returns (n, blocks, 32 · bits / 8) uint8 with zero point 2^(bits - 1), the first of two 4-bit
    numbers in the low half, and float32 scales (n, blocks).
    """
    n, k = weight.shape
    blocks = np.pad(weight, ((0, 0), (0, -k % BLOCK))).reshape(n, -1, BLOCK)
    middle = 1 << (bits - 1)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)
    scale = peak / -middle
    steps = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale != 0)
    values = np.clip(np.rint(steps) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        values = values[..., 0::2] | values[..., 1::2] << 4
    return values, scale[..., 0]


class _Graph:
    """Builder of the graph; writes weights to the data file as they are added."""

    def __init__(self, onnx: Any, dtype: str, data: Any) -> None:
        self.onnx = onnx
        self.dtype = dtype
        self.number = np.dtype(np.float32 if dtype == "f32" else np.float16)
        self.kind = onnx.helper.np_dtype_to_tensor_dtype(self.number)
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._data = data

    def input(self, name: str, kind: Any, *shape: int | str) -> str:
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, *shape: int | str) -> None:
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, self.kind, shape))

    def node(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        """Append an operator and return its first output. `domain` is an attribute."""
        made = self.onnx.helper.make_node(op, inputs, outputs, name=outputs[0], **attributes)
        self._nodes.append(made)
        return outputs[0]

    def weight(self, name: str, array: Array) -> str:
        proto = self.onnx.TensorProto()
        proto.name, proto.data_location = name, self.onnx.TensorProto.EXTERNAL
        proto.data_type = self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        proto.dims.extend(array.shape)
        place = {
            "location": Path(self._data.name).name,
            "offset": self._data.tell(),
            "length": array.nbytes,
        }
        for key, value in place.items():
            entry = proto.external_data.add()
            entry.key, entry.value = key, str(value)
        self._data.write(np.ascontiguousarray(array).tobytes())
        self._weights.append(proto)
        return name

    def matmul(self, x: str, weight: Array, name: str) -> str:
        """Append x · weightᵀ for weight (n, k), stored in the model's dtype."""
        bits = BITS.get(self.dtype)
        if bits is None:
            stored = self.weight(f"{name}.weight", weight.T.astype(self.number))
            return self.node("MatMul", [x, stored], [name])
        values, scales = quantised(weight, bits)
        return self.node(
            "MatMulNBits",
            [
                x,
                self.weight(f"{name}.weight", values),
                self.weight(f"{name}.scales", scales.reshape(-1).astype(self.number)),
            ],
            [name],
            domain="com.microsoft",
            N=weight.shape[0],
            K=weight.shape[1],
            bits=bits,
            block_size=BLOCK,
            accuracy_level=INT8_ACCURACY,
        )

    def model(self) -> Any:
        helper = self.onnx.helper
        graph = helper.make_graph(
            self._nodes, "llama", self.inputs, self.outputs, initializer=self._weights
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _record(
    graph: _Graph, subject: BenchModel, context: int, last_only: bool, masked: bool
) -> None:
    config, read = subject.config, subject.checkpoint.read_f32
    types = graph.onnx.TensorProto
    ids = graph.input("input_ids", types.INT64, 1, "n")
    if masked:
        _lengths_of_mask(graph)
    else:
        graph.input("seqlens_k", types.INT32, 1)
        graph.input("total_sequence_length", types.INT32)
    _rope_cos_sin(graph, config, context)
    embedding = read("model.embed_tokens.weight")
    table = graph.weight("embedding", embedding.astype(graph.number))
    x = graph.node("Gather", [table, ids], ["embed"])
    update = None
    for i in range(config.n_layers):
        x, normed = _norm(graph, subject, f"model.layers.{i}.input_layernorm", x, update)
        update = _attention(graph, subject, i, normed)
        x, normed = _norm(graph, subject, f"model.layers.{i}.post_attention_layernorm", x, update)
        update = _mlp(graph, subject, i, normed)
    _, normed = _norm(graph, subject, "model.norm", x, update)
    if last_only:
        last = graph.weight("last", np.array([-1], np.int64))
        normed = graph.node("Gather", [normed, last], ["last_row"], axis=1)
    graph.matmul(normed, embedding if config.tie_embeddings else read("lm_head.weight"), "logits")
    graph.output("logits", 1, "rows", config.vocab_size)


def _lengths_of_mask(graph: _Graph) -> None:
    """Append the two lengths of a text without padding, from its attention mask."""
    types = graph.onnx.TensorProto
    mask = graph.input("attention_mask", types.INT64, 1, "total")
    one = graph.weight("one", np.array([1], np.int64))
    n_tokens = graph.node("ReduceSum", [mask, one], ["n_tokens"], keepdims=0)
    before = graph.node("Sub", [n_tokens, one], ["n_before"])
    graph.node("Cast", [before], ["seqlens_k"], to=types.INT32)
    n_all = graph.node("Size", [mask], ["n_all"])
    graph.node("Cast", [n_all], ["total_sequence_length"], to=types.INT32)


def _rope_cos_sin(graph: _Graph, config: ModelConfig, context: int) -> None:
    """Add tables (context, head_dim / 2) of cosine and sine."""
    angles = np.outer(np.arange(context), config.rope.inv_freq(config.head_dim))
    graph.weight("cos_cache", np.cos(angles).astype(graph.number))
    graph.weight("sin_cache", np.sin(angles).astype(graph.number))


def _norm(
    graph: _Graph, subject: BenchModel, source: str, x: str, update: str | None
) -> tuple[str, str]:
    """Append the residual stream plus `update`, and its RMSNorm."""
    gain = subject.checkpoint.read_f32(f"{source}.weight")
    weight = graph.weight(f"{source}.weight", gain.astype(graph.number))
    epsilon = subject.config.norm_eps
    if update is None:
        normed = graph.node("SimplifiedLayerNormalization", [x, weight], [source], epsilon=epsilon)
        return x, normed
    outputs = [source, "", "", f"{source}.stream"]
    graph.node(
        "SkipSimplifiedLayerNormalization",
        [x, update, weight],
        outputs,
        domain="com.microsoft",
        epsilon=epsilon,
    )
    return outputs[3], source


def _attention(graph: _Graph, subject: BenchModel, i: int, x: str) -> str:
    config, read, name = subject.config, subject.checkpoint.read_f32, f"model.layers.{i}.self_attn"
    parts = [read(f"{name}.{p}_proj.weight") for p in "qkv"]
    qkv = graph.matmul(x, np.concatenate(parts), f"{name}.qkv")
    cached = (1, config.n_kv_heads, "past", config.head_dim)
    past = [graph.input(f"past_key_values.{i}.{p}", graph.kind, *cached) for p in ("key", "value")]
    present = [f"present.{i}.{p}" for p in ("key", "value")]
    for output in present:
        graph.output(output, 1, config.n_kv_heads, "total", config.head_dim)
    attn_out = graph.node(
        "GroupQueryAttention",
        [qkv, "", "", *past, "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"],
        [f"{name}.attn_out", *present],
        domain="com.microsoft",
        num_heads=config.n_heads,
        kv_num_heads=config.n_kv_heads,
        scale=config.head_dim**-0.5,
        do_rotary=1,
        rotary_interleaved=0,
    )
    return graph.matmul(attn_out, read(f"{name}.o_proj.weight"), f"{name}.out")


def _mlp(graph: _Graph, subject: BenchModel, i: int, x: str) -> str:
    read, name = subject.checkpoint.read_f32, f"model.layers.{i}.mlp"
    gate = graph.matmul(x, read(f"{name}.gate_proj.weight"), f"{name}.gate")
    up = graph.matmul(x, read(f"{name}.up_proj.weight"), f"{name}.up")
    sigmoid = graph.node("Sigmoid", [gate], [f"{name}.sigmoid"])
    activated = graph.node("Mul", [gate, sigmoid], [f"{name}.silu"])
    ffn_hidden = graph.node("Mul", [activated, up], [f"{name}.ffn_hidden"])
    return graph.matmul(ffn_hidden, read(f"{name}.down_proj.weight"), f"{name}.down")
