"""What a host may register as a handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from rowlock.errors import ConfigurationError
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import FORGET, HandlerKind, StageHandler, check_handler

from .stages import STEP, batch_of, poisoned


def three(step: object, row: object, events: object) -> None:
    """A fold, or a batch handler."""


def four(step: object, key: object, state: object, events: object) -> None:
    """A handler by key."""


def many(*args: object) -> None:
    """Any handler."""


async def later(step: object, key: object, state: object, events: object) -> None:
    """A coroutine function."""


async def generated_later(
    step: object, key: object, state: object, events: object
) -> AsyncIterator[int]:
    yield 1


def generated(step: object, key: object, state: object, events: object) -> Iterator[int]:
    yield 1


class Called:
    def __call__(self, step: object, key: object, state: object, events: object) -> None:
        """Handle events."""


class CalledLater:
    async def __call__(self, step: object, key: object, state: object, events: object) -> None:
        """Handle events."""


HANDLERS: list[tuple[Callable[..., Any], HandlerKind]] = [
    (four, "by_key"),
    (Called(), "by_key"),
    (many, "by_key"),
    (partial(lambda extra, *rest: None, 1), "by_key"),
    (three, "fold"),
    (three, "batch"),
    (many, "batch"),
    (max, "by_key"),
]


@pytest.mark.parametrize(("call", "kind"), HANDLERS)
def test_handlers(call: Callable[..., Any], kind: HandlerKind) -> None:
    """What can be called with these arguments would be refused."""
    check_handler(call, kind)
    StageHandler("s", kind, call)


NONE: list[tuple[object, HandlerKind, str]] = [
    (5, "by_key", "cannot be called"),
    (later, "by_key", "asynchronous"),
    (partial(later, 1), "by_key", "asynchronous"),
    (CalledLater(), "by_key", "asynchronous"),
    (generated, "by_key", "generator"),
    (generated_later, "by_key", "generator"),
    (three, "by_key", "must take"),
    (four, "fold", "must take"),
    (four, "batch", r"must take \(step, batch, states\)"),
]


@pytest.mark.parametrize(("call", "kind", "text"), NONE)
def test_what_is_no_handler(call: Any, kind: HandlerKind, text: str) -> None:
    """A coroutine would never be awaited, and its events would count as processed."""
    with pytest.raises(ConfigurationError, match=text):
        StageHandler("s", kind, call)


RETURNS: list[tuple[HandlerKind, Any, object, str]] = [
    ("by_key", Codec(int), None, "returned None"),
    ("by_key", Codec(int), "5", "is no int"),
    ("by_key", None, 5, "must return None"),
    ("by_key", None, FORGET, "must return None"),
    ("batch", Codec(int), [1], "not a dict"),
    ("batch", Codec(int), {1: 5}, "a key is its text"),
    ("batch", Codec(int), {"k": None}, "is no int"),
    ("batch", None, {"k": 5}, "must return None"),
    ("fold", None, 5, "must return None"),
]


@pytest.mark.parametrize("kind", ["by_key", "batch", "fold"])
def test_a_coroutine_that_is_returned(kind: HandlerKind) -> None:
    """A lambda around a coroutine function is refused with advice, and nothing stays unawaited."""
    stage = StageHandler(
        "s", kind, lambda *_: later(1, 1, 1, 1), Codec(int), fresh=lambda _: object()
    )
    failed = poisoned(stage, batch_of(int, ("k", 1)))
    assert "returned a coroutine, which is not awaited: a handler is a plain" in str(failed.error)


@pytest.mark.parametrize(("kind", "codec", "after", "text"), RETURNS)
def test_wrong_returns(kind: HandlerKind, codec: Any, after: object, text: str) -> None:
    """A forgotten ``return`` would drop the state of a key."""
    stage = StageHandler("s", kind, lambda *_: after, codec, fresh=lambda _: object())
    failed = poisoned(stage, batch_of(int, ("k", 1)))
    assert text in str(failed.error)
    assert isinstance(failed.error, TypeError)
    assert failed.step == STEP.number
