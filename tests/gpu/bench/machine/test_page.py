"""The page of a report: what is wrong first, a table for each part, what was left out and why."""

from __future__ import annotations

from gpu.bench.machine.page import MOST_NAMES, page
from gpu.bench.machine.results import Result
from tests.gpu.bench.machine.made_reports import made_report, right

REPORT = made_report(
    ops=[
        right("matmul q4", numbers=1000, error=1e-7, of_bound=0.25),
        Result("matmul q8", "wrong", 1, {"numbers": 10, "error": 0.5, "of_bound": 90}, "a | b\nc"),
        right("norm", numbers=5, error=2e-7, of_bound=1.0),
    ],
    models=[right("llama f32", error=1e-6, of_bound=0.1)],
    stress=[right("decode step, tiny f16", rows=1, times=500, different=0)],
    sweep=[
        right("peaks", memory_gb_s=900, read_bytes=1 << 30, fma_gflop_s=40000),
        right("llama1b qkv f16", gb_s_1=800.5, of_bandwidth=0.89, gflop_s_8=10, gflop_s_64=1234),
        right("llama1b out f16", gb_s_1=1600, of_bandwidth=1.78),
        *(Result(f"s{i}", "pending", note="the time was up") for i in range(9)),
    ],
    attention=[right("llama1b f16 cache, 128 tokens", ms_1=0.01, gb_s_1=50, of_bandwidth=0.5)],
    speed=[
        right("smol135 f16", prompt=512, prefill_tok_s=9000, decode_tok_s=700, of_bandwidth=0.4),
        Result("llama8b q4", "left out", note="it needs 4.5 GiB"),
    ],
    peers=[
        Result("torch", "crashed", note="its process ended (SIGSEGV)"),
        Result("llama.cpp", "left out", note="not installed (pip install x)"),
    ],
)  # fmt: skip


def test_failures_come_first() -> None:
    lines = page(REPORT).splitlines()
    assert lines[0] == "# Tokenglass 0.1.0 on A card | of mine"
    assert lines[2] == (
        "2026-01-02 03:04 UTC, 1.5 minutes: 9 results, 2 failures. Not finished: sweep."
    )
    assert lines[4] == "## Failures"
    assert "| ops | matmul q8 | wrong | a \\| b c |" in lines[6:12]
    assert "| peers | torch | crashed | its process ended (SIGSEGV) |" in lines[6:12]


def test_every_part_has_its_table() -> None:
    text = page(REPORT)
    assert "| matmul | 2 | 1,010 | 5.0e-01 | 90.00 | **1 wrong** |" in text
    assert "| norm | 1 | 5 | 2.0e-07 | 1.00 | right |" in text
    assert "| llama f32 | 1.0e-06 | 0.10 | right |" in text
    assert "| decode step, tiny f16 | 1 | 500 of 500 | 0 |" in text
    assert "Memory gives 900 GB/s by reading 1,024 MiB; multiply-adds" in text
    assert "| llama1b out f16 | 1,600 | **fault** |" in text
    assert "| llama1b qkv f16 | 800.5 | 89% | 10 | 1,234 | – |" in text
    assert "| llama1b f16 cache, 128 tokens | 0.01 | 50 | 50% | – | – | – |" in text
    assert "| smol135 f16 | 512 | 9,000 | 700 | 40% | – |" in text
    assert "| adapter | A card \\| of mine (Vulkan, discrete GPU) |" in text
    assert "| rows | 64 lanes (default for a GPU) |" in text


def test_what_was_left_out_is_listed_with_the_reason() -> None:
    text = page(REPORT)
    names = "; ".join(f"s{i}" for i in range(MOST_NAMES))
    assert f"| sweep | the time was up | {names}; and {9 - MOST_NAMES} more |" in text
    assert "| speed | it needs 4.5 GiB | llama8b q4 |" in text
    assert "| peers | not installed (pip install x) | llama.cpp |" in text
    assert text.endswith("The same command run again goes on with what the time was up for.\n")


def test_a_report_without_results_has_a_page() -> None:
    text = page(made_report())
    assert "None." in text
    assert "## Ops" not in text


def test_every_table_has_as_many_cells_in_each_row() -> None:
    widths: set[int] = set()
    for line in page(REPORT).splitlines():
        if not line.startswith("|"):
            widths = set()
            continue
        widths.add(line.replace("\\|", "").count("|"))
        assert len(widths) == 1, line
