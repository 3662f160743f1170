"""A page in which tests drive the engine in the browser: exports, runs and their events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
from playwright.sync_api import Browser, Page, Route

from app.http.page_data import limits_data, sampling_data
from gpu.inspection.requests import NUMPY_TYPES, Question
from gpu.interventions.messages import NO_INTERVENTIONS, Interventions, InterventionSpan
from gpu.sampling_params import SamplingParams

Array = npt.NDArray[Any]
SITE = "http://localhost:1/"
"""WebGPU and hashes want a page of a secure origin; nobody listens there, the browser is given all
files."""
STATIC = Path(__file__).parents[2] / "static"
TYPES = {".js": "text/javascript", ".json": "application/json", ".html": "text/html"}

LOAD = """async ([base, sampling, requestLimits]) => {
  const { LocalEngine } = await import("/static/js/local/gpu/engine.js");
  const { requestAdapter } = await import("/static/js/local/gpu/device.js");
  const text = {
    piece: (id) => `<${id}>`,
    eosIds: [],
    decodeStream: () => ({ push: (id) => `<${id}>`, flush: () => "" }),
  };
  window.progress = [];
  const { ExportFiles } = await import("/static/js/local/gpu/export-files.js");
  const given = { adapter: await requestAdapter(), files: await ExportFiles.open(base) };
  const onProgress = (at) => progress.push(at);
  window.engine = await LocalEngine.load({ ...given, text, onProgress });
  const { Inspector } = await import("/static/js/local/inspection/inspector.js");
  const { RequestChecks } = await import("/static/js/local/request-checks.js");
  const { plan, profile, adapter, limits } = engine.info;
  const { vocab_size, n_layers, n_heads, loras = [], eos_ids: endIds } = plan.model;
  const { expert_layers: layers, n_experts: n, experts_per_token: perToken } = plan.model;
  window.checks = new RequestChecks(sampling, requestLimits, {
    vocabSize: vocab_size, nLayers: n_layers, nHeads: n_heads, context: limits.context,
    tokenize: (text) => texts[text], loras: loras.map(({ name }) => name),
    moe: { layers, n, perToken },
  });
  const { recomputer, activations } = engine;
  const parts = { recomputer, activations, engine, plan, checks, endIds };
  window.inspector = new Inspector({ ...parts, limits: requestLimits.questions });
  return { profile, adapter, limits };
}"""

RUN = """async (requests) => {
  const run = ({ ids, params, capture, updates, reach, reached, live }) =>
    new Promise((resolve, reject) => {
      const events = [];
      const seeded = { ...params, seed: BigInt(params.seed) };
      const onEvent = (event) => {
        events.push(event);
        if (live && event.type === "token" && event.index === live.after) {
          if (live.cancel) handle.cancel();
          else change(live).catch(reject);
        }
        if (event.type === "done") resolve(events);
      };
      const change = async ({ params: set, capture: on = null, reach: wanted = null }) =>
        handle.update(set, on, wanted && checks.interventions.encode(wanted));
      const interventions = checks.check({ ids, params: seeded, updates, reach, reached });
      const asked = { ids, params: seeded, capture, updates, interventions, onEvent };
      const handle = engine.submit(asked);
    });
  return Promise.all(requests.map(run));
}"""


ASK = """async (question) => {
  const { info, arrays } = await engine.ask(inspector.start(question));
  for (const array of Object.values(arrays)) {
    array.dtype = array.values instanceof Uint32Array ? "u32" : "f32";
    array.values = [...array.values];
  }
  return { info, arrays };
}"""


class LocalEnginePage:
    """A page in which one export at a time is loaded."""

    def __init__(self, launch: Callable[..., Browser], args: list[str]) -> None:
        self._browser = launch(args=[*args, "--enable-unsafe-webgpu"])
        self.page: Page = self._browser.new_page()
        self._exports: dict[str, Path] = {}
        self.loaded: Path | None = None
        self.page.route(f"{SITE}**", self._answer)
        self.page.goto(SITE)

    def load(self, folder: Path) -> dict[str, Any]:
        """Load an export; return what the engine says of itself. Raises playwright's Error with
        the engine's message."""
        self.loaded = None
        self.page.evaluate("window.engine?.close()")
        given = [self.serve(folder), sampling_data(), limits_data()]
        found: dict[str, Any] = self.page.evaluate(LOAD, given)
        self.loaded = folder
        return found

    def set_texts(self, texts: dict[str, list[int]]) -> None:
        """Set the ids of the texts that interventions name."""
        self.page.evaluate("(given) => void (window.texts = given)", texts)

    def serve(self, folder: Path) -> str:
        """Give the page the files of a folder; return its address."""
        name = f"export{len(self._exports)}"
        self._exports[name] = folder
        return f"{SITE}{name}/"

    def run(self, *requests: dict[str, Any]) -> list[list[dict[str, Any]]]:
        """Submit all requests together; return the events of each."""
        found: list[list[dict[str, Any]]] = self.page.evaluate(RUN, list(requests))
        return found

    def ask(self, question: Question) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the info and the arrays of an answer. Raises playwright's Error with the
        engine's message."""
        asked = msgspec.to_builtins(question)
        if "params" in asked:
            asked["params"]["seed"] = str(asked["params"]["seed"])
        found = self.page.evaluate(ASK, asked)
        arrays = {
            name: np.array(array["values"], NUMPY_TYPES[array["dtype"]]).reshape(array["shape"])
            for name, array in found["arrays"].items()
        }
        return found["info"], arrays

    def close(self) -> None:
        self._browser.close()

    def _answer(self, route: Route) -> None:
        first, _, rest = unquote(urlsplit(route.request.url).path)[1:].partition("/")
        if not first:
            route.fulfill(body="<!doctype html><title>engine</title>", content_type="text/html")
            return
        folder = STATIC if first == "static" else self._exports[first]
        path = folder / rest
        if path.is_file():
            route.fulfill(
                body=path.read_bytes(),
                content_type=TYPES.get(path.suffix, "application/octet-stream"),
            )
        else:
            route.fulfill(status=404, body="not found")


def request(
    ids: list[int],
    capture: bool = False,
    updates: list[dict[str, Any]] | None = None,
    live: dict[str, Any] | None = None,
    interventions: Interventions = NO_INTERVENTIONS,
    spans: Sequence[InterventionSpan] = (),
    **params: Any,
) -> dict[str, Any]:
    """Return a request as `LocalEnginePage.run` takes it. `live`: {after, params, capture, reach}
    or {after, cancel}, done when the token with the index `after` arrives."""
    settings = {"seed": 5, "ignore_eos": True, **params}
    encoded = msgspec.to_builtins(SamplingParams(**settings))
    encoded["seed"] = str(settings["seed"])
    return {
        "ids": ids, "params": encoded, "capture": capture, "updates": updates or [], "live": live,
        "reach": msgspec.to_builtins(interventions), "reached": msgspec.to_builtins(tuple(spans)),
    }  # fmt: skip


def tokens_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the token events."""
    return [event for event in events if event["type"] == "token"]


def ids_of(events: list[dict[str, Any]]) -> list[int]:
    """Return the ids of the written tokens."""
    return [event["id"] for event in tokens_of(events)]
