"""Outcomes that share dicts which the host goes on changing."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import fields
from typing import Any, ClassVar, get_args

import pytest

from rowlock import NOW_PLACEHOLDER, Apply, Outcome, Park, Retry
from rowlock.pipelines.outcomes import copied
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline
from ..pipelines.scenes import add, read_all
from .related_scenes import GatheringPipeline, add_volume, attachments_of

pytestmark = pytest.mark.either_database


@pytest.mark.parametrize("kind", get_args(Outcome))
def test_each_kind_of_outcome_is_copied_whole(kind: type[Any]) -> None:
    """A field that is not copied would be the host's to change until it is written."""
    texts = {"reason": "full"} if kind is Park else {}
    given = kind(**texts)
    own = copied(given)
    assert own is not given
    assert [(field.name, getattr(own, field.name)) for field in fields(kind)] == [
        (field.name, getattr(given, field.name)) for field in fields(kind)
    ]


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


def test_a_copy_says_the_same() -> None:
    """`on_stale` would be given another outcome than `process` returned."""

    async def also(session: Any, now: Any) -> None: ...

    outcome = Apply(
        {"a": [1, (2, [3])], "b": {4}, "c": bytearray(b"5"), "d": NOW_PLACEHOLDER, "e": 1.5},
        related={("Volume", 1): {"f": {}}},
        also=also,
        after=3,
        unless_changed=["status"],
        hint=["Run"],
    )
    own = copied(outcome)
    assert own == outcome
    assert all(own.values[name] is not outcome.values[name] for name in "abc")
    assert own.related[("Volume", 1)] is not outcome.related[("Volume", 1)]
    assert own.unless_changed is not outcome.unless_changed
    assert own.hint is not outcome.hint
    retry = Retry(4, error="no", values={"a": [1]})
    assert copied(retry).values["a"] is not retry.values["a"]


def test_what_an_outcome_keeps_beside_its_fields_is_kept() -> None:
    """`on_stale` would be given an outcome that does not say what is to be cleaned up."""
    outcome, values = Made("disk-1"), {"status": "made"}
    object.__setattr__(outcome, "values", values)
    made = copied(outcome)
    values.clear()
    assert (type(made), made.disk, made.values) == (Made, "disk-1", {"status": "made"})


class Made(Apply):
    disk: str

    def __init__(self, disk: str) -> None:
        super().__init__({"status": "made"})
        object.__setattr__(self, "disk", disk)


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


def test_what_is_no_outcome_is_left_to_the_check() -> None:
    """A slip of the host's would be told in words that name nothing of it."""
    wrong: Any = 3
    assert copied(wrong) == 3
    assert copied(Apply(wrong, related=wrong)) == Apply(wrong, related=wrong)
    assert copied(Apply(related={1: wrong})) == Apply(related={1: wrong})


# ---------------------------------------------------------------- code of the host's in an outcome


class ReadBy(dict[str, Any]):
    """Values that tell by which threads they were read."""

    readers: ClassVar[list[int]] = []

    def items(self) -> Any:
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
