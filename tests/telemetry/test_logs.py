"""Fields of attempts on the host's lines, and lines that repeat."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from rowlock import Apply, PipelineItem, PipelineManager
from rowlock.telemetry import logs
from rowlock.telemetry.logs import AttemptFields, RepeatLimit, attempt_fields, surround_logs
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Volume, VolumePipeline
from ..pipelines.scenes import add, until

host = logging.getLogger("tests.telemetry.host")


class Kept(logging.Handler):
    def __init__(self, *filters: logging.Filter) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        for one in filters:
            self.addFilter(one)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep `record`."""
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """Return the lines of the host, with the fields of their attempts."""
    handler = Kept(AttemptFields())
    host.addHandler(handler)
    host.setLevel(logging.INFO)
    yield handler.records
    host.removeHandler(handler)


@virtual_time
async def said_by_attempts(virtual_database: TemporaryDatabase) -> None:
    await add(virtual_database, Volume(), Volume())

    async def answer(item: PipelineItem[Volume]) -> Apply:
        host.info("at work", extra={"volume": item.id})
        assert attempt_fields()["rowlock_row_id"] == item.id
        return Apply()

    pipeline = VolumePipeline(answer=answer)
    async with PipelineManager(
        virtual_database.session_factory, [pipeline], surround=[surround_logs]
    ):
        await until(lambda: pipeline.statistics().counters["applied"] >= 2)


def test_lines_of_an_attempt_say_whose_they_are(
    lines: list[logging.LogRecord], virtual_database: TemporaryDatabase
) -> None:
    """Lines of a row could not be found, or would carry the fields of another row."""
    said_by_attempts(virtual_database=virtual_database)
    host.info("between")
    *at_work, between = [record.__dict__ for record in lines]
    assert len(at_work) >= 2
    for fields in at_work:
        assert fields["rowlock_row_id"] == fields["volume"]
        assert fields["rowlock_pipeline"] == "VolumePipeline"
        assert fields["rowlock_attempt"] == 1
        assert len(fields["rowlock_replica"]) == 8
    assert [between[name] for name in logs.FIELDS] == [None] * 5


def test_fields_that_are_set_stay(lines: list[logging.LogRecord]) -> None:
    """A field of rowlock's own line would be replaced by that of the attempt around it."""
    host.info("mine", extra={"rowlock_row_id": 7})
    assert lines[0].__dict__["rowlock_row_id"] == 7


def test_a_line_that_repeats_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing provider would fill the disk with one line."""
    now = 0.0
    monkeypatch.setattr(logs, "monotonic", lambda: now)
    limited, other = Kept(RepeatLimit()), Kept()
    logger = logging.getLogger("tests.telemetry.repeats")
    logger.setLevel(logging.INFO)
    logger.addHandler(limited)
    logger.addHandler(other)
    try:
        for number in range(42):
            logger.warning("provider %s failed", number)
        logger.warning("something else")
        now = 29.9
        logger.warning("provider %s failed", 42)
        assert [one.getMessage() for one in limited.records] == [
            "provider 0 failed",
            "something else",
        ]
        now = 30.0
        logger.warning("provider %s failed", 43)
        logger.warning("something else")
    finally:
        logger.removeHandler(limited)
        logger.removeHandler(other)
    if sys.version_info >= (3, 12):  # before, a filter cannot replace the record
        assert limited.records[2].getMessage() == "provider 43 failed (42 more were held back)"
        assert limited.records[2].__dict__["rowlock_held_back"] == 42
    assert len(other.records) == 46
    assert other.records[-2].getMessage() == "provider 43 failed"
    assert limited.records[3].getMessage() == "something else"


class Unspeakable:
    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        pytest.param("%d provisioned", ("many",), id="arguments"),
        pytest.param(Unspeakable(), (), id="message"),
    ],
)
def test_a_line_that_cannot_be_written_is_the_handlers(
    monkeypatch: pytest.MonkeyPatch, message: object, arguments: tuple[str, ...]
) -> None:
    """A slip in a line of the log would end the attempt that logs it."""
    now = 0.0
    monkeypatch.setattr(logs, "monotonic", lambda: now)
    limited = Kept(RepeatLimit())
    logger = logging.getLogger("tests.telemetry.slips")
    # The handlers of the test run would report the slip themselves.
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(limited)
    try:
        for _ in range(3):
            logger.warning(message, *arguments)
        now = 30.0
        logger.warning(message, *arguments)
    finally:
        logger.removeHandler(limited)
    assert [one.msg for one in limited.records] == [message, message]
    assert limited.records[0].args == arguments


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages with a value in them would fill the memory."""
    monkeypatch.setattr(logs, "KINDS_MAX", 10)
    limit = RepeatLimit()
    for number in range(50):
        record = logging.makeLogRecord({"name": "x", "msg": f"row {number}"})
        assert limit.filter(record)
    assert len(limit._kinds) == 10
