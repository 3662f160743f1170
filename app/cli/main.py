"""Command line: `tokenglass [serve]`, `run`, `models`, `generate`, `perplexity`, `reap`, `export`,
`weights`, `devices`, `doctor`, `bench`, `version`.

Errors are one line. The exit code is 2 for errors in what the user gave (flags, model folder), else
1. Imports of the server and the engine are inside the commands: the engine's process imports this
module again, and `--help` should not load a GPU library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from app import version
from app.config import (
    VALUE_OF_BARE_FLAG,
    AutoDtype,
    Dtype,
    KvDtype,
    Settings,
    SettingsError,
    SettingSpec,
    setting_specs,
)

if TYPE_CHECKING:
    from gpu import AutotuneResult, DeviceInfo

INTERRUPTED = 130
ENGINE_SETTINGS = (
    "model", "revision", "dtype", "kv_dtype", "backend", "adapter", "pipeline_parallel_size",
    "lora", "expert_slots", "activations", "context", "kv_memory", "weight_cache", "draft",
)  # fmt: skip


class DefaultGroup(click.Group):
    """Group whose command may be left out; the default is `serve`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h", "--version")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def _click_type(spec: SettingSpec) -> Any:
    if spec.type is bool:
        return bool
    kinds = [kind for kind in get_args(spec.type) if kind is not type(None)]
    for kind in (spec.type, *kinds):
        if get_origin(kind) is Literal:
            return click.Choice(get_args(kind))
    if spec.range is not None:
        return click.IntRange(*spec.range)
    if spec.type is Path or Path in kinds:
        return click.Path(path_type=Path)
    return str


def settings_options(names: tuple[str, ...] | None = None) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of the settings in `names`; all if None."""

    def decorate(function: Any) -> Any:
        for spec in reversed(setting_specs()):
            if names is None or spec.name in names:
                multiple = get_origin(spec.type) is tuple
                function = click.option(
                    f"{spec.flag}/{spec.no_flag}" if spec.no_flag else spec.flag,
                    type=_click_type(spec),
                    default=spec.default,
                    multiple=multiple,
                    **_bare_flag(spec),
                    envvar=spec.env,
                    show_envvar=True,
                    show_default=spec.default not in (None, ()),
                    help=spec.help,
                )(function)
        return function

    return decorate


def _bare_flag(spec: SettingSpec) -> dict[str, Any]:
    """Return the parameters of an option that may be given without a value."""
    value = VALUE_OF_BARE_FLAG.get(spec.name)
    return {} if value is None else {"is_flag": False, "flag_value": value}


class Failure(click.ClickException):
    """Error shown as one line, with exit code 1."""


class BadInput(click.ClickException):
    """Error in what the user gave, shown as one line, with exit code 2."""

    exit_code = 2


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors that users can act on into one line and an exit code."""
    from app.prompt.limited_tokenizer import TextLimitError, TokenizerLimitError
    from gpu import EngineError, InvalidRequest, ModelError

    try:
        yield
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    except (TokenizerLimitError, TextLimitError) as error:
        raise Failure(str(error)) from None
    except (ModelError, InvalidRequest) as error:
        raise BadInput(str(error)) from None
    except EngineError as error:
        raise Failure(str(error)) from None
    except BrokenPipeError:  # the reader closed the pipe; click exits silently
        raise
    except OSError as error:
        raise Failure(f"cannot write the output: {error.strerror or error}") from None


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), message="tokenglass %(version)s")
def main() -> None:
    """Tokenglass: a language model you can see through.

    Without a command, it serves the playground; `tokenglass serve --help` lists the settings.
    """


span_option = click.option(
    "--span", type=click.IntRange(8), default=512, show_default=True,
    help="Tokens per span of text.",
)  # fmt: skip


@main.command()
@settings_options()
def serve(**values: Any) -> None:
    """Serve the playground and the API."""
    _serve(Settings(**values))


