"""Outcomes that share dicts which the host goes on changing: each row gets what was said when
its outcome was returned.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn

import pytest

from rowlock import NOW_PLACEHOLDER, Apply, Outcome, Park, Reset, Retry
from rowlock.pipelines.copies import copied, copied_value
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline
from ..pipelines.scenes import add, counted, is_free, read, read_all
from .hostile import RaisingList
from .related_scenes import GatheringPipeline, add_volume, attachments_of


async def test_each_row_gets_what_its_outcome_said(database: TemporaryDatabase) -> None:
    """All rows of a batch would get what the shared dict said when the last one returned."""
    await add(database, *(Run(id=number) for number in range(5)))
    shared: dict[str, Any] = {"status": "", "result": {"numbers": [0]}}

    def answer(item: Any) -> Outcome:
        shared["status"] = f"done {item.id}"
        shared["result"]["numbers"][0] = item.id
        return Apply(shared) if item.id % 2 else Retry(values=shared)

    async with stepping(
        database.session_factory, RunPipeline(answer=answer, workers_num=5)
    ) as steps:
        items = await steps.fetch_once()
        for _ in items:
            steps.run.context.queue.get()
        await asyncio.gather(
            *(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=True))
        )
        shared |= {"status": "later", "result": None}
        await steps.run.settler.wait_until_idle()
    rows = {row.id: (row.status, row.result) for row in await read_all(database, Run)}
    assert rows == {number: (f"done {number}", {"numbers": [number]}) for number in range(5)}


async def test_related_rows_get_what_the_outcome_said(database: TemporaryDatabase) -> None:
    """Related rows would get what the host does with its dict after the outcome was returned."""
    await add_volume(database)
    shared = {"status": "gathered"}

    def then(_item: Any, rows: Any) -> Apply:
        outcome = Apply(related=dict.fromkeys(rows, shared))
        asyncio.get_running_loop().call_soon(shared.update, {"status": "later"})
        return outcome

    async with stepping(database.session_factory, GatheringPipeline(then=then)) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert {row.status for row in await attachments_of(database)} == {"gathered"}


@dataclass(frozen=True)
class Done(Apply):
    """An outcome of a host's own, which is made in another way."""

    def __init__(self, status: str) -> None:
        """Take the status alone."""
        super().__init__({"status": status})


def test_a_copy_says_the_same() -> None:
    """`on_stale` would be given another outcome than `process` returned."""

    async def also(session: Any, now: Any) -> None: ...

    hint, unless = ["Run"], ["status"]
    outcome = Apply(
        {"a": [1, (2, [3])], "b": {4}, "c": bytearray(b"5"), "d": NOW_PLACEHOLDER, "e": 1.5},
        related={("Volume", 1): {"f": {}}},
        also=also,
        after=3,
        unless_changed=tuple(unless),
        hint=tuple(hint),
    )
    assert copied(outcome) == outcome
    assert copied(outcome).values["a"] is not outcome.values["a"]
    assert copied(outcome).values["b"] is not outcome.values["b"]
    assert copied(outcome).values["c"] is not outcome.values["c"]
    assert copied(outcome).related[("Volume", 1)] is not outcome.related[("Volume", 1)]
    retry = Retry(4, error="no", values={"a": [1]})
    assert copied(retry) == retry
    assert copied(retry).values["a"] is not retry.values["a"]
    assert copied(Park("no")) == Park("no")


def test_a_host_s_own_kind_of_outcome_can_be_copied() -> None:
    """Outcomes of a class that takes other arguments would all fail."""
    outcome = copied(Done("ready"))
    assert (type(outcome), outcome.values) == (Done, {"status": "ready"})


class Made(Apply):
    """Keeps beside its fields what has been made."""

    disk: str

    def __init__(self, disk: str) -> None:
        """Take what was made."""
        super().__init__({"status": "made"})
        object.__setattr__(self, "disk", disk)


class MadeInSlots(Apply):
    """The same without a dict, and with a slot that nothing was written to."""

    __slots__ = ("__made_by", "disk", "empty")
    disk: str

    def __init__(self, disk: str) -> None:
        """Take what was made."""
        super().__init__({"status": "made"})
        object.__setattr__(self, "disk", disk)
        object.__setattr__(self, "_MadeInSlots__made_by", disk)


@dataclass(frozen=True)
class MadeAfterInit(Apply):
    """The same by a dataclass, beside a field of its own."""

    disk: str = ""

    def __post_init__(self) -> None:
        """Keep something that is no field."""
        object.__setattr__(self, "remove", [self.disk].clear)


class MadeAndCopied(Made):
    """Has a copy of its own, which is not asked for."""

    def __copy__(self) -> NoReturn:
        """Refuse."""
        raise SystemExit(3)


KEEPING: list[Any] = [
    Made("disk-1"),
    MadeInSlots("disk-1"),
    MadeAfterInit({"a": 1}, disk="disk-1"),
    MadeAndCopied("disk-1"),
]


@pytest.mark.parametrize("outcome", KEEPING, ids=lambda outcome: type(outcome).__name__)
def test_what_an_outcome_keeps_beside_its_fields_is_in_the_copy(outcome: Any) -> None:
    """`on_stale` would be given an outcome that does not say what is to be cleaned up."""
    made = copied(outcome)
    assert (type(made), made.disk, made.values) == (type(outcome), "disk-1", outcome.values)
    assert made is not outcome
    assert made.values is not outcome.values
    for name in ("remove", "_MadeInSlots__made_by", "empty"):
        assert getattr(made, name, "nothing") == getattr(outcome, name, "nothing")
    object.__setattr__(outcome, "disk", "disk-2")
    assert made.disk == "disk-1"


async def test_what_cannot_be_applied_is_given_back_whole(database: TemporaryDatabase) -> None:
    """A disk that was made for a row which somebody else has taken would be left for ever."""
    await add(database, Run(id=1))

    class Late(RunPipeline):
        async def process(self, item: Any) -> Any:  # type: ignore[override]
            async with database.session_factory.begin() as session:
                (await session.get_one(Run, item.id)).lock_token = None
            return Made("disk-1")

    pipeline = Late()
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    outcomes: list[Any] = [outcome for _, outcome in pipeline.stale]
    assert [outcome.disk for outcome in outcomes] == ["disk-1"]


def test_lists_of_an_outcome_are_copied() -> None:
    """What guards the write, and who is hinted, would change after the outcome was returned."""
    hint, unless = ["Run"], ["status"]
    outcome = copied(Apply(hint=hint, unless_changed=unless))
    hint.append("Volume")
    unless.clear()
    assert (outcome.hint, outcome.unless_changed) == (["Run"], ["status"])


def test_what_is_no_outcome_is_left_to_the_check() -> None:
    """A slip of the host's would be told in words that name nothing of it."""
    wrong: Any = 3
    assert copied(wrong) == 3
    assert copied(Apply(wrong, related=wrong)) == Apply(wrong, related=wrong)
    assert copied(Apply(related={1: wrong})) == Apply(related={1: wrong})


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


# ---------------------------------------------------------------- code of the host's in an outcome


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
