"""Futures that the engine's thread answers, each once. Their owner may have cancelled them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def answer(future: Future[T], result: T) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(result)


def refuse(future: Future[T], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
