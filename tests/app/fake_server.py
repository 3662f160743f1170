"""The real server around the fake engine, for work on the page: `python -m tests.app.fake_server`.

No GPU and no model. `--help` lists what the fake can be made to do.
"""

from __future__ import annotations

from typing import Any

import click
from werkzeug.serving import make_server

from app import create_app
from app.config import Settings
from app.engines import LocalEngine
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
@click.option("--chat/--no-chat", default=True, help="Does the model have a chat template?")
def main(port: int, chat: bool, **options: Any) -> None:
    """Serve the playground with the fake engine on 127.0.0.1."""
    tokenizer = FakeTokenizer(CHAT_TEMPLATE if chat else None)
    engine = LocalEngine(loader(**options), tokenizer)
    app = create_app(Settings(port=port), engine)
    app.config["TEMPLATES_AUTO_RELOAD"] = True
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = 0
    server = make_server("127.0.0.1", port, app, threaded=True)
    engine.start()
    click.echo(f"fake engine on http://127.0.0.1:{server.port}/")
    try:
        server.serve_forever()
    finally:
        engine.close()


if __name__ == "__main__":
    main()
