"""Outcomes that are raised: from deep within `process`, out of a thread, a task group."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from rowlock import Apply, Outcome, Park, RelatedLockUnavailable, Reset, Retry, events
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import HeardEvents, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import add, counted, read
from .told import told

pytestmark = pytest.mark.either_database

UNAVAILABLE = RelatedLockUnavailable(model="Disk", wanted=1, available=0)


async def _after(database: TemporaryDatabase, answer: Any) -> tuple[Run, dict[str, int], Any]:
    """Have one row processed; return it, what was counted, and what was emitted."""
    [row] = await add(database, Run())
    with heard_events() as heard:
        async with stepping(database.session_factory, RunPipeline(answer=answer)) as steps:
            await steps.fetch_once()
            await steps.work_once()
            counters = counted(steps)
    return await read(database, row), counters, heard


async def _three_deep(outcome: BaseException) -> Any:
    async def second() -> None:
        async def third() -> NoReturn:
            raise outcome

        await third()

    await second()
    return Apply({"status": "done"})


@pytest.mark.parametrize(
    ("outcome", "counter"),
    [
        (Park("no such card"), "parked"),
        (Retry(60, error="busy", values={"result": 1}), "retried"),
        (Reset(), "reset"),
    ],
    ids=["Park", "Retry", "Reset"],
)
async def test_an_outcome_may_be_raised_from_three_calls_deep(
    database: TemporaryDatabase, outcome: Any, counter: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every function between would have to hand it up; raised, it would count as a failure."""
    row, counters, heard = await _after(database, lambda item: _three_deep(outcome))
    assert (counters[counter], row.lock_token) == (1, None)
    assert row.last_error == {"parked": "no such card", "retried": "busy", "reset": None}[counter]
    assert row.result == (1 if counter == "retried" else None)
    assert (row.parked_at is not None) is (counter == "parked")
    [applied] = heard.of(events.ItemApplied)
    assert applied.outcome == type(outcome).__name__
    assert not heard.of(events.ItemFailed)
    assert not told(caplog, "failed")


async def test_a_plain_function_raises_from_its_thread(database: TemporaryDatabase) -> None:
    """Host code that blocks would have no way to say so."""

    class InThread(RunPipeline):
        def process(self, item: Any) -> Any:  # type: ignore[override]
            raise Park("from a thread")

    [row] = await add(database, Run())
    async with stepping(database.session_factory, InThread()) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert (await read(database, row)).last_error == "from a thread"


def _cause(retry: Retry, error: BaseException | None) -> Any:
    async def process(_item: Any) -> Outcome:
        try:
            raise ConnectionResetError("by peer")
        except ConnectionResetError:
            if error is not None:
                raise retry from error
            raise retry  # noqa: B904 - what hosts write

    return process


@pytest.mark.parametrize(
    ("retry", "cause", "stored"),
    [
        (Retry(1), None, "ConnectionResetError: by peer"),
        (Retry(1), KeyError("told"), "KeyError: 'told'"),
        (Retry(1, error="mine"), None, "mine"),
    ],
    ids=["within except", "from", "said"],
)
async def test_a_retry_is_stored_with_what_it_was_raised_from(
    database: TemporaryDatabase, retry: Retry, cause: BaseException | None, stored: str
) -> None:
    """`last_error` would be empty, although the host knows what went wrong."""
    row, _, _ = await _after(database, _cause(retry, cause))
    assert row.last_error == stored


async def _in_a_group(*raised: BaseException) -> Outcome:
    everybody = asyncio.Barrier(len(raised))

    async def task(error: BaseException) -> None:
        # All of them raise before any is cancelled.
        await everybody.wait()
        raise error

    async with asyncio.TaskGroup() as group:
        for error in raised:
            group.create_task(task(error))
    return Apply()


GROUPS: dict[str, tuple[tuple[BaseException, ...], str, str | None, bool]] = {
    "park and retry": ((Retry(5), Park("no")), "parked", "no", False),
    "park and failure": ((KeyError("x"), Park("no")), "parked", "no", True),
    "retries": ((Retry(5, error="a"), Retry(90, error="b"), Retry()), "retried", "b", False),
    "resets": ((Reset(), UNAVAILABLE), "reset", None, False),
    "reset and retry": ((Reset(), Retry(5, error="a")), "retried", "a", False),
    "reset and failure": ((Reset(), KeyError("x")), "retried", "unhandled errors", True),
    "retry and failure": ((Retry(90), KeyError("x")), "retried", "unhandled errors", True),
}


