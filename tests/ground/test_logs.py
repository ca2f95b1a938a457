"""Logging: whatever the host's part of it does, the caller goes on."""

from __future__ import annotations

import logging
import sys
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from rowlock import logs

LIBRARY = logging.getLogger("rowlock")
logger = logs.get_logger("rowlock.tried")


class RaisingHandler(logging.Handler):
    """A handler that lets its errors out, as many of hosts do."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def emit(self, _record: logging.LogRecord) -> None:
        raise self._error


class RaisingFormatter(logging.Formatter):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def format(self, _record: logging.LogRecord) -> str:
        raise self._error


@pytest.fixture(autouse=True)
def whole_again() -> Iterator[None]:
    factory, raises = logging.getLogRecordFactory(), logging.raiseExceptions
    handlers, filters = LIBRARY.handlers[:], LIBRARY.filters[:]
    logs.forget()
    yield
    logging.setLogRecordFactory(factory)
    logging.raiseExceptions = raises
    LIBRARY.handlers[:], LIBRARY.filters[:] = handlers, filters
    logs.forget()


def hostile_factory(error: BaseException) -> None:
    def factory(*_args: Any, **_kwargs: Any) -> logging.LogRecord:
        raise error

    logging.setLogRecordFactory(factory)


def hostile_filter(error: BaseException) -> None:
    class RaisingFilter(logging.Filter):
        def filter(self, _record: logging.LogRecord) -> bool:
            raise error

    handler = logging.NullHandler()
    handler.addFilter(RaisingFilter())
    LIBRARY.addHandler(handler)


def hostile_handler(error: BaseException) -> None:
    LIBRARY.addHandler(RaisingHandler(error))


def hostile_formatter(error: BaseException) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(RaisingFormatter(error))
    LIBRARY.addHandler(handler)


HOSTILE = (hostile_factory, hostile_filter, hostile_handler, hostile_formatter)
ERRORS = (KeyError("Attempt to overwrite 'worker'"), CancelledError())


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_whatever_the_hosts_logging_raises(
    hostile: Callable[[BaseException], None], error: BaseException
) -> None:
    """An actor would die in the middle of what it does, and leave a row leased for ever."""
    hostile(error)
    logger.warning("a row: %(row_id)s", {"row_id": 1})
    logger.error("a row failed: %(row_id)s", {"row_id": 1}, exc_info=ValueError("its own"))
    try:
        raise LookupError
    except LookupError:
        logger.exception("a row failed")


def test_a_broken_log_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The host would never learn why its log is empty, or would have its stderr filled."""
    hostile_handler(LookupError("no disk"))
    for _ in range(3):
        logger.warning("a row")
    told = capsys.readouterr().err
    assert told.count("LookupError: no disk") == 1
    assert "rowlock: logging is broken" in told


def test_a_host_that_wants_no_errors_of_logging_gets_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``logging.raiseExceptions = False`` is how a host says so in production."""
    logging.raiseExceptions = False
    hostile_handler(LookupError("no disk"))
    logger.warning("a row")
    assert capsys.readouterr().err == ""


def test_stderr_that_is_gone_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saying that logging is broken would break what logging did not."""
    hostile_handler(LookupError("no disk"))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        logger.warning("a row")


def test_fields_stand_under_one_prefix(caplog: pytest.LogCaptureFixture) -> None:
    """A host's record factory that sets `worker` had every line of ours refused with a
    ``KeyError``.
    """
    plain = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = plain(*args, **kwargs)
        record.worker = record.row_id = record.pipeline = "the host's"
        return record

    logging.setLogRecordFactory(factory)
    fields = {"worker": "w", "row_id": 1, "pipeline": "P", "message": "m", "name": "n"}
    logger.warning("a row", fields)
    [record] = caplog.records
    ours = {name: value for name, value in vars(record).items() if name.startswith("rowlock_")}
    assert ours == {f"rowlock_{name}": value for name, value in fields.items()}
    assert vars(record)["worker"] == "the host's"


def test_a_record_names_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    """``%(funcName)s`` and ``%(lineno)d`` would name this module for every line."""
    caplog.set_level(logging.DEBUG, "rowlock")
    logger.debug("a row")
    logger.info("a row")
    logger.warning("a row")
    logger.error("a row")
    logger.exception("a row")  # noqa: LOG004 - its caller is looked at
    assert {record.funcName for record in caplog.records} == {"test_a_record_names_its_caller"}
    assert [record.levelname for record in caplog.records] == [
        "DEBUG",
        "INFO",
        "WARNING",
        "ERROR",
        "ERROR",
    ]


def test_a_level_that_is_off_costs_nothing() -> None:
    """Nothing of the host's runs for a line that nobody reads."""
    hostile_factory(OSError("asked"))
    level = LIBRARY.level
    LIBRARY.setLevel(logging.CRITICAL)
    try:
        for _ in range(3):
            logger.error("a row", {"row_id": 1}, exc_info=ValueError("its own"))
    finally:
        LIBRARY.setLevel(level)
    assert not logs._broken.is_told
    assert logs._repeats.end_all() == [], "nor is it counted"


def test_a_traceback_tells_no_values_whoever_formats_it(caplog: pytest.LogCaptureFixture) -> None:
    """Formatters of JSON and error trackers go by the error of the record, and not by its text."""
    secret = "s3cr3t-value"
    try:
        try:
            raise DBAPIError(
                "SELECT 1", {"name": secret}, ValueError(f"refused\nDETAIL:  Key (name)=({secret})")
            )
        except DBAPIError as error:
            raise LookupError("the host's own") from error
    except LookupError as error:
        logger.exception("a row failed")
        logger.error("a row failed: given", exc_info=error)
    for record in caplog.records:
        assert record.exc_info is not None
        assert "the host's own" in logging.Formatter().formatException(record.exc_info)
        assert secret not in logging.Formatter().formatException(record.exc_info)
        assert "(builtins.ValueError) refused" in caplog.text
    assert secret not in caplog.text
    assert len(caplog.records) == 2


def test_a_traceback_of_nothing_is_none(caplog: pytest.LogCaptureFixture) -> None:
    """``NoneType: None`` would stand below the line."""
    logger.exception("a row failed")  # noqa: LOG004 - as a caller might
    assert [record.exc_info for record in caplog.records] == [None]
