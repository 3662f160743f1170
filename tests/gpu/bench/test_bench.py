"""The benchmark prints its figures, its floor does the model's work, and its table is written into
docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpu.bench.__main__
import gpu.bench.serving.__main__
from gpu.bench import table
from gpu.bench.__main__ import main
from gpu.bench.contestants import Figures, gpu_gap_share, in_turns, speedup
from gpu.bench.floor import Floor, touch_kv
from gpu.bench.peers.peer import StreamTimes
from gpu.bench.report import step_times
from gpu.bench.serving.__main__ import main as serving
from gpu.bench.serving.streams import StreamsResult
from gpu.bench.subject import BenchModel
from gpu.bench.work import kv_bytes, prefill_flops
from gpu.checks.rig import op_config
from gpu.kv.blocks import BLOCK_TOKENS, KvShape
from gpu.kv.pools import KvPools
from gpu.step import Row, StepResult
from gpu.webgpu.device import Device
from gpu.webgpu.plan import Dispatch, Plan
from tests.gpu.ops.rig import Rig

KEYS = {
    "model", "dtype", "kv_dtype", "device", "prompt", "tokens", "decode_tok_s", "prefill_tok_s",
    "decode_over_floor", "prefill_over_floor", "dispatches_per_token", "dispatches_per_layer",
    "step_ms", "encode_ms", "gpu_ms", "wait_ms", "readback_ms", "host_us_per_dispatch",
    "host_finish_us_per_dispatch", "submit_ms", "gpu_gap_share", "bytes_per_token", "memory_gb_s",
    "memory_read_bytes", "bandwidth_share", "fma_gflop_s", "prefill_fma_share", "contestants",
    "peers", "peers_prefill", "peer_devices", "peers_missing", "contexts", "kl", "same_top",
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Run everything that needs no other engine once, small; return the JSON and what was
    appended."""
    path = tmp_path_factory.mktemp("bench") / "results.jsonl"
    path.write_text("before\n", "utf-8")
    arguments = (
        "--shape tiny --prompt 16 --tokens 4 --repeat 1 --floor --capture --kl 64 --peer torch"
    )
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("builtins.print", lambda line: printed.append(line))
        code = main([*arguments.split(), "--context", "64,16", "--append", str(path)])
    assert code == 0
    return json.loads(printed[-1]), path.read_text("utf-8")


@pytest.mark.ci
@pytest.mark.slow
def test_the_last_line_has_every_figure(result: tuple[dict[str, Any], str]) -> None:
    found, appended = result
    assert set(found) == KEYS
    assert (found["model"], found["dtype"], found["kv_dtype"]) == ("tiny", "f16", "f16")
    assert appended == f"before\n{json.dumps(found)}\n"
    assert {name for name, value in found.items() if value is None} <= {"gpu_gap_share", "gpu_ms"}


@pytest.mark.ci
@pytest.mark.ci
def test_the_figures_fit_together(result: tuple[dict[str, Any], str]) -> None:
    found, _ = result
    speeds = found["contestants"]
    assert set(speeds) == {"tokenglass", "captured", "floor", "torch"}
    assert set(found["peers"]) == set(found["peers_prefill"]) == {"torch"}
    own, floor, torch = (speeds[name]["decode_tok_s"] for name in ("tokenglass", "floor", "torch"))
    assert found["decode_tok_s"] == pytest.approx(own, rel=0.01)
    assert found["decode_over_floor"] == pytest.approx(floor / own, rel=0.01)
    assert found["peers"]["torch"] == pytest.approx(own / torch, rel=0.01, abs=0.01)
    assert found["step_ms"] == pytest.approx(1e3 / own, rel=0.01)
    host_us = found["host_us_per_dispatch"] + found["host_finish_us_per_dispatch"]
    assert host_us * found["dispatches_per_token"] / 1e3 == pytest.approx(
        found["encode_ms"], abs=2e-3
    )
    assert min(found["host_us_per_dispatch"], found["host_finish_us_per_dispatch"]) > 0
    assert 0 <= found["submit_ms"] <= found["wait_ms"]
    assert 0 <= found["gpu_gap_share"] < 1
    share = tiny_flops(16) / 16 * found["prefill_tok_s"] / (1e9 * found["fma_gflop_s"])
    assert found["prefill_fma_share"] == pytest.approx(share, rel=0.05, abs=1e-3)
    assert found["dispatches_per_layer"] <= 6
    assert 0 < found["kl"] < 1e-5
    assert found["same_top"] > 0.9


