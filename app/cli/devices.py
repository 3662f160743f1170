"""`tokenglass devices`: the GPUs of this machine, and which kernels are fastest on them."""

from __future__ import annotations

import click

import gpu
from app.cli.errors import Failure, errors
from app.cli.options import settings_options


@click.command()
@click.option(
    "--probe", is_flag=True, help="Measure which kernels are fastest, and store the result."
)
@settings_options(("adapter",))
def devices(probe: bool, adapter: str | None) -> None:
    """List the GPUs that can run a model, with the numbers that --adapter takes.

    With --probe, their kernels are measured (a few seconds each) and a table is printed. Its end
    shows whether products with q8 and q4 weights are faster with activations quantised to 8 bits,
    and after it what the engine chose for the GPU, and why.
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
            _show_tuning(adapter, gpu.autotune_device(adapter))
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
        _show_tuning(which, gpu.autotune_device(which))
    except gpu.DeviceError as error:
        _show_device(which, device)
        click.echo(f"   cannot be measured: {error}")


def _show_device(which: str, device: gpu.DeviceInfo) -> None:
    kind = "software" if device.software else device.kind
    click.echo(f"{which}  {device.name}  ({device.backend}, {kind}; {device.driver})")
    if device.lacks:
        click.echo(f"   runs without {', '.join(device.lacks)}")


def _show_tuning(which: str, result: gpu.AutotuneResult) -> None:
    _show_device(which, result.device)
    width = max(len(row.name) for row in (*result.rows, *result.activations))
    click.echo(f"   {'kernels':{width}}  decode Gweights/s  prefill GFLOP/s")
    for row in (*result.rows, *result.activations):
        prefill = "–" if row.prefill_gflops is None else f"{row.prefill_gflops:.1f}"
        figures = f"{row.decode_gweights:17.2f}  {prefill:>15}"
        click.echo(f"   {row.name:{width}}  {figures}{'  chosen' if row.chosen else ''}")
    for fault in result.faults:
        click.echo(f"   left out: {fault}")
    if result.n_skipped:
        click.echo(f"   {result.n_skipped} more were not measured: the time was up")
    if result.stored is None:
        click.echo("   not used: in whole steps on GPUs the default tiles were faster")
    elif not result.stored:
        click.echo(
            "   not stored: cannot write to the cache folder; set TOKENGLASS_CACHE to another one"
        )
    for name, value, reason in result.choices():
        click.echo(f"   {name}: {value} ({reason})")
