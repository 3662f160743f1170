"""`tokenglass plan`: what a model would take, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from app.cli.errors import errors
from app.cli.options import FiniteRange, settings_options
from app.config import Settings
from app.models.free_memory import free_memory
from app.models.shapes import find_shape
from gpu import (
    AUTO_DTYPE,
    DEFAULT_RATE,
    GB,
    KNOWN_DEVICES,
    TFLOPS,
    Bound,
    DeviceBounds,
    DeviceSpec,
    InvalidRequest,
    ModelShape,
    Sizing,
    Workload,
    measured_device,
    size_model,
)

THIS = "this"
"""`--device` that measures the GPU of this machine."""
LEAST_RATE, MOST_GB = 1e-9, 1e9
"""Bounds of numbers of a device, in the units of the options: a step then takes some time."""
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
BOUND_BY = {"bytes": "bandwidth", "operations": "arithmetic", "bus": "the bus"}


@click.command()
@click.argument("model", required=False, envvar="TOKENGLASS_MODEL")
@settings_options(("revision", "dtype", "kv_dtype", "context"))
@click.option(
    "--users", type=click.IntRange(1), default=1, show_default=True,
    help="Number of texts written at once, each of --context tokens.",
)  # fmt: skip
@click.option(
    "--rate", type=FiniteRange(0, min_open=True), default=DEFAULT_RATE, show_default=True,
    help="Tokens per second that each user should get.",
)  # fmt: skip
@click.option(
    "--device", "devices", multiple=True, metavar="NAME",
    help="A known device, such as H100, or `this` to measure the GPU of this machine. May be "
    "repeated. Default: all known devices.",
)  # fmt: skip
@settings_options(("adapter",))
@click.option(
    "--memory", type=FiniteRange(0.001, MOST_GB),
    help="Memory of a device that you describe, in GB.",
)  # fmt: skip
@click.option("--bandwidth", type=FiniteRange(LEAST_RATE, MOST_GB), help="Its bandwidth, in GB/s.")
@click.option(
    "--flops", type=FiniteRange(LEAST_RATE, MOST_GB),
    help="Speed of a device that you describe, in f16 and TFLOPS.",
)  # fmt: skip
@click.option(
    "--bus", type=FiniteRange(LEAST_RATE, MOST_GB),
    help="GB/s from host memory to it, such as 32 for 16 lanes of PCIe 4.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in bytes and seconds.")
def plan(model: str | None, devices: tuple[str, ...], as_json: bool, **values: Any) -> None:
    """Show what MODEL would take, from its config alone: parameters by part, bytes by storage type,
    the KV cache, and what devices allow: users that fit, time to the first token, tokens per
    second, and what offloading or splitting the model costs. The default model is that of the
    other commands.

    Nothing is loaded and no weights are downloaded; no GPU is needed.
    """
    with errors():
        own = own_device(*(values[name] for name in ("memory", "bandwidth", "flops", "bus")))
        chosen = chosen_devices(devices, values["adapter"], own)
        shape = find_shape(model, values["revision"])
        work = Workload(
            dtype_of(shape, values["dtype"]),
            *(values[name] for name in ("kv_dtype", "users", "context", "rate")),
        )
        found = size_model(shape, work, chosen)
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
            return
        for line in report_lines(found):
            click.echo(line)


def dtype_of(shape: ModelShape, dtype: str) -> str:
    """Return the storage type that `auto` means for a model."""
    return shape.nearest_dtype() if dtype == AUTO_DTYPE else dtype


def chosen_devices(
    names: Sequence[str], adapter: str | None, own: DeviceSpec | None
) -> tuple[DeviceSpec, ...]:
    """Return the named devices and the user's own; all known ones if there are none. Measuring the
    GPU of this machine takes a second. Raises InvalidRequest for an unknown or ambiguous
    name, DeviceError if the GPU cannot be opened."""
    found = [_this(adapter) if name.lower() == THIS else _known(name) for name in names]
    found += [own] if own else []
    return tuple(found) or KNOWN_DEVICES


def own_device(
    memory: float | None, bandwidth: float | None, flops: float | None, bus: float | None
) -> DeviceSpec | None:
    """Return the device described by GB, GB/s, TFLOPS and GB/s; None if there is none. Raises
    InvalidRequest without a bandwidth."""
    if bandwidth is None:
        if any(value is not None for value in (memory, flops, bus)):
            raise InvalidRequest(
                "a device of your own needs --bandwidth, which limits the tokens per second",
                "bandwidth",
            )
        return None
    return DeviceSpec(
        name="own device",
        memory_bytes=None if memory is None else round(memory * GB),
        bytes_per_s=bandwidth * GB,
        flops_per_s=None if flops is None else flops * TFLOPS,
        bus_bytes_per_s=None if bus is None else bus * GB,
        source="as given",
    )


def _known(name: str) -> DeviceSpec:
    matches = [device for device in KNOWN_DEVICES if name.lower() in device.name.lower()]
    if len(matches) != 1:
        known = ", ".join(device.name for device in KNOWN_DEVICES)
        raise InvalidRequest(
            f"expected one of {known}, or {THIS!r} for the GPU of this machine, but got {name!r}; "
            "describe another device with --bandwidth, --memory and --flops",
            "device",
        )
    return matches[0]


def _this(adapter: str | None) -> DeviceSpec:
    free = free_memory(Settings(adapter=adapter))
    return measured_device(adapter, free.device)


# ---- text ------------------------------------------------------------------------------------


def report_lines(found: Sizing) -> Iterator[str]:
    """Yield the lines that describe a sizing."""
    yield f"{found.model}: {found.model_type}, {found.n_layers} layers, {_parameters(found)}"
    yield ""
    yield from _table(_part_rows(found))
    yield ""
    yield from _table(_stored_rows(found))
    yield ""
    yield from _kv_lines(found)
    yield ""
    yield from _step_lines(found)
    yield ""
    yield from _table([_DEVICE_HEADINGS, *map(_device_row, found.devices)], left=(0, 1, 5, 6))
    yield (
        "These are limits, not predictions. Only a device whose cache holds the whole model can "
        "beat them."
    )
    yield ""
    for bounds in found.devices:
        yield f"{bounds.device.name}: {_spec(bounds.device)}"


def _parameters(found: Sizing) -> str:
    text = f"{found.parameters:,} parameters"
    if found.active_parameters == found.parameters:
        return text
    return f"{text}, of which a token uses {found.active_parameters:,}"


def _part_rows(found: Sizing) -> list[tuple[str, ...]]:
    head = ("part", "parameters", "share", f"as {found.dtype}", "read for a token")
    return [
        head,
        *(
            (
                part.name,
                f"{part.parameters:,}" if part.parameters or not part.token_bytes else "= W_E",
                f"{part.parameters / found.parameters:.1%}",
                amount(part.n_bytes, "B"),
                amount(part.token_bytes, "B"),
            )
            for part in found.parts
        ),
    ]


def _stored_rows(found: Sizing) -> list[tuple[str, ...]]:
    head = ("stored as", "weights", "read for a token", f"× {found.rate:g} tokens/s")
    return [
        head,
        *(
            (
                stored.dtype,
                amount(stored.n_bytes, "B"),
                amount(stored.token_bytes, "B"),
                amount(stored.token_bytes * found.rate, "B/s"),
            )
            for stored in found.stored
        ),
    ]


def _kv_lines(found: Sizing) -> Iterator[str]:
    kv = found.kv
    sharing = f"{kv.n_heads} query heads, {kv.n_kv_heads} of keys and values"
    formats = ", ".join(f"{amount(n, 'B')} in {name}" for name, n in kv.token_bytes.items())
    yield f"KV cache: {kv.kind}, {sharing}; a token takes {formats}"
    yield (
        f"  in {kv.dtype} it would take {amount(kv.if_mha, 'B')} with MHA and "
        f"{amount(kv.if_mqa, 'B')} with MQA"
    )
    text = f"  a text of {found.context:,} tokens takes {amount(kv.text_bytes, 'B')}"
    if kv.n_windowed:
        text += (
            f"; {amount(kv.unwindowed_bytes, 'B')} without the sliding window of {kv.window:,} "
            f"tokens in {kv.n_windowed} of {found.n_layers} layers"
        )
    yield text


def _step_lines(found: Sizing) -> Iterator[str]:
    need, decode, prefill = found.need, found.decode, found.prefill
    users = f"{found.users:,} user{'s' if found.users > 1 else ''}"
    yield (
        f"Memory for {users} with {found.context:,} tokens each is {amount(need.total, 'B')}: "
        f"{amount(need.weights, 'B')} of weights, {amount(need.kv_cache, 'B')} of KV cache, "
        "10% for activations and buffers"
    )
    yield (
        f"Writing a token for each: {amount(decode.weight_bytes, 'B')} of weights and "
        f"{amount(decode.kv_bytes, 'B')} of keys and values, {amount(decode.flops, 'FLOP')}; "
        f"{decode.intensity:.3g} operations per byte"
    )
    yield (
        f"{found.rate:g} tokens/s for each need {amount(found.bytes_per_s, 'B/s')} and "
        f"{amount(found.flops_per_s, 'FLOP/s')}"
    )
    yield (
        f"Reading a prompt of {found.context:,} tokens: {amount(prefill.n_bytes, 'B')}, "
        f"{amount(prefill.flops, 'FLOP')}; {prefill.intensity:,.0f} operations per byte"
    )


_DEVICE_HEADINGS = (
    "device", "fits", "users that fit", "first token", "tokens/s each", "bound by", "otherwise",
)  # fmt: skip


def _device_row(bounds: DeviceBounds) -> tuple[str, ...]:
    first = bounds.first_token
    return (
        bounds.device.name,
        "yes" if bounds.fits else "no",
        "unknown" if bounds.users is None else f"{bounds.users:,}",
        "unknown" if first is None else duration(first.seconds),
        _rate(bounds.decode),
        BOUND_BY[bounds.decode.by],
        _otherwise(bounds),
    )


def _otherwise(bounds: DeviceBounds) -> str:
    """Return what can be done if the model does not fit, and the speed then."""
    ways = []
    if bounds.split:
        ways.append(
            f"{bounds.split.n_devices} of them, layer by layer: {_rate(bounds.split.decode)} "
            "tokens/s"
        )
    if bounds.offload:
        ways.append(
            f"{amount(bounds.offload.host_bytes, 'B')} in host memory: "
            f"{_rate(bounds.offload.decode)} tokens/s"
        )
    return "; ".join(ways)


def _rate(bound: Bound) -> str:
    per_second = 1 / bound.seconds
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _spec(device: DeviceSpec) -> str:
    parts = [] if device.memory_bytes is None else [amount(device.memory_bytes, "B")]
    parts.append(amount(device.bytes_per_s, "B/s"))
    if device.flops_per_s:
        parts.append(amount(device.flops_per_s, "FLOP/s"))
    if device.bus_bytes_per_s:
        parts.append(f"{amount(device.bus_bytes_per_s, 'B/s')} to host memory")
    if device.cache_bytes:
        rate = device.cache_bytes_per_s
        fast = f" at {amount(rate, 'B/s')}" if rate else ""
        parts.append(f"{amount(device.cache_bytes, 'B')} of cache{fast}")
    return f"{', '.join(parts)} ({device.source})"


def amount(n: float, unit: str) -> str:
    """Return a number with three digits and a decimal prefix: "2.81 TB/s"."""
    for factor, prefix in UNITS:
        if n >= factor * 0.9995:
            return f"{n / factor:#.3g}".rstrip(".") + f" {prefix}{unit}"
    return f"{n:.3g} {unit}"


def duration(seconds: float) -> str:
    """Return a time with three digits: "12.3 ms"."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= factor * 0.9995:
            return f"{seconds / factor:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _table(rows: Sequence[tuple[str, ...]], left: tuple[int, ...] = (0,)) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
