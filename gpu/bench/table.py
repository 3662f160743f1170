"""Rewrite the tables of docs/benchmarks.md from the benchmark's JSON lines.

python -m gpu.bench.table build/bench.jsonl docs/benchmarks.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MISSING = "–"

Result = dict[str, Any]


def table(results: Sequence[Result]) -> str:
    """Return Markdown: the device, a row per result, then decoding by context if measured."""
    peers = list(dict.fromkeys(name for result in results for name in result["peers"]))
    head = [
        "model",
        "weights",
        "prefill tokens/s",
        "decode tokens/s",
        "captured",
        "× floor, prefill",
        "× floor, decode",
        *(f"× {name}, decode" for name in peers),
    ]
    lines = [f"On {device}:" for device in dict.fromkeys(r["device"] for r in results)]
    lines += ["", *markdown(head, [_row(result, peers) for result in results])]
    with_contexts = [result for result in results if result["contexts"]]
    if with_contexts:
        lines += [
            "",
            "Decode step by context: milliseconds (growth of time and of bytes read over the "
            "shortest context):",
            "",
        ]
        lines += _contexts(with_contexts)
    return "\n".join(lines)


def replace_section(text: str, name: str, content: str) -> str:
    """Return `text` with `content` between the markers of this name. Raises ValueError unless they
    occur exactly once."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"expected one {begin} … {end} to put the table between")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def _row(result: Result, peers: Sequence[str]) -> list[str]:
    """Return a row: times relative to the floor, speeds relative to peers."""
    captured = result["contestants"].get("captured")
    ratios = [result["peers"].get(name) for name in peers]
    return [
        result["model"],
        result["dtype"],
        _speed(result["prefill_tok_s"]),
        _speed(result["decode_tok_s"]),
        _speed(captured["decode_tok_s"]) if captured else MISSING,
        _times(result["prefill_over_floor"]),
        _times(result["decode_over_floor"]),
        *(_times(ratio) for ratio in ratios),
    ]


def _contexts(results: Sequence[Result]) -> list[str]:
    sizes = sorted({at["context"] for result in results for at in result["contexts"]})
    rows = []
    for result in results:
        at = {entry["context"]: entry for entry in result["contexts"]}
        cells = [_context(at[size]) if size in at else MISSING for size in sizes]
        rows.append([result["model"], result["dtype"], *cells])
    return markdown(["model", "weights", *(f"{size:,}" for size in sizes)], rows)


def _context(at: Result) -> str:
    return f"{at['step_ms']:.1f} ({at['time_growth']:.2f}, {at['bytes_growth']:.2f})"


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def serving(results: Sequence[Result]) -> str:
    """Return Markdown of the lines of `gpu.bench.serving`: streams, then the long prompts."""
    lines = serving_table(results) + peer_lines(results)
    long_prompts = [result for result in results if "long_prompt" in result]
    if long_prompts:
        lines += ["", "A long prompt that arrives beside running streams:", ""]
        lines += long_prompt_table(long_prompts)
    return "\n".join(lines)


def serving_table(results: Sequence[Result]) -> list[str]:
    """Return a row for every model, engine and number of streams; of this engine without and with
    drafts. A gain is over one stream: of this engine without drafts, or of the peer."""
    head = [
        "model",
        "weights",
        "engine",
        "streams",
        "tokens/s",
        "× one",
        "processor ms a token",
        "first token ms, p50",
        "p95",
        "between tokens ms, p50",
        "p95",
    ]
    rows = []
    for result in results:
        own = result["streams"]
        drafted = {f"tokenglass, {name}": rows for name, rows in result["with_drafts"].items()}
        peers = {name: peer["streams"] for name, peer in result.get("peers", {}).items()}
        for name, found in {"tokenglass": own, **drafted, **peers}.items():
            of_one = (found if name in peers else own)[0]
            one = of_one["tok_s"] / of_one["streams"]
            rows += [
                [result["model"], result["dtype"], name, *_streams_cells(row, one)] for row in found
            ]
    return markdown(head, rows)


def _streams_cells(row: Result, one: float) -> Iterator[str]:
    yield str(row["streams"])
    yield _speed(row["tok_s"])
    yield _times(row["tok_s"] / one)
    yield _times(row["cpu_ms"])
    for name in ("ttft_p50", "ttft_p95", "inter_token_p50", "inter_token_p95"):
        yield f"{row[name]:.1f}"


def peer_lines(results: Sequence[Result]) -> list[str]:
    """Return what each peer ran on, and why others were not measured."""
    ran = {
        f"{name}: {peer['device']}"
        for result in results
        for name, peer in result.get("peers", {}).items()
    }
    missing = {
        f"{name} was not measured: {reason}"
        for result in results
        for name, reason in result.get("missing", {}).items()
    }
    found = [f"- {text}" for text in [*sorted(ran), *sorted(missing)]]
    return ["", *found] if found else []


def long_prompt_table(results: Sequence[Result]) -> list[str]:
    """Return the times between the tokens of streams before and beside a long prompt."""
    head = [
        "model",
        "weights",
        "streams",
        "prompt",
        "chunks",
        "between tokens ms before, p50",
        "beside the prompt, p50",
        "p95",
        "largest",
        "p95 × before",
        "first token of the prompt, s",
    ]
    rows = [
        [
            result["model"],
            result["dtype"],
            str(row["streams"]),
            f"{row['n_prompt']:,}",
            row["chunks"],
            *(f"{row[name]:.1f}" for name in ("before_p50", "beside_p50", "beside_p95")),
            f"{row['beside_max']:.1f}",
            _times(row["beside_p95"] / row["before_p50"]),
            f"{row['ttft'] / 1e3:.1f}",
        ]
        for result in results
        for row in result["long_prompt"]
    ]
    return markdown(head, rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main(results: str, document: str) -> None:
    """Rewrite the sections of `document` for which there are results."""
    found = [json.loads(line) for line in Path(results).read_text("utf-8").splitlines()]
    served = [result for result in found if result.get("kind") == "serving"]
    models = [result for result in found if result.get("kind") != "serving"]
    path = Path(document)
    text = path.read_text("utf-8")
    for name, make, chosen in (("bench", table, models), ("serving", serving, served)):
        if chosen:
            text = replace_section(text, name, make(chosen))
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