@pytest.mark.ci
def test_contexts_are_listed_with_the_bytes_they_read(result: tuple[dict[str, Any], str]) -> None:
    short, long = result[0]["contexts"]
    assert (short["context"], long["context"]) == (16, 64)
    assert (short["time_growth"], short["bytes_growth"]) == (1, 1)
    bytes_per_token = 6 * 2 * 4 * 32 * 2  # layers, keys and values, heads, head_dim, bytes
    assert (short["kv_bytes"], long["kv_bytes"]) == (16 * bytes_per_token, 64 * bytes_per_token)
    weights = short["weight_bytes"]
    growth = (weights + long["kv_bytes"]) / (weights + short["kv_bytes"])
    assert long["bytes_growth"] == pytest.approx(growth, abs=1e-3)


def test_a_folder_without_a_model_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        (main, "--tokens 0", "--tokens: expected a number of at least 1, but got '0'"),
        (main, "--prompt -1", "--prompt: expected"),
        (main, "--repeat 0", "--repeat: expected a number of at least 1"),
        (main, "--context 64,x", "--context: expected a number of at least 1, but got 'x'"),
        (main, "--kl 1", "--kl: expected a number of at least 2"),
        (main, "--append nowhere/bench.jsonl", "should be a file in a folder that exists"),
        (serving, "--tokens 1", "--tokens: expected a number of at least 2"),
        (serving, "--streams 1,0", "--streams: expected a number of at least 1"),
        (serving, "--repeat 0", "--repeat: expected"),
        (serving, "--long 9 --beside 0", "--beside: expected"),
        (serving, "--append nowhere/bench.jsonl", "should be a file in a folder that exists"),
    ],
)
def test_what_cannot_be_measured_or_written_is_refused_at_once(
    command: Callable[[list[str]], int],
    arguments: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in (gpu.bench.__main__, gpu.bench.serving.__main__):
        monkeypatch.setattr(module, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(SystemExit):
        command(["--shape", "tiny", *arguments.split()])
    assert says in capsys.readouterr().err


def test_a_context_the_model_was_not_made_for_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--shape", "tiny", "--context", "16,20000"]) == 2
    assert "a context of 20008 tokens was requested" in capsys.readouterr().err


def tiny_flops(n_prompt: int) -> int:
    """Return the operations of a prompt of the shape "tiny", counted one by one: queries 8 × 32,
    keys and values 4 × 32 wide."""
    hidden, inner, vocab, layers = 256, 768, 4096, 6
    products = hidden * (256 + 128 + 128) + 256 * hidden + 3 * hidden * inner
    keys_seen = sum(range(n_prompt + 1))
    return 2 * (layers * (n_prompt * products + 2 * 256 * keys_seen) + hidden * vocab)


def test_the_operations_of_a_prompt_are_those_of_its_multiplications(device: Device) -> None:
    runner = BenchModel.from_shape("tiny").runner(device, "f32", 32)
    assert prefill_flops(runner, 5) == tiny_flops(5)


def test_dispatches_are_those_of_the_plan_that_ran(device: Device) -> None:
    """A long context has a merge of its splits in each layer."""
    runner = BenchModel.from_shape("tiny").runner(device, "f16", 1200)
    figures = Figures(decode_tok_s=[100.0], encode_ms=[0.5], finish_ms=[0.2])
    short, long = (step_times(figures, runner, context) for context in (16, 1100))
    assert long["dispatches_per_layer"] == short["dispatches_per_layer"] + 1
    assert long["dispatches_per_token"] == short["dispatches_per_token"] + 6
    us = 1e3 * 0.3 / long["dispatches_per_token"]
    assert long["host_us_per_dispatch"] == pytest.approx(us, abs=0.01)


# ---- the floor -------------------------------------------------------------------------------


def test_the_bytes_of_a_context_are_those_of_the_chosen_cache(device: Device) -> None:
    """The shape "tiny" in q8 takes a byte per number and a word for the scale of 32."""
    runner = BenchModel.from_shape("tiny").runner(device, "f16", 32, "q8")
    assert kv_bytes(runner, 20) == 20 * 6 * 2 * 4 * (32 + 4)
    assert runner.memory.kv_cache == kv_bytes(runner, 32)
    touched = Floor(runner).plan(1, 1, 32).dispatches
    sizes = {d.kernel.constants["KEY_VEC4S"] for d in touched if d.kernel.name == "bench/touch_kv"}
    assert sizes == {16 * 4 * (32 + 4) // 16}


@pytest.mark.parametrize("dtype", ["f32", "q4"])
@pytest.mark.parametrize("n_rows", [1, 128])
def test_the_floor_has_the_matmuls_and_bytes_of_the_model(
    device: Device, dtype: str, n_rows: int
) -> None:
    runner = BenchModel.from_shape("tiny").runner(device, dtype, 160)
    real = runner.plan_for(n_rows, 1, capture=False).plan
    bare = Floor(runner).plan(n_rows, 1, 160)
    assert [_product(d) for d in _products(bare)] == [_product(d) for d in _products(real)]
    for dispatch in _products(bare):
        fusions = ("NORM", "PRE_NORMED", "BIAS", "GATED", "RESIDUAL")
        assert all(f"override {name}: bool = false" in dispatch.kernel.source for name in fusions)
        assert not any(dispatch.kernel.constants.get(name) for name in fusions)
    touched = [d for d in bare.dispatches if d.kernel.name == "bench/touch_kv"]
    caches = [(d.tensors["k_pool"], d.tensors["v_pool"]) for d in touched]
    assert caches == list(zip(runner.pools.keys, runner.pools.values, strict=True))
    assert len(bare.dispatches) == len(_products(bare)) + len(touched)


def _products(plan: Plan) -> list[Dispatch]:
    return [d for d in plan.dispatches if d.kernel.name in ("matmul", "qkv")]


def _product(dispatch: Dispatch) -> tuple[object, ...]:
    """Bindings and tiling of a matmul."""
    return (
        dispatch.label,
        dispatch.tensors["weight"],
        dispatch.tensors["weight"].n_bytes,
        (dispatch.grid),
    )


@pytest.mark.parametrize(("dtype", "head_dim"), [("f32", 20), ("f16", 20), ("q8q4", 24)])
@pytest.mark.parametrize("position", [0, 15, 16, 150])
def test_touch_kv_reads_every_block_of_the_sequence_once(
    rig: Rig, dtype: str, head_dim: int, position: int
) -> None:
    """Each word counts into the sum of exactly one invocation."""
    config = op_config(n_layers=1, n_heads=6, n_kv_heads=3, head_dim=head_dim)
    pools = KvPools(config, KvShape(n_blocks=30, context=256), dtype, 2, rig.memory)
    rng = np.random.default_rng(position)
    words = []
    for pool in (pools.keys[0], pools.values[0]):
        data = rng.integers(0, 1 << 32, pool.n_bytes // 4, dtype=np.uint32)
        rig.memory.write(pool, data)
        words.append(data.reshape(30, -1))
    table_ = rng.permutation(30)[:16]
    pools.set_blocks(1, table_.tolist())
    batch = rig.batch([Row(1, position, 0)])
    q, out = rig.input("q", np.full((1, 8), 0.5)), rig.output(4, 128)
    rig.run(lambda rec: touch_kv(rec, batch, "touch", q, pools, 0, 160, out.tensor))
    got = rig.memory.read(out.tensor).reshape(-1)
    n_written = int(np.isfinite(got).sum())
    assert n_written % 64 == 0
    blocks = table_[: position // BLOCK_TOKENS + 1]
    sums = np.zeros(n_written, np.uint64)
    for w in words:
        touched = w[blocks].reshape(-1, 4).astype(np.uint64).sum(1)
        np.add.at(sums, np.arange(len(touched)) % n_written, touched)
    np.testing.assert_array_equal(got[:n_written], 0.5 + (sums % 256).astype(np.float32))


def test_the_gap_is_what_the_device_idles_between_steps() -> None:
    spans = [(100.0, 3.0), (103.0, 2.0), (107.0, 1.0)]  # 2 of 8 ms between the last two
    results = [StepResult((), gpu_began_ms=began, gpu_ms=ms) for began, ms in spans]
    assert gpu_gap_share(results) == pytest.approx(2 / 8)
    assert gpu_gap_share([StepResult((), gpu_ms=1.0)] * 3) is None


class Recorded:
    """A contestant that records when it ran."""

    def __init__(self, name: str, ran: list[str]) -> None:
        self.name, self.figures, self.ran = name, Figures(), ran

    def run(self, prompt: list[int], n_tokens: int) -> None:
        self.ran.append(self.name)
        self.figures.decode_tok_s.append(n_tokens)


def test_every_second_round_runs_in_reverse_order() -> None:
    ran: list[str] = []
    contestants = [Recorded(name, ran) for name in "abc"]
    in_turns(contestants, [1], 4, 3)
    assert "".join(ran) == "abc" + "abc" + "cba" + "abc"
    assert [c.figures.decode_tok_s for c in contestants] == [[4, 4, 4]] * 3  # not the first


def test_speeds_are_compared_within_a_round() -> None:
    own = Figures(decode_tok_s=[20.0, 8.0, 12.0])  # a machine that became half as fast
    other = Figures(decode_tok_s=[10.0, 4.0, 4.0])
    assert speedup(own, other, "decode_tok_s") == 2.0


# ---- the tables of the documents -------------------------------------------------------------

RESULT = {
    "model": "tiny", "dtype": "q4", "device": "a device", "prefill_tok_s": 1234.5,
    "decode_tok_s": 98.76, "prefill_over_floor": 1.2, "decode_over_floor": None,
    "contestants": {"captured": {"decode_tok_s": 77.7}}, "peers": {"torch": 2.5}, "contexts": [
        {"context": 1024, "step_ms": 10.04, "time_growth": 1.5, "bytes_growth": 1.75}
    ],
}  # fmt: skip


def test_the_table_stands_between_its_markers() -> None:
    before = "# Title\n<!-- bench -->\nold | rows\n<!-- /bench -->\nAfter\n"
    plain = RESULT | {"dtype": "f16", "contestants": {}, "peers": {}, "contexts": []}
    text = table.replace_section(before, "bench", table.table([RESULT, plain]))
    assert text.startswith("# Title\n<!-- bench -->\nOn a device:\n")
    assert text.endswith("\n<!-- /bench -->\nAfter\n")
    assert "| tiny | q4 | 1,234 | 98.8 | 77.7 | 1.20 | – | 2.50 |\n" in text
    assert "| tiny | f16 | 1,234 | 98.8 | – | 1.20 | – | – |\n" in text
    assert "| model | weights | 1,024 |\n" in text
    assert "| tiny | q4 | 10.0 (1.50, 1.75) |\n" in text
    assert "old" not in text
    assert table.replace_section(text, "bench", table.table([RESULT, plain])) == text


def streams_of(n: int, tok_s: float) -> dict[str, float]:
    return {
        "streams": n, "tok_s": tok_s, "cpu_ms": 2.345, "ttft_p50": 20.0, "ttft_p95": 41.0,
        "inter_token_p50": 5.0, "inter_token_p95": 9.0,
    }  # fmt: skip


SERVED = {
    "kind": "serving", "model": "tiny", "dtype": "q8", "device": "a device", "prompt": 32,
    "tokens": 64, "streams": [streams_of(2, 400.0), streams_of(8, 900.0)],
    "with_drafts": {"ngram": [streams_of(8, 1000.0)]},
    "peers": {
        "another": {"device": "a CPU", "streams": [streams_of(1, 50.0), streams_of(8, 75.0)]}
    },
    "missing": {"a third": "not installed (pip install third)"},
    "long_prompt": [{
        "chunks": "short", "streams": 4, "n_prompt": 4000, "before_p50": 10.0, "beside_p50": 17.0,
        "beside_p95": 19.0, "beside_max": 30.0, "ttft": 12_345.0,
    }],
}  # fmt: skip


def test_a_line_of_the_serving_benchmark_becomes_a_section_of_its_own(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text("<!-- bench -->\n<!-- /bench -->\n<!-- serving -->\n<!-- /serving -->\n")
    lines = tmp_path / "bench.jsonl"
    lines.write_text("\n".join(json.dumps(result) for result in (RESULT, SERVED)))
    table.main(str(lines), str(document))
    models, _, served = document.read_text("utf-8").partition("<!-- /bench -->")
    assert "| tiny | q4 | 1,234 |" in models
    assert "ngram" not in models
    assert "another" not in models
    times = "2.35 | 20.0 | 41.0 | 5.0 | 9.0 |\n"
    assert f"| tiny | q8 | tokenglass | 2 | 400 | 2.00 | {times}" in served
    assert f"| tiny | q8 | tokenglass | 8 | 900 | 4.50 | {times}" in served, "of 200 for one"
    assert f"| tiny | q8 | tokenglass, ngram | 8 | 1,000 | 5.00 | {times}" in served
    assert f"| tiny | q8 | another | 8 | 75.0 | 1.50 | {times}" in served, "of its own 50"
    assert "- another: a CPU\n" in served
    assert "- a third was not measured: not installed (pip install third)\n" in served
    assert "| 4 | 4,000 | short | 10.0 | 17.0 | 19.0 | 30.0 | 1.90 | 12.3 |" in served


@pytest.mark.slow
def test_streams_are_measured_without_and_with_drafts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command itself, on a model of random weights."""
    lines = tmp_path / "bench.jsonl"
    options = "--shape tiny --streams 1,3 --prompt 8 --tokens 4 --repeat 1 --spec-type ngram"
    assert serving([*options.split(), "--append", str(lines)]) == 0
    (result,) = map(json.loads, lines.read_text("utf-8").splitlines())
    assert [row["streams"] for row in result["streams"]] == [1, 3]
    assert [row["streams"] for row in result["with_drafts"]["ngram"]] == [1, 3]
    assert all(row["tok_s"] > 0 and row["cpu_ms"] > 0 for row in result["streams"])
    assert "| tiny | f16 | tokenglass, ngram | 3 |" in capsys.readouterr().out


ANSWERS = """
import json, sys
print(json.dumps({"device": "a device"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    streams = [[1.0 + i for i in range(asked["tokens"])] for _ in asked["prompts"]]
    print(json.dumps({"asked": [0.5] * len(streams), "times": streams, "cpu_s": 2}), flush=True)
"""
ENDS = """
import sys
print('{"device": "a device"}', flush=True)
sys.stdin.readline()
sys.exit("broken")
"""


@pytest.mark.slow
def test_streams_are_measured_in_other_engines_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine that is not there, and one that ends while it is measured, are said with the
    reason."""
    options = "--shape tiny --streams 1,3 --prompt 8 --tokens 4 --repeat 1"
    stand_ins = {
        "transformers": ANSWERS,
        "llama.cpp": "import sys; sys.exit('no such luck')",
        "llama-cpp-python": ENDS,
    }
    for peer, code in stand_ins.items():
        program = tmp_path / peer
        program.write_text(f"#!{sys.executable} -S\n{code}", "utf-8")
        program.chmod(0o755)
        options += f" --peer {peer} --peer-python {peer}={program}"
    lines = tmp_path / "bench.jsonl"
    assert serving([*options.split(), "--append", str(lines)]) == 0
    (result,) = map(json.loads, lines.read_text("utf-8").splitlines())
    rows = result["peers"].pop("transformers")["streams"]
    assert [(row["streams"], row["tok_s"]) for row in rows] == [(1, 4 / 3.5), (3, 12 / 3.5)]
    assert not result["peers"]
    assert "ended with status 1: no such luck" in result["missing"]["llama.cpp"]
    assert "ended with status 1: broken" in result["missing"]["llama-cpp-python"]
    text = capsys.readouterr().out
    assert "| tiny | f16 | transformers | 3 | 3.4 | 3.00 |" in text
    assert "- llama.cpp was not measured: llama.cpp's process ended with status 1" in text


def test_the_times_of_streams_become_figures() -> None:
    """Two streams asked for at 10 and 11 s: tokens at 12 and 13, and at 12, 14 and 16."""
    found = StreamsResult.of(StreamTimes([10.0, 11.0], [[12.0, 13.0], [12.0, 14.0, 16.0]], 2.5))
    assert found.streams == 2
    assert found.tok_s == pytest.approx(5 / 6), "from the first request to the last token"
    assert found.cpu_ms == pytest.approx(500)
    assert found.ttft_p50 == pytest.approx(1500)
    assert found.inter_token_p50 == pytest.approx(2000)


def test_a_document_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="expected one <!-- bench -->"):
        table.replace_section("# Title\n", "bench", "")


@pytest.mark.parametrize(
    ("document", "name"),
    [("benchmarks.md", "bench"), ("benchmarks.md", "serving"), ("models.md", "accuracy")],
)
def test_a_document_has_a_place_for_the_table(document: str, name: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / document).read_text("utf-8")
    assert table.replace_section(text, name, "| a |").count("| a |") == 1
