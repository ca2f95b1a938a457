"""Outcomes of the host's own types: where they are copied, and what is read of them."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, NoReturn

import pytest

from rowlock import Apply
from rowlock.pipelines.outcomes import copied, copied_value
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline
from ..pipelines.scenes import add, read_all


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


def test_lists_of_the_host_s_own_are_plain_in_a_copy() -> None:
    """What iterates over them later would run the host's code."""

    class Names(list[str]):
        """A list of the host's own."""

    hint: Any = frozenset({"Run"})
    outcome = copied(Apply(unless_changed=Names(["status"]), hint=hint))
    assert (outcome.unless_changed, outcome.hint) == (["status"], ("Run",))
    assert type(outcome.unless_changed) is list


def test_what_contains_itself_is_left_to_the_database() -> None:
    """`on_stale` would not be told of an outcome that cannot be written."""
    papers: list[Any] = []
    papers.append(papers)
    assert copied(Apply({"papers": papers})).values["papers"] is papers


class Tags(list[Any]):
    """What a column type of the host's own takes, and knows by its class."""


class Sealed(dict[str, Any]):
    def __copy__(self) -> NoReturn:
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
