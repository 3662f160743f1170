"""`tokenglass devices`: the GPUs of this machine, and which kernels are fastest on them."""

from __future__ import annotations

import click

import gpu
from app.cli.errors import Failure, errors
from app.cli.options import settings_options
from app.models.progress_line import ProgressLine


@click.command()
@click.option(
    "--probe",
    is_flag=True,
    help="Measure which kernels are fastest, and store them for the next start.",
)
@settings_options(("adapter",))
def devices(probe: bool, adapter: str | None) -> None:
    """List the GPUs that can run a model, with the numbers that --adapter takes.

    With --probe, their matrix products are timed with the default tiles and with others, and with
    activations quantised to 8 bits. A software device takes a few seconds, a GPU up to a minute. On
    a GPU other tiles are only used if they also make whole steps faster. A table shows what was
    found, and after it what the engine does on the GPU, and why.
    --adapter limits the measurement to one GPU.
    """
    with errors():
        found = gpu.devices()
        if not found:
            raise Failure(
                "no GPU was found; install a Vulkan driver (Mesa's lavapipe runs on any CPU), "
                "or use --backend torch"
            )
        if probe and adapter:
            _show_tuning(adapter, _autotune(adapter))
            return
        for number, device in enumerate(found):
            if probe:
                _tune_or_report(str(number), device)
            else:
                _show_device(str(number), device)
                click.echo(f"   kernels: {'measured' if gpu.is_tuned(device) else 'default'}")


def _tune_or_report(which: str, device: gpu.DeviceInfo) -> None:
    """Measure a device and show the result, or show why it cannot be measured."""
    try:
        _show_tuning(which, _autotune(which))
    except gpu.DeviceError as error:
        _show_device(which, device)
        click.echo(f"   cannot be measured: {error}")


def _autotune(which: str) -> gpu.AutotuneResult:
    """Measure a device and show on standard error what is being measured."""
    line = ProgressLine()
    try:
        return gpu.autotune_device(which, lambda fraction, message: line.show(message))
    finally:
        line.close()


def _show_device(which: str, device: gpu.DeviceInfo) -> None:
    kind = "software" if device.software else device.kind
    click.echo(f"{which}  {device.name}  ({device.backend}, {kind}; {device.driver})")
    if device.lacks:
        click.echo(f"   runs without {', '.join(device.lacks)}")


def _show_tuning(which: str, result: gpu.AutotuneResult) -> None:
    _show_device(which, result.device)
    lines = [
        ("measured", "GFLOP/s", "default", "best other", "products", "steps", ""),
        *map(_cells, result.rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo(f"   {'  '.join(cells)}".rstrip())
    for fault in result.faults:
        click.echo(f"   left out: {fault}")
    if result.n_late:
        click.echo(f"   {result.n_late} more were not measured: the time was up")
    if any("not measurable" in row.note for row in result.rows):
        click.echo("   not measurable: the time of the default itself changed in most rounds")
    click.echo(f"   {_stored(result)}")
    for name, value, reason in result.choices():
        click.echo(f"   {name}: {value} ({reason})")


def _cells(row: gpu.AutotuneRow) -> tuple[str, ...]:
    """Return the cells of a table row; speedups are factors."""
    products, steps = (
        "–" if speedup is None else f"×{speedup:.2f}" for speedup in (row.speedup, row.step_speedup)
    )
    if row.step_speedup is not None:
        verdict = "confirmed" if row.chosen else "not confirmed"
    else:
        verdict = "chosen" if row.chosen else row.note or "default stays"
    return (
        row.products, f"{row.gflops:.1f}", row.default, row.best or "–", products, steps, verdict,
    )  # fmt: skip


def _stored(result: gpu.AutotuneResult) -> str:
    """Return what becomes of the result."""
    if result.stored is None:
        return "nothing stored: no other tiles were confirmed, so the default ones stay"
    if result.stored:
        return "stored: used from the next start on"
    return "not stored: cannot write to the cache folder; set TOKENGLASS_CACHE to another one"