@pytest.mark.parametrize(("raised", "counter", "error", "fails"), GROUPS.values(), ids=GROUPS)
@virtual_time
async def test_a_task_group_gives_one_outcome(
    virtual_database: TemporaryDatabase,
    raised: tuple[BaseException, ...],
    counter: str,
    error: str | None,
    fails: bool,
) -> None:
    """What its tasks raised comes wrapped: it would be a failure whatever it was, or a real failure
    would be told by nobody.
    """
    row, counters, heard = await _after(virtual_database, lambda item: _in_a_group(*raised))
    assert isinstance(heard, HeardEvents)
    assert counters[counter] == 1
    assert (row.last_error or "").find(error or "") >= 0
    assert bool(heard.of(events.ItemFailed)) is fails
    if counter == "retried" and any(getattr(one, "after", None) == 90 for one in raised):
        assert row.due_at - row.last_processed_at == timedelta(seconds=90)  # type: ignore[operator]


async def test_groups_within_groups_are_opened(database: TemporaryDatabase) -> None:
    """Task groups are nested as calls are."""
    nested = ExceptionGroup("a", [ExceptionGroup("b", [Park("deep")]), Reset()])
    row, _, _ = await _after(database, nested)
    assert row.last_error == "deep"


async def test_what_cannot_be_written_is_refused_when_raised(database: TemporaryDatabase) -> None:
    """It would reach the database, or raise where the outcomes of other rows are written."""
    [row] = await add(database, Run())
    pipeline = RunPipeline(answer=lambda item: _three_deep(Retry(values={"no": 1})))
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert counted(steps)["retried"] == 1
    assert "has no column 'no'" in ((await read(database, row)).last_error or "")
    # It was never on its way to the database, so there is nothing to clean up.
    assert pipeline.stale == []
    volume = (await add(database, Volume()))[0]
    answer = VolumePipeline(answer=lambda item: _three_deep(Park("no schedule here")))
    async with stepping(database.session_factory, answer) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert (await read(database, volume)).lock_token is None


@pytest.mark.parametrize(
    ("raised", "counter", "error"),
    [(Park("taken"), "parked", "taken"), (Retry(error="later"), "retried", "later")],
    ids=["Park", "Retry"],
)
async def test_also_may_raise_an_outcome(
    database: TemporaryDatabase,
    raised: BaseException,
    counter: str,
    error: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is found out only within the transaction would be a failure with a traceback."""

    async def also(_session: Any, _now: Any) -> None:
        raise raised

    row, counters, heard = await _after(database, Apply({"status": "done"}, also=also))
    assert (row.status, counters[counter], row.last_error) == ("queued", 1, error)
    assert not heard.of(events.ItemFailed)
    assert not told(caplog, "failed")


AGAIN = Retry()


async def _raise_again(_item: Any) -> NoReturn:
    raise AGAIN from ConnectionResetError("by peer")


async def _raise_again_when_ended(_item: Any) -> NoReturn:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise AGAIN  # noqa: B904 - what hosts write


async def _raise_again_in_also(item: Any) -> Outcome:
    async def also(_session: Any, _now: Any) -> None:
        await _raise_again(item)

    return Apply(also=also)


@pytest.mark.parametrize(
    "process",
    [
        _raise_again,
        lambda _item: _in_a_group(AGAIN, Reset()),
        _raise_again_in_also,
        _raise_again_when_ended,
    ],
    ids=["alone", "in a task group", "in also", "when it is ended"],
)
def test_a_raised_constant_keeps_nothing_of_the_attempt(
    virtual_database: TemporaryDatabase, process: Any
) -> None:
    """What was raised keeps no traceback, cause or context once its outcome was taken."""

    @virtual_time
    async def play() -> None:
        await add(virtual_database, Run())
        pipeline = RunPipeline(answer=process, process_timeout=1)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert counted(steps)["retried"] == 1

    play()
    assert (AGAIN.__traceback__, AGAIN.__cause__, AGAIN.__context__) == (None, None, None)
    assert not AGAIN.__suppress_context__


# ---------------------------------------------------------------- as exceptions


@asynccontextmanager
async def _resource() -> AsyncIterator[None]:
    yield


async def test_they_pass_through_context_managers() -> None:
    """``contextlib`` writes the traceback on what it passes on: a frozen dataclass would refuse
    that, and raise something else.
    """

    async def within() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(_resource())
            raise Park("why")

    with pytest.raises(Park) as raised:
        await within()
    raised.value.add_note("a note")
    raised.value.seen_by = "a tracer"  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        raised.value.reason = "other"  # type: ignore[misc]


class OwnRetry(Retry):
    """An outcome of the host's own, with something beside its fields."""


@pytest.mark.parametrize(
    "through", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
)
def test_they_are_pickled_whole(through: Any) -> None:
    """What is raised in a process pool would arrive without what was given by name."""
    outcome = OwnRetry(5, error="busy", values={"result": 1})
    object.__setattr__(outcome, "tag", "kept")
    same = through(outcome)
    assert (type(same), same, same.tag) == (OwnRetry, outcome, "kept")
    assert str(through(Park("why"))) == "why"
