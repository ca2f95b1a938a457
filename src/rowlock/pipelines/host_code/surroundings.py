"""Calls `process` within what the host has put around every attempt.

The one idea: whoever looks on harms no outcome. What is around an attempt sees its error and cannot
swallow it, and what it raises itself is logged and goes no further.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.host_code.seams import Surround

logger = get_logger(__name__)

T = TypeVar("T")


async def call_within(
    surround: Sequence[Surround],
    item: PipelineItem[Any],
    call: Callable[[], Awaitable[T]],
    *,
    pipeline: str,
) -> T:
    """Await `call` within what each of `surround` returns for `item`, in the caller's task.

    Raises:
        BaseException: what `call` has raised.
    """
    # Written out, since it is paid for each row.
    entered: list[AbstractContextManager[object]] = []
    for make in surround:
        try:
            manager = make(item)
            manager.__enter__()
        # Of the host's, which raises anything.
        except BaseException:
            logger.exception(
                "%s: what surrounds an attempt could not be entered",
                pipeline,
                extra=_fields(item, pipeline),
            )
        else:
            entered.append(manager)
    try:
        result = await call()
    except BaseException as error:
        _leave(entered, error, item, pipeline=pipeline)
        raise
    _leave(entered, None, item, pipeline=pipeline)
    return result


def _leave(
    entered: Sequence[AbstractContextManager[object]],
    error: BaseException | None,
    item: PipelineItem[Any],
    *,
    pipeline: str,
) -> None:
    kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
    for manager in reversed(entered):
        try:
            manager.__exit__(kind, error, traceback)
        except BaseException as raised:
            # One that is a generator lets the attempt's own error through.
            if raised is not error:
                logger.exception(
                    "%s: what surrounds an attempt could not be left",
                    pipeline,
                    extra=_fields(item, pipeline),
                )


def _fields(item: PipelineItem[Any], pipeline: str) -> dict[str, object]:
    return {"pipeline": pipeline, "row_id": item.id}
