"""A fault of a thousand rows is told in a few lines, and each of them is counted."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from rowlock import logs
from rowlock.logs import KINDS_MAX, LINES_MAX, WINDOW_S, LogLine, Repeats
from rowlock.testing import virtual_time

from ..pipelines.told import told

logger = logs.get_logger("rowlock.tried")
TENANT: ContextVar[str] = ContextVar("TENANT")
TEXT = "%(pipeline)s: processing row %(row_id)s failed"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    logs.forget()
    yield
    logs.forget()


def fail(row: int, error: type[Exception] = ValueError, pipeline: str = "P") -> None:
    try:
        raise error(row)
    except error as raised:
        logger.error(TEXT, {"pipeline": pipeline, "row_id": row}, exc_info=raised)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


@virtual_time
async def test_one_traceback_a_minute_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    """A traceback of 8 KB for each retry of each row was 12.8 MB of log in 140 s."""
    for row in range(500):
        fail(row)
        await asyncio.sleep(0.1)
    assert lines(caplog) == ["P: processing row 0 failed"]
    await asyncio.sleep(WINDOW_S)
    assert len(caplog.records) == 1, "told when the minute ends, without another line"
    assert told(caplog, "")[0].extra == {
        "pipeline": "P",
        "row_id": 499,
        "count": 499,
        "error_type": "ValueError",
    }
    assert lines(caplog) == [
        "499 more were counted and not shown; the last one: P: processing row 499 failed"
    ]
    await asyncio.sleep(10 * WINDOW_S)
    assert lines(caplog) == []
    fail(500)
    assert told(caplog, "")[0].error == "ValueError(500)", "the next minute begins with a traceback"


@virtual_time
async def test_a_flood_that_goes_on_is_told_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    """An outage of an hour is an hour of lines, and not one at its beginning."""
    for row in range(600):
        fail(row)
        await asyncio.sleep(0.5)
    logs.tell_counts()
    shown = lines(caplog)
    counts = [int(line.split()[0]) for line in shown if "more were counted" in line]
    assert len(shown) == 2 * 5
    assert sum(counts) + 5 == 600, "nothing is lost"


@virtual_time
async def test_kinds_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    """One noisy pipeline would hide the failures of all others, and one error all others of its
    pipeline.
    """
    for _ in range(3):
        fail(1)
        fail(1, LookupError)
        fail(1, pipeline="Q")
        logger.error("something else", exc_info=ValueError(1))
        logger.warning(TEXT, {"pipeline": "P", "row_id": 1}, exc_info=ValueError(1))
    assert len(lines(caplog)) == 5


@virtual_time
async def test_a_thousand_rows_lost_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Lines without a traceback stay, while they are few."""
    for row in range(1000):
        logger.warning("the lease of row %(row_id)s was lost", {"pipeline": "P", "row_id": row})
    await asyncio.sleep(WINDOW_S)
    shown = lines(caplog)
    assert shown[:LINES_MAX] == [f"the lease of row {row} was lost" for row in range(LINES_MAX)]
    assert [line.split()[0] for line in shown[LINES_MAX:]] == [str(1000 - LINES_MAX)]


@virtual_time
async def test_a_text_of_many_lines_counts_like_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a worker elsewhere failed with comes as a text."""
    for kind in ("ValueError", "ValueError", "LookupError"):
        logger.warning(
            "A handler failed\n%(detail)s", {"detail": "its traceback", "error_type": kind}
        )
    assert len(lines(caplog)) == 2


@virtual_time
async def test_counts_are_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A replica that ends within the minute would keep for itself how often it failed."""
    for row in range(3):
        fail(row)
    lines(caplog)
    logs.tell_counts()
    assert [line.split()[0] for line in lines(caplog)] == ["2"]
    logs.tell_counts()
    fail(4)
    assert lines(caplog) == [], "the minute goes on"
    await asyncio.sleep(WINDOW_S)
    assert [line.split()[0] for line in lines(caplog)] == ["1"]


