"""Server whose engine also writes down how many GPU objects it has: `python -m tests.soak.server`.

It is the server of `tokenglass serve` but for that, and it keeps few finished generations, so that
their memory reaches its bound soon.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from app import create_app, server
from app.config import Settings
from app.engine.loading import load_engine
from app.ws.sessions import Retention
from gpu import Engine

COUNT_SECONDS = 0.5


def load_counted(counts: str, *args: Any, **options: Any) -> Engine:
    """Load the engine, and write its process and its GPU objects to the file `counts` every half
    second."""
    import wgpu

    def count() -> None:
        while True:
            own = wgpu.diagnostics.object_counts.get_dict()
            native = wgpu.diagnostics.wgpu_native_counts.get_dict()
            objects = {kind: int(row["count"]) for kind, row in own.items()}
            objects |= {f"native {kind}": int(row["count"]) for kind, row in native.items()}
            found = {"pid": os.getpid(), "objects": objects}
            Path(f"{counts}.new").write_text(json.dumps(found), "utf-8")
            Path(f"{counts}.new").replace(counts)
            time.sleep(COUNT_SECONDS)

    engine = load_engine(*args, **options)
    threading.Thread(target=count, name="object counts", daemon=True).start()
    return engine


def main(model: str, counts: str, **settings: Any) -> str | None:
    """Serve until told to stop. `settings`: those of `app.config.Settings`."""
    server.load_engine = functools.partial(load_counted, counts)
    server.create_app = functools.partial(create_app, retention=Retention(n_finished=4))
    return server.serve(
        Settings(model=model, port=0, switching=False, weight_cache=0, **settings),
        functools.partial(print, flush=True),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3])))