@main.command(name="run")
@click.argument("name", required=False, envvar="TOKENGLASS_MODEL")
@settings_options(tuple(spec.name for spec in setting_specs() if spec.name != "model"))
def run_model(name: str | None, **values: Any) -> None:
    """Serve the model NAME: one that `tokenglass models` lists, a folder, a GGUF file, or
    OWNER/MODEL on the Hugging Face hub, such as HuggingFaceTB/SmolLM2-135M-Instruct; for GGUF files
    on the hub OWNER/MODEL:Q4_K_M or OWNER/MODEL:FILE. Default: that of `tokenglass serve`.

    Files that are not in the hub's local cache are downloaded first, after a check that the model
    can be run and fits in memory.
    """
    _serve(Settings(model=name, **values))


def _serve(settings: Settings) -> None:
    from app.server import PortError, log_to_stderr
    from app.server import serve as run

    with _errors():
        settings.validate()
        log_to_stderr(settings.log_level)
        try:
            failure = run(settings, click.echo)
        except PortError as error:
            raise Failure(str(error)) from None
    if failure is not None:
        raise Failure(failure)


class GenerateCommand(click.Command):
    """Command with an option for each sampling setting.

    The options are made when they are needed, because the settings are declared in the engine and
    importing that loads a GPU library.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from gpu import SAMPLING_SETTINGS

        sampling = [
            click.Option(
                [f"--{setting.name.replace('_', '-')}"],
                type=setting.type,
                help=setting.declared.help,
            )
            for setting in SAMPLING_SETTINGS
            if setting.name != "first_index"
        ]
        *own, help_option = super().get_params(ctx)
        return [*own, *sampling, help_option]


@main.command(cls=GenerateCommand)
@click.argument("prompt")
@settings_options(ENGINE_SETTINGS)
@click.option("--chat", is_flag=True, help="Use PROMPT as a chat message and let the model answer.")
@click.option("--stop", multiple=True, help="Text that ends the run; may be repeated.")
def generate(prompt: str, chat: bool, **values: Any) -> None:
    """Write a continuation of PROMPT to the terminal.

    Sampling settings default to those that the model's makers recommend. Adapters have strength 1.
    """
    from app.cli.generate import write

    settings = Settings(**{name: values.pop(name) for name in ENGINE_SETTINGS})
    params = {name: value for name, value in values.items() if value not in (None, ())}
    with _errors():
        finished = write(settings, prompt, params, chat=chat)
    if not finished:
        raise click.exceptions.Exit(INTERRUPTED)


@main.command()
@settings_options(("model", "revision", "backend", "adapter", "expert_slots", "activations"))
@click.option(
    "--text", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(get_args(Dtype)),
    help="Storage type of the weights to compare with f32. May be repeated.",
)  # fmt: skip
@click.option(
    "--kv-dtype", "kv_dtypes", multiple=True, type=click.Choice(get_args(KvDtype)),
    help="Storage type of the KV cache to compare with f16, with f16 weights. May be repeated.",
)  # fmt: skip
@span_option
@click.option(
    "--tokens", type=click.IntRange(2), default=2048, show_default=True,
    help="Maximum tokens of the text. Their logits are kept in a temporary file.",
)  # fmt: skip
def perplexity(
    file: Path,
    dtypes: tuple[str, ...],
    kv_dtypes: tuple[str, ...],
    span: int,
    tokens: int,
    **values: Any,
) -> None:
    """Measure the loss of quality of each storage type of the weights and of the KV cache on a
    text: perplexity, KL divergence from f32 weights or an f16 cache, and how often the likeliest
    token is the same. For caches, also the bytes per token, and all figures by position (0 to 127,
    128 to 511, … if --span is long enough). Without --dtype and --kv-dtype, all are measured.

    With --activations q8, the rows of q8 and q4 are measured with activations quantised to 8 bits.

    The text (UTF-8) is read in spans that do not overlap.
    """
    from app.cli.perplexity import report_lines

    text = _read_text(file)
    with _errors():
        for line in report_lines(Settings(**values), text, dtypes, kv_dtypes, span, tokens):
            click.echo(line)


@main.command()
@settings_options(("model", "revision", "dtype", "backend", "adapter", "expert_slots"))
@click.option(
    "--text", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text (UTF-8) on which experts are scored; it should resemble the intended use.",
)  # fmt: skip
@click.option(
    "--test", "test_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text on which perplexities are measured. Default: that of --text, which looks better.",
)  # fmt: skip
@click.option(
    "--share", type=click.FloatRange(0, 1), default=0.25, show_default=True,
    help="Share of each layer's experts to prune.",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(path_type=Path),
    help="Folder to write the smaller model to; it must be new or empty.",
)  # fmt: skip
@span_option
@click.option(
    "--tokens", type=click.IntRange(2), default=8192, show_default=True,
    help="Maximum tokens of each text.",
)  # fmt: skip
def reap(
    file: Path,
    test_file: Path | None,
    share: float,
    out: Path,
    span: int,
    tokens: int,
    **values: Any,
) -> None:
    """Prune the experts that matter least on a text from a mixture-of-experts model (REAP,
    arXiv 2510.13999), and write the rest as a smaller model.

    An expert's score is the mean of gate weight x norm of its output over the tokens routed to it.
    The weights are copied as they were saved; --dtype applies to scoring and to the perplexities.
    """
    from app.cli.reap import PruneOptions, report_lines

    text = _read_text(file)
    test = text if test_file is None else _read_text(test_file)
    with _errors():
        for line in report_lines(
            Settings(**values), PruneOptions(text, test, share, out, span, tokens)
        ):
            click.echo(line)


@main.command()
@click.argument("out", metavar="DIR", type=click.Path(path_type=Path))
@settings_options(("model", "revision", "dtype", "kv_dtype", "lora", "context", "kv_memory"))
def export(out: Path, **values: Any) -> None:
    """Write a model and the page to the folder DIR, as a static site that runs in the browser.

    Any file server can host DIR; no GPU is needed to write it. Adapters of --lora are exported with
    the model, and the page has sliders for them. An older export in DIR is replaced, and one that
    was interrupted is continued. docs/plan-format.md describes the files.
    """
    from app.cli.export import report_lines

    with _errors():
        for line in report_lines(Settings(**values), out):
            click.echo(line)


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: cannot be read as UTF-8 text ({error})") from None


@main.command()
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
    import gpu

    with _errors():
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


@main.command()
@click.option(
    "--remove", multiple=True, metavar="MODEL",
    help="Delete the files of a model that came from the package index. May be repeated.",
)  # fmt: skip
def models(remove: tuple[str, ...]) -> None:
    """List the models that can be run by name: bundled, downloaded and on offer, with size, licence
    and what they are good for.
    """
    from app.cli.models import model_lines, removal_lines

    with _errors():
        for line in removal_lines(remove) if remove else model_lines():
            click.echo(line)


@main.command()
@click.argument("model", required=False, envvar="TOKENGLASS_MODEL")
@settings_options(("revision", "dtype"))
def weights(model: str | None, revision: str | None, dtype: AutoDtype) -> None:
    """List the tensors of MODEL, named as --model is. Default: that of the other commands.

    Only headers are read, and no GPU is needed. Sizes on the device are those of loading the model
    with this --dtype.
    """
    from app.cli.weights_table import weight_lines
    from app.models.progress_line import fetch_with_line, find_with_line
    from gpu import Inventory

    with _errors():
        found = find_with_line(
            Settings(model=model, revision=revision, dtype=dtype), must_fit=False
        )
        fetch_with_line(found)
        for line in weight_lines(Inventory.from_folder(found.path, found.dtype.dtype), found.dtype):
            click.echo(line)


@main.command()
@click.argument("model", required=False, envvar="TOKENGLASS_MODEL")
@settings_options(("revision", "dtype", "kv_dtype", "context"))
@click.option(
    "--users", type=click.IntRange(1), default=1, show_default=True,
    help="Number of texts written at once, each of --context tokens.",
)  # fmt: skip
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=20, show_default=True,
    help="Tokens per second that each user should get.",
)  # fmt: skip
@click.option(
    "--device", "devices", multiple=True, metavar="NAME",
    help="A known device, such as H100, or `this` to measure the GPU of this machine. May be "
    "repeated. Default: all known devices.",
)  # fmt: skip
@settings_options(("adapter",))
@click.option(
    "--memory", type=click.FloatRange(0.001), help="Memory of a device that you describe, in GB.",
)  # fmt: skip
@click.option(
    "--bandwidth", type=click.FloatRange(0, min_open=True), help="Its bandwidth, in GB/s."
)
@click.option(
    "--flops", type=click.FloatRange(0, min_open=True), help="Its speed in f16, in TFLOPS."
)
@click.option(
    "--bus", type=click.FloatRange(0, min_open=True),
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
    import msgspec

    from app.cli import plan as sizing
    from app.models.shapes import find_shape
    from gpu import Workload, size_model

    with _errors():
        own = sizing.own_device(*(values[name] for name in ("memory", "bandwidth", "flops", "bus")))
        chosen = sizing.chosen_devices(devices, values["adapter"], own)
        shape = find_shape(model, values["revision"])
        work = Workload(
            sizing.dtype_of(shape, values["dtype"]),
            *(values[name] for name in ("kv_dtype", "users", "context", "rate")),
        )
        found = size_model(shape, work, chosen)
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
            return
        for line in sizing.report_lines(found):
            click.echo(line)


def _tune_or_report(which: str, device: DeviceInfo) -> None:
    """Measure a device and show the result, or show why it cannot be measured."""
    from gpu import DeviceError, autotune_device

    try:
        _show_tuning(which, autotune_device(which))
    except DeviceError as error:
        _show_device(which, device)
        click.echo(f"   cannot be measured: {error}")


def _show_device(which: str, device: DeviceInfo) -> None:
    kind = "software" if device.software else device.kind
    click.echo(f"{which}  {device.name}  ({device.backend}, {kind}; {device.driver})")
    if device.lacks:
        click.echo(f"   runs without {', '.join(device.lacks)}")


def _show_tuning(which: str, result: AutotuneResult) -> None:
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


@main.command()
def doctor() -> None:
    """Report versions, memory, adapters and how the engine uses them, to paste into an issue."""
    from app.cli.doctor import report

    with _errors():
        for line in report():
            click.echo(line)


@main.command()
@click.option(
    "--report", "file", type=click.Path(path_type=Path), metavar="FILE",
    help="File of the report, JSON; a page to read gets the same name with .md. "
    "Default: named after the GPU, in this folder.",
)  # fmt: skip
@click.option(
    "--minutes", type=click.FloatRange(0.5, 600), default=10, show_default=True,
    help="Time limit. What does not fit is left out, and the report says so.",
)  # fmt: skip
@settings_options(("adapter",))
def bench(file: Path | None, minutes: float, adapter: str | None) -> None:
    """Check and measure a GPU, and write a report to send in an issue.

    Every operation is compared with NumPy, tiny models of every architecture too; the same step is
    repeated 500 times; then come matrix products, attention, whole models with random weights, and
    other engines if they are installed. No model is needed and nothing is downloaded or sent.

    The file is written as it goes: Ctrl+C, a crash of the driver or the end of the time lose
    nothing, and the same command run again goes on where it ended.
    """
    from app.cli.bench import bench as run
    from app.cli.bench import last_lines
    from gpu.bench.machine import ReportFileError, page_path

    with _errors():
        try:
            path, report = run(file, adapter, minutes, click.echo)
        except ReportFileError as error:
            raise BadInput(str(error)) from None
        except KeyboardInterrupt:
            where = "" if file is None else f"; see {page_path(file)}"
            click.echo(f"stopped{where}; run the same command again to go on", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        for line in last_lines(path, report):
            click.echo(line)


@main.command(name="version")
def show_version() -> None:
    """Show the version."""
    click.echo(f"tokenglass {version()}")
