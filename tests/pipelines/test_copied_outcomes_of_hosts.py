"""Outcomes of the host's own types: where they are copied, and what is read of them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import fields
from typing import Any, ClassVar, NoReturn

import pytest

from rowlock import Apply, Outcome, Park, Reset, Retry
from rowlock.pipelines.outcomes import copied, copied_value
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline
from ..pipelines.scenes import add, counted, is_free, read, read_all
from .hostile import RaisingList


class ReadBy(dict[str, Any]):
    """Values that tell by which threads they were read."""

    readers: ClassVar[list[int]] = []

    def items(self) -> Any:
        """Note the thread."""
        self.readers.append(threading.get_ident())
        return super().items()


async def test_what_a_thread_returns_is_copied_there(database: TemporaryDatabase) -> None:
    """Plain functions run side by side: one would change what another has just returned."""
    await add(database, Run(id=1))
    threads = []

    class InThread(RunPipeline):
        def process(self, item: Any) -> Any:  # type: ignore[override]
            threads.append(threading.get_ident())
            return Apply(ReadBy(status="done"))

    ReadBy.readers.clear()
    async with stepping(database.session_factory, InThread()) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert [row.status for row in await read_all(database, Run)] == ["done"]
    assert ReadBy.readers == threads


class Counted:
    """Counts how often a field is read, and raises at one of these times.

    Attributes:
        readings: so many.
    """

    def __init__(self, value: object, *, bad: int = 0, error: BaseException | None = None) -> None:
        """Give `value`, but raise `error` at the reading of number `bad`."""
        self.readings = 0
        self._value, self._bad, self._error = value, bad, error

    def __get__(self, instance: object, owner: type) -> Any:
        """Count, and give or raise."""
        if instance is None:
            return self
        self.readings += 1
        if self._error is not None and self.readings == self._bad:
            raise self._error
        return self._value

    def __set__(self, instance: object, value: object) -> None:
        """Keep what it gives."""


def with_fields(kind: type, **own: object) -> type:
    """Return a class of the host's own with attributes of its `own`."""
    return type("Own", (kind,), own)


def _reading(outcome: object, name: str) -> Any:
    return object.__getattribute__(outcome, name)


def _init_without_after(outcome: object, *_: object, **_fields: object) -> None:
    for name, value in {
        "values": {"a": 1},
        "related": {},
        "also": None,
        "due_at": None,
        "unless_changed": (),
        "hint": (),
    }.items():
        object.__setattr__(outcome, name, value)


@pytest.mark.parametrize("field", ["values", "related", "also", "after", "unless_changed", "hint"])
def test_a_field_that_runs_code_of_the_hosts_is_read_once(field: str) -> None:
    """What the second reading gives, or raises, would be met where nothing of the host's is
    contained.
    """
    before = Apply({"status": "done"}, after=1.0)
    counted_field = Counted(getattr(before, field))
    outcome = copied(with_fields(Apply, **{field: counted_field})({"status": "done"}, after=1.0))
    assert (type(outcome), outcome) == (Apply, before)
    assert counted_field.readings == 1


def _own(said: Any, **own: Any) -> Any:
    return pytest.param(with_fields(type(said), **own), said, id=" ".join(own))


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        _own(Apply({"a": 1}), __getattribute__=_reading),
        _own(Apply({"a": 1}), __slots__=(), __init__=_init_without_after, after=None),
        _own(Retry(error="no"), __class__=property(lambda self: Retry)),
        _own(Park("no"), reason=property(lambda self: "no", lambda self, value: None)),
    ],
)
def test_of_a_copy_no_field_runs_code_of_the_hosts(cls: type, said: Any) -> None:
    """An outcome would run the host's code, and end the event loop with it, whenever its writer
    looks at it.
    """
    made = copied(cls(**{field.name: getattr(said, field.name) for field in fields(said)}))
    assert type(made) is type(said)
    assert made == said


def test_what_says_that_it_is_an_outcome_is_made_one() -> None:
    """It would be asked what it is, and may raise, wherever an outcome is looked at."""
    says: Any = type("Says", (), {"__class__": property(lambda self: Reset)})()
    assert type(copied(says)) is Reset


@pytest.mark.parametrize(
    "error", [RuntimeError("closed"), SystemExit(3)], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("kind", [Apply, Retry])
@pytest.mark.parametrize("bad", range(1, 7))
def test_an_outcome_that_raises_at_any_reading_costs_its_own_row_only(
    virtual_database: TemporaryDatabase, kind: Any, error: BaseException, bad: int
) -> None:
    """All outcomes that wait would wait for ever, their rows leased and renewed, or the event
    loop would end.
    """

    @virtual_time
    async def play() -> None:
        rows = await add(virtual_database, *(Run(id=number) for number in range(3)))
        own = with_fields(kind, values=Counted({"status": "mine"}, bad=bad, error=error))()

        def answer(item: Any) -> Outcome:
            return own if item.id == 1 else Apply({"status": "done"})

        async with stepping(
            virtual_database.session_factory, RunPipeline(answer=answer, workers_num=3)
        ) as steps:
            items = await steps.fetch_once()
            for _ in items:
                steps.run.context.queue.get()
            await asyncio.gather(
                *(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=True))
            )
            await steps.run.settler.wait_until_idle()
            assert (steps.run.statistics().tracked, counted(steps)["stale"]) == (0, 0)
        first, mine, last = [await read(virtual_database, row) for row in rows]
        assert [is_free(row) for row in (first, mine, last)] == [True] * 3
        assert (first.status, mine.status, last.status) == (
            "done",
            "queued" if bad == 1 else "mine",
            "done",
        )

    play()


def test_lists_of_the_host_s_own_are_plain_in_a_copy() -> None:
    """What iterates over them later would run the host's code."""

    class Names(list[str]):
        """A list of the host's own."""

    hint: Any = frozenset({"Run"})
    outcome = copied(Apply(unless_changed=Names(["status"]), hint=hint))
    assert (outcome.unless_changed, outcome.hint) == (["status"], ("Run",))
    assert type(outcome.unless_changed) is list
    with pytest.raises(KeyError):
        copied(Apply(hint=RaisingList(KeyError("no"))))


def test_what_contains_itself_is_left_to_the_database() -> None:
    """`on_stale` would not be told of an outcome that cannot be written."""
    papers: list[Any] = []
    papers.append(papers)
    assert copied(Apply({"papers": papers})).values["papers"] is papers


class Tags(list[Any]):
    """What a column type of the host's own takes, and knows by its class."""


class Sealed(dict[str, Any]):
    """Cannot be copied."""

    def __copy__(self) -> NoReturn:
        """Refuse."""
        raise TypeError("sealed")


@pytest.mark.parametrize(
    "value", [Tags([1]), type("Marks", (set,), {})({1}), type("Rest", (bytearray,), {})(b"1")]
)
def test_a_collection_of_the_host_s_own_keeps_its_class(value: Any) -> None:
    """A column type of the host's own would refuse it at every attempt."""
    copy = copied_value({"of": [value]})["of"][0]
    assert (type(copy), copy) == (type(value), value)
    value.clear()
    assert len(copy) == 1


def test_a_collection_that_cannot_be_copied_is_shared() -> None:
    """The attempt would fail for a value that can be written as it is."""
    sealed = Sealed(a=1)
    assert copied(Apply({"result": sealed})).values["result"] is sealed
