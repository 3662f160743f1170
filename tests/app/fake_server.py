"""Real server with the fake engine, for work on the page: `python -m tests.app.fake_server`.

It needs no GPU and no model, unless `--bundled` selects the real engine. `--help` lists the options
of the fake engine. With `--process`, kill the engine's process to see a restart.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import Any

import click

from app import create_app, tale
from app.cli.serve import tell
from app.config import Settings
from app.engine.backoff import RestartPolicy
from app.engine.heartbeat import Timeouts
from app.engine.loading import load_engine
from app.engine.supervisor import SupervisedEngine
from app.engine_client import EngineClient, Load, LocalEngine, Tokenizer
from app.models.find_model import find_model
from app.server import address, bind, http_server, run
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import CHAT_TEMPLATE, FakeTokenizer


@click.command()
@click.option("--port", default=8000, show_default=True)
@click.option("--delay", default=0.05, show_default=True, help="Seconds per token.")
@click.option("--n-layers", default=8, show_default=True)
@click.option("--n-heads", default=8, show_default=True)
@click.option("--context", default=512, show_default=True)
@click.option("--n-slots", default=4, show_default=True)
@click.option("--queue", default=16, show_default=True)
@click.option("--load-seconds", default=0.0, show_default=True, help="How long loading takes.")
@click.option("--fail", default="", help="A message with which loading fails.")
@click.option("--conversion", default="", help="What became of the types of a file.")
@click.option("--dtype-reason", default="", help="Why the storage type was chosen.")
@click.option("--chat/--no-chat", default=True, help="Does the model have a chat template?")
@click.option("--template", default=CHAT_TEMPLATE, help="Its source.")
@click.option("--process", is_flag=True, help="Run the engine in a process of its own.")
@click.option("--bundled", is_flag=True, help="The real engine with the bundled model.")
@click.option("--silent", default=10.0, show_default=True, help="Seconds until it is frozen.")
@click.option("--at-once", default=3, show_default=True, help="RestartPolicy without a pause.")
def main(
    port: int,
    chat: bool,
    template: str,
    process: bool,
    bundled: bool,
    silent: float,
    at_once: int,
    **options: Any,
) -> None:
    """Serve the playground with the fake engine on 127.0.0.1."""
    settings = Settings(port=port)
    tokenizer: Tokenizer = FakeTokenizer(template if chat else None)
    load: Load = loader(**options)
    if bundled:
        model = find_model(replace(settings, model="tale"))
        tokenizer = model.tokenizer
        load = functools.partial(load_engine, settings, model.source, warm_up=True)
    path = tale.model_dir()
    engine: EngineClient = LocalEngine(load, tokenizer, path)
    if process:
        engine = SupervisedEngine(
            load,
            tokenizer,
            path=path,
            timeouts=Timeouts(silent=silent),
            restart_policy=RestartPolicy(at_once=at_once),
        )
        engine.listen(lambda status, hello: _tell_pid(engine) if hello else None)
    app = create_app(settings, engine)
    app.config["TEMPLATES_AUTO_RELOAD"] = True
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 0
    with bind(settings.host, settings.port) as listener:
        server = http_server(listener, app)
        tell(f"fake engine on {address(settings, server.port)}")
        failure = run(server, engine, tell)
    sys.exit(failure)


def _tell_pid(engine: SupervisedEngine) -> None:
    tell(f"engine process {engine.pid}")


if __name__ == "__main__":
    main()
