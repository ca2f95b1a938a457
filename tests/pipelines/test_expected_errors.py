"""Tests of `retry_on` and `park_on`: errors out of `process` for which the host has a rule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rowlock import ConfigurationError, ModelError, SettingsError, events
from rowlock.pipelines.attempt import rule_for
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, VolumePipeline, heard_events
from .scenes import add, counted, read
from .told import told


class ProviderError(Exception):
    """Whatever the provider answers."""


class RateLimited(ProviderError):
    def __init__(self, wait_s: Any) -> None:
        super().__init__("slow down")
        self.wait_s = wait_s


class InvalidCard(ProviderError):
    """No attempt can mend it."""


class Charges(RunPipeline):
    retry_on: ClassVar[Any] = {
        ProviderError: None,
        RateLimited: lambda error: error.wait_s,
        TimeoutError: timedelta(seconds=30),
    }
    park_on: ClassVar[Any] = (InvalidCard,)


def _play(database: TemporaryDatabase, pipeline: Any) -> tuple[Run, dict[str, int], Any]:
    found: list[Any] = []

    @virtual_time
    async def play() -> None:
        [row] = await add(database, Run())
        with heard_events() as heard:
            async with stepping(database.session_factory, pipeline) as steps:
                await steps.fetch_once()
                await steps.work_once()
                found.extend([await read(database, row), counted(steps), heard])

    play()
    return found[0], found[1], found[2]


@pytest.mark.parametrize(
    ("error", "rests_s"),
    [
        (TimeoutError(), 30),
        (RateLimited(77), 77),
        (RateLimited(timedelta(minutes=3)), 180),
        (RateLimited(None), 1),
        (ProviderError("busy"), 1),
        (ExceptionGroup("both", [TimeoutError(), RateLimited(12)]), 30),
    ],
    ids=["fixed", "of the error", "as timedelta", "none of the error", "backoff", "group"],
)
def test_an_expected_error_is_retried_after_its_delay(
    virtual_database: TemporaryDatabase,
    error: BaseException,
    rests_s: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each would be caught and returned by hand, in every `process`; or fill the log with
    tracebacks that tell nothing.
    """
    row, counters, heard = _play(virtual_database, Charges(answer=error))
    assert (counters["retried"], row.attempts) == (1, 1)
    assert row.last_processed_at is not None
    rests = (row.due_at - row.last_processed_at).total_seconds()
    assert rests == pytest.approx(rests_s, rel=0.21 if rests_s == 1 else 0)
    assert len(heard.of(events.ItemFailed)) == 1
    [line] = told(caplog, "failed")
    assert (line.error, "that is expected" in line.text) == (None, True)


def test_an_error_of_park_on_parks(virtual_database: TemporaryDatabase) -> None:
    """The row would be tried again and again, although nothing can come of it."""
    row, counters, _ = _play(virtual_database, Charges(answer=InvalidCard("declined")))
    assert (counters["parked"], row.last_error) == (1, "InvalidCard: declined")
    assert row.parked_at is not None


def test_a_failure_beside_an_expected_error_is_told(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug would hide behind an outage for as long as that lasts."""
    group = ExceptionGroup("both", [TimeoutError(), KeyError("a bug")])
    _row, counters, _ = _play(virtual_database, Charges(answer=group))
    assert counters["retried"] == 1
    [line] = told(caplog, "failed")
    assert "KeyError" in (line.error or "") or "ExceptionGroup" in (line.error or "")


@pytest.mark.parametrize("wait_s", ["soon", -1, float("nan")])
def test_a_delay_that_is_none_fails_the_row_alone(
    virtual_database: TemporaryDatabase, wait_s: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log would show neither where the delay came from, nor the error that it was for."""
    row, counters, _ = _play(virtual_database, Charges(answer=RateLimited(wait_s)))
    assert counters["retried"] == 1
    assert "after must be a timedelta or seconds" in (row.last_error or "")
    assert len(told(caplog, "failed")) == 1
    [shown] = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert isinstance(shown and shown.__cause__, RateLimited)


@pytest.mark.parametrize(
    ("base", "attributes", "kind", "says"),
    [
        (RunPipeline, {"retry_on": (TimeoutError(),)}, SettingsError, "no exception class"),
        (RunPipeline, {"retry_on": "TimeoutError"}, SettingsError, "a tuple of exception classes"),
        (RunPipeline, {"park_on": 5}, SettingsError, "a tuple of exception classes"),
        (RunPipeline, {"park_on": (int,)}, SettingsError, "no exception class"),
        (RunPipeline, {"retry_on": {KeyError: "soon"}}, SettingsError, "delay of KeyError"),
        (RunPipeline, {"retry_on": {KeyError: -1}}, SettingsError, "delay of KeyError"),
        (
            RunPipeline,
            {"retry_on": (KeyError,), "park_on": (KeyError,)},
            SettingsError,
            "in retry_on and in park_on",
        ),
        (VolumePipeline, {"park_on": (KeyError,)}, ModelError, "needs ScheduleColumns"),
        (VolumePipeline, {"retry_on": {KeyError: 5}}, ModelError, "needs ScheduleColumns"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(
    base: type[Any], attributes: dict[str, Any], kind: type[ConfigurationError], says: str
) -> None:
    """It would be found when the first such error comes, in production."""
    with pytest.raises(kind, match=says):
        type("Wrong", (base,), attributes)()


def test_one_class_needs_no_brackets() -> None:
    """``except KeyError`` needs none either."""
    rules = type("One", (VolumePipeline,), {"retry_on": KeyError})().expected_errors
    assert rule_for(rules, KeyError()) is not None
    assert rule_for(rules, ValueError()) is None