def test_threads_without_a_loop_tell_theirs_with_the_next_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There is no timer where no loop runs."""
    moved = Repeats()
    line = LogLine("rowlock.tried", logging.ERROR, TEXT, {}, "ValueError")
    assert moved.admit(line, 0.0, None) == ([], None)
    counted, window = moved.admit(line, 1.0, None)
    assert window is not None
    counted, window = moved.admit(line, WINDOW_S, None)
    assert window is None
    assert [lines for _, lines in counted] == [1]


def test_a_new_loop_has_a_clock_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """The next test, or the next ``asyncio.run``, would miss its first lines."""
    for _ in range(3):
        asyncio.run(one_failure())
        gc.collect()
    assert lines(caplog).count("P: processing row 1 failed") == 3


async def one_failure() -> None:
    fail(1)
    fail(2)


def test_kinds_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Texts that are made for each row would fill the memory, or the log."""
    for n in range(KINDS_MAX + 500):
        logger.warning(f"row {n}\n", {"row_id": n})  # noqa: G004 - as nobody should
    assert len(logs._repeats._windows) == KINDS_MAX + 1
    assert len(lines(caplog)) == KINDS_MAX + 1
    logs.tell_counts()
    assert [line.split()[0] for line in lines(caplog)] == ["499"]


def test_old_kinds_make_room() -> None:
    """A process would come to show nothing of a new kind, months after its start."""
    kinds = Repeats()
    for n in range(KINDS_MAX):
        line = LogLine("rowlock.tried", logging.ERROR, str(n), {}, "ValueError")
        assert kinds.admit(line, 0.0, None) == ([], None)
    kinds.admit(LogLine("rowlock.tried", logging.ERROR, "0", {}, "ValueError"), 1.0, None)
    line = LogLine("rowlock.tried", logging.ERROR, "new", {}, "ValueError")
    counted, window = kinds.admit(line, WINDOW_S, None)
    assert window is None
    assert [(line.text, lines) for line, lines in counted] == [("0", 1)], "the count is not lost"
    assert len(kinds._windows) == 1


def test_counting_is_safe_in_threads(caplog: pytest.LogCaptureFixture) -> None:
    """Leases are renewed in a thread of their own, which logs too."""
    threads = [threading.Thread(target=lambda: [fail(n) for n in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logs.tell_counts()
    first, counted = lines(caplog)
    assert (first[:17], counted.split()[0]) == ("P: processing row", str(8 * 200 - 1))


@virtual_time
async def test_a_count_is_not_told_in_the_context_of_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A host's filter adds what its context variables hold: the count would bear the name of one
    row's tenant.
    """
    seen: list[Any] = []

    class Tenants(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            seen.append(TENANT.get("nobody's"))

    handler = Tenants()
    logging.getLogger("rowlock").addHandler(handler)
    token = TENANT.set("a's")
    try:
        fail(1)
        fail(2)
        await asyncio.sleep(WINDOW_S)
    finally:
        TENANT.reset(token)
        logging.getLogger("rowlock").removeHandler(handler)
    assert seen == ["a's", "nobody's"]


@virtual_time
async def test_a_percent_sign_is_no_template(caplog: pytest.LogCaptureFixture) -> None:
    """A message without arguments may hold one."""
    for _ in range(2):
        logger.error("100% wrong", exc_info=ValueError())
    logs.tell_counts()
    assert lines(caplog)[1] == "1 more were counted and not shown; the last one: 100% wrong"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_tells_only_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Each child of a server that forks would tell its parent's count again, or wait for a lock
    that nobody frees.
    """
    fail(1)
    fail(2)
    with logs._repeats._lock:
        child = os.fork()
        if child == 0:
            fail(3)
            os._exit(len(logs._repeats.end_all()))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [lines for _, lines in logs._repeats.end_all()] == [1]
