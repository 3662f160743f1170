"""The page of a report, to paste into an issue: what is wrong first, then a table for each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpu.bench.machine.results import PARTS, TIMES, PartReport, Report, Result
from gpu.bench.table import markdown
from gpu.webgpu.peaks import PEAK_FAULT, how_measured, plausible

GIB = 1 << 30
MISSING = "–"
BANDWIDTH = "of the bandwidth"
MOST_NAMES = 6
MOST_ROWS = 200
"""Rows of a table; an issue has a limit too."""

Figures = dict[str, float]


def page(report: Report) -> str:
    """Return the page as Markdown."""
    lines = [*_head(report), "", *_failures(report), "", *_machine(report)]
    for name, title, table in TABLES:
        part = report.part(name)
        if any(result.status == "ok" or result.is_bad for result in part.results):
            lines += ["", f"## {title}", "", *table(part)]
    lines += ["", *_left_out(report)]
    return "\n".join(lines).rstrip() + "\n"


def _head(report: Report) -> Iterator[str]:
    machine, left = report.machine, report.left()
    yield f"# Tokenglass {machine.tokenglass} on {machine.adapter.name}"
    yield ""
    found = [result for part in report.parts.values() for result in part.results]
    n_ok, n_bad = sum(r.status == "ok" for r in found), len(report.failures)
    yield (
        f"{report.began}, {report.seconds / 60:.1f} minutes: {n_ok} results, {n_bad} failures. "
        + (f"Not finished: {', '.join(left)}." if left else "Complete.")
    )


def _failures(report: Report) -> Iterator[str]:
    yield "## Failures"
    yield ""
    if not report.failures:
        yield "None."
        return
    rows = [
        [part, result.name, result.status, _cell(result.note)]
        for part, result in report.failures[:MOST_ROWS]
    ]
    yield from markdown(["part", "case", "", "what happened"], rows)


def _machine(report: Report) -> Iterator[str]:
    machine, adapter = report.machine, report.machine.adapter
    kind = "software" if adapter.software else adapter.kind
    versions = ", ".join(f"{name} {found}" for name, found in machine.versions.items())
    rows = [
        ["adapter", f"{adapter.name} ({adapter.backend}, {kind})"],
        ["driver", adapter.driver],
        ["system", f"{machine.platform}, Python {machine.python}"],
        ["versions", f"{versions}, engine {machine.engine}"],
        ["free memory", f"host {_gib(machine.host_bytes)}, GPU {_gib(machine.card_bytes)}"],
        ["features", ", ".join(adapter.features) or "none of those the engine can use"],
        ["lacks", ", ".join(adapter.lacks) or "nothing"],
        *([name, f"{limit:,}"] for name, limit in adapter.limits.items()),
        *([choice.name, f"{choice.value} ({choice.reason})"] for choice in machine.policy),
    ]
    yield "## Machine"
    yield ""
    yield from markdown(["", ""], [[name, _cell(value)] for name, value in rows])


# ---- parts -----------------------------------------------------------------------------------


def _ops(part: PartReport) -> Iterator[str]:
    """Yield a row for each op: its checks together."""
    by_op: dict[str, list[Result]] = {}
    for result in _run(part):
        by_op.setdefault(result.name.split()[0], []).append(result)
    rows = []
    for op, results in by_op.items():
        n_bad = sum(result.is_bad for result in results)
        rows.append(
            [
                op,
                str(len(results)),
                f"{sum(r.figures.get('numbers', 0) for r in results):,.0f}",
                f"{max(r.figures.get('error', 0) for r in results):.1e}",
                f"{max(r.figures.get('of_bound', 0) for r in results):.2f}",
                f"**{n_bad} wrong**" if n_bad else "right",
            ]
        )
    yield "Each op compared with its NumPy twin. An error of 1.00 of its bound is still right."
    yield ""
    yield from markdown(["op", "checks", "numbers", "largest error", "of its bound", ""], rows)


def _models(part: PartReport) -> Iterator[str]:
    rows = [
        [
            result.name,
            _figure(result, "error", ".1e"),
            _figure(result, "of_bound", ".2f"),
            "**wrong**" if result.is_bad else "right",
        ]
        for result in _run(part)
    ]
    yield "Logits of tiny models compared with NumPy, relative to the largest logit."
    yield ""
    yield from markdown(["model", "largest error", "of its bound", ""], rows)


def _stress(part: PartReport) -> Iterator[str]:
    rows = [
        [
            result.name,
            _figure(result, "rows", ".0f"),
            f"{_figure(result, 'times', '.0f')} of {TIMES}",
            _figure(result, "different", ".0f"),
        ]
        for result in _run(part)
    ]
    yield from markdown(["step", "rows", "times", "other bits than the first"], rows)


def _sweep(part: PartReport) -> Iterator[str]:
    found = {result.name: result for result in part.results}
    if "peaks" in found:
        peaks = found["peaks"]
        yield (
            f"Memory gives {_figure(peaks, 'memory_gb_s', 'g')} GB/s by "
            f"{how_measured(int(peaks.figures.get('read_bytes', 0)))}; multiply-adds in registers "
            f"reach {_figure(peaks, 'fma_gflop_s', 'g')} GFLOP/s. A larger share of the bandwidth "
            f"is {PEAK_FAULT}."
        )
        yield ""
    rows = [
        [
            result.name,
            _figure(result, "gb_s_1", ",.4g"),
            _share(result),
            *(_figure(result, f"gflop_s_{n}", ",.4g") for n in (8, 64, 512)),
        ]
        for result in _run(part)
        if result.name != "peaks"
    ]
    head = [
        "matrix",
        "GB/s, 1 row",
        BANDWIDTH,
        *(f"GFLOP/s, {n} rows" for n in (8, 64, 512)),
    ]
    yield from markdown(head, rows)


def _attention(part: PartReport) -> Iterator[str]:
    rows = [
        [
            result.name,
            _figure(result, "ms_1", ",.4g"),
            _figure(result, "gb_s_1", ",.4g"),
            _share(result),
            _figure(result, "rows", ".0f"),
            _figure(result, "ms_rows", ",.4g"),
            _figure(result, "gflop_s_rows", ",.4g"),
        ]
        for result in _run(part)
    ]
    head = [
        "one layer",
        "ms, 1 row",
        "GB/s",
        BANDWIDTH,
        "rows of a chunk",
        "ms",
        "GFLOP/s",
    ]
    yield from markdown(head, rows)


def _speed(part: PartReport) -> Iterator[str]:
    rows = [
        [
            result.name,
            _figure(result, "prompt", ".0f"),
            _figure(result, "prefill_tok_s", ",.4g"),
            _figure(result, "decode_tok_s", ",.4g"),
            _share(result),
            _figure(result, "gpu_ms", ".3g"),
        ]
        for result in _run(part)
    ]
    head = [
        "random weights", "prompt", "prefill tokens/s", "decode tokens/s", BANDWIDTH,
        "GPU ms of a step",
    ]  # fmt: skip
    yield from markdown(head, rows)


def _peers(part: PartReport) -> Iterator[str]:
    rows = [
        [
            result.name,
            _figure(result, "prefill_tok_s", ",.4g"),
            _figure(result, "own_over_prefill_tok_s", ".3g"),
            _figure(result, "decode_tok_s", ",.4g"),
            _figure(result, "own_over_decode_tok_s", ".3g"),
            _cell(result.note),
        ]
        for result in _run(part)
    ]
    yield "smol135 f16, taken in turns with Tokenglass."
    yield ""
    head = [
        "engine", "prefill tokens/s", "Tokenglass / it", "decode tokens/s", "Tokenglass / it", "",
    ]  # fmt: skip
    yield from markdown(head, rows)


TABLES: Sequence[tuple[str, str, Callable[[PartReport], Iterator[str]]]] = (
    ("ops", "Ops", _ops),
    ("models", "Models", _models),
    ("stress", "The same step many times", _stress),
    ("sweep", "Matrix products", _sweep),
    ("attention", "Attention", _attention),
    ("speed", "Whole models", _speed),
    ("peers", "Other engines", _peers),
)


def _left_out(report: Report) -> Iterator[str]:
    """Yield what was not measured, together with what has the same reason."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for name in PARTS:
        for result in report.part(name).results:
            if result.status in ("left out", "pending") or (result.note and result.status == "ok"):
                by_reason.setdefault((name, result.note), []).append(result.name)
    rows = [
        [part, _cell(reason), _cell(_some(names))]
        for (part, reason), names in by_reason.items()
        if part != "peers" or not reason.startswith("on ")
    ]
    if not rows:
        return
    yield "## Not measured"
    yield ""
    yield from markdown(["part", "why", "cases"], rows)
    if report.left():
        yield ""
        yield "The same command run again goes on with what the time was up for."


def _some(names: Sequence[str]) -> str:
    """Return names, of many only the first."""
    more = len(names) - MOST_NAMES
    return "; ".join(names[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else "")


def _run(part: PartReport) -> list[Result]:
    """Return the results of cases that were run, in the order of the part."""
    return [r for r in part.results if r.status == "ok" or r.is_bad][:MOST_ROWS]


def _figure(result: Result | None, name: str, format: str) -> str:
    if result is None or name not in result.figures:
        return MISSING
    return f"{result.figures[name]:{format}}"


def _share(result: Result) -> str:
    """Return the share of the bandwidth, or that it cannot be one (`gpu.webgpu.peaks`)."""
    if "of_bandwidth" not in result.figures:
        return MISSING
    share = plausible(result.figures["of_bandwidth"])
    return "**fault**" if share is None else f"{share:.0%}"


def _gib(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else f"{n_bytes / GIB:.1f} GiB"


def _cell(text: str) -> str:
    """Return text that does not end a cell of a table."""
    return " ".join(text.replace("|", "\\|").split())
