"""Usual mistakes of a host in its classes and calls, each as a function that makes it: what the
table in ``docs/reference/mistakes.md`` lists as said at construction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Index
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from rowlock import Apply, LockColumns, Pipeline, PipelineManager, ScheduleColumns
from rowlock.dispatch import (
    Completed,
    DispatchColumns,
    DispatchPipeline,
    LoopEngine,
    ProcessEngine,
    ThreadEngine,
    dispatch_indexes,
)

SESSIONS = async_sessionmaker(create_async_engine("sqlite+aiosqlite:///nowhere.db"))
"""Never asked for one."""


class Base(DeclarativeBase):
    """Tables of the mistakes."""


class Disk(LockColumns, Base):
    __tablename__ = "disks"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="wanted")
    size: Mapped[int] = mapped_column(default=1)


class Bare(Base):
    __tablename__ = "bare"
    id: Mapped[int] = mapped_column(primary_key=True)


class Job(LockColumns, ScheduleColumns, DispatchColumns, Base):
    __tablename__ = "jobs"
    __table_args__ = dispatch_indexes("jobs")
    id: Mapped[int] = mapped_column(primary_key=True)


class Unindexed(LockColumns, ScheduleColumns, DispatchColumns, Base):
    """Without the indexes of dispatch; the one that it has lets a key be there twice."""

    __tablename__ = "unindexed"
    __table_args__ = (Index("ix_unindexed_dedup_key", "dedup_key"),)
    id: Mapped[int] = mapped_column(primary_key=True)


class Sound(Pipeline[Any]):
    model = Disk

    def ready(self) -> Any:
        return Disk.status == "wanted"

    async def process(self, item: Any) -> Apply:
        return Apply({"status": "made"})


def with_(bases: tuple[type, ...] = (Sound,), **names: Any) -> Callable[[], object]:
    """Return a function that builds a pipeline of a class with these names in its body."""
    return partial(_built, bases, names)


def _built(bases: tuple[type, ...], names: dict[str, Any]) -> object:
    return type("DiskPipeline", bases, names)()


def dispatch(handler: Any, engine: Any, model: type = Job) -> Callable[[], object]:
    return lambda: DispatchPipeline(model, handler=handler, engine=engine)


async def on_loop(task: Any) -> AsyncIterator[Completed]:
    yield Completed()


def in_thread(task: Any) -> Iterator[Completed]:
    yield Completed()


async def returns(task: Any) -> Completed:
    return Completed()


async def yields(self: Any, item: Any) -> Any:
    yield Apply()


class Mistake(NamedTuple):
    """What is written, and what is said of it when it is built."""

    what: str
    make: Callable[[], object]
    text: str


AT_CONSTRUCTION = (
    Mistake("a misspelt setting (`worker_num = 3`)", with_(worker_num=3), "workers_num is meant"),
    Mistake(
        "words of a setting in another order (`num_workers = 3`)",
        with_(num_workers=3),
        "workers_num is meant",
    ),
    Mistake(
        "a misspelt keyword (`DiskPipeline(worker_num=3)`)",
        lambda: Sound(worker_num=3),  # type: ignore[call-arg]
        "workers_num may be meant",
    ),
    Mistake("a misspelt hook (`on_stales`)", with_(on_stales=print), "on_stale is meant"),
    Mistake(
        "`__init__` without `super().__init__()`",
        with_(__init__=lambda self: None),
        "must call super().__init__",
    ),
    Mistake("no `model`", with_(model=None), "has no model; set `model = YourModel`"),
    Mistake("a model that is not mapped", with_(model=int), "not a mapped class"),
    Mistake("a model without the lock columns", with_(model=Bare), "mix in LockColumns"),
    Mistake(
        "no `process`", with_((Pipeline,), model=Disk, ready=Sound.ready), "override process(item)"
    ),
    Mistake(
        "a misspelt `process`",
        with_((Pipeline,), model=Disk, ready=Sound.ready, proces=Sound.process),
        "process is meant",
    ),
    Mistake("`process(self)` without the item", with_(process=lambda self: None), "one argument"),
    Mistake("`yield` in `process`", with_(process=yields), "must return an outcome, not yield"),
    Mistake("no `ready`", with_((Pipeline,), model=Disk), "override ready()"),
    Mistake(
        "`ready` that returns None",
        with_(ready=lambda self: None),
        "must return one SQL expression",
    ),
    Mistake(
        "`ready` that returns a Python boolean",
        with_(ready=lambda self: True),
        "must return one SQL expression",
    ),
    Mistake(
        "`and` in `ready`",
        with_(ready=lambda self: Disk.status == "wanted" and Disk.size > 1),
        "write & for `and`",
    ),
    Mistake(
        "`or` in `ready`",
        with_(ready=lambda self: Disk.status == "wanted" or Disk.size > 1),
        "write & for `and`, | for `or`",
    ),
    Mistake(
        "`not` in `ready`",
        with_(ready=lambda self: not (Disk.status == "made")),  # noqa: SIM201 - the mistake
        "~ for `not`",
    ),
    Mistake(
        "a chained comparison in `ready` (`1 < Disk.size < 9`)",
        with_(ready=lambda self: 1 < Disk.size < 9),
        "asks Python whether",
    ),
    Mistake("no workers", with_(workers_num=0), "workers_num"),
    Mistake("a text for a duration", with_(lock_timeout="long"), "lock_timeout"),
    Mistake(
        "a trigger behind the lease",
        with_(heartbeat_trigger=60),
        "half of lock_timeout is a good value",
    ),
    Mistake("`intent` that is one column", with_(intent="status"), "is a list of columns"),
    Mistake("`intent` of an unknown column", with_(intent=["colour"]), "has no column 'colour'"),
    Mistake("an own name that hides ours", with_(start=None), "give it another name"),
    Mistake(
        "the class of a pipeline, not an instance",
        lambda: PipelineManager(None, [Sound]),  # type: ignore[arg-type, list-item]
        "an instance of a Pipeline subclass",
    ),
    Mistake(
        "one pipeline without a list",
        lambda: PipelineManager(None, Sound()),  # type: ignore[arg-type]
        "pipelines is a list",
    ),
    Mistake(
        "a `sessionmaker` instead of an `async_sessionmaker`",
        lambda: PipelineManager(sessionmaker(), [Sound()]),  # type: ignore[arg-type]
        "pass async_sessionmaker(engine)",
    ),
    Mistake(
        "a session instead of what makes sessions",
        lambda: PipelineManager(async_sessionmaker()(), [Sound()]),  # type: ignore[arg-type]
        "pass async_sessionmaker(engine)",
    ),
    Mistake(
        "an `async_sessionmaker` without an engine",
        lambda: PipelineManager(async_sessionmaker(), [Sound()]),
        "bound to no engine",
    ),
    Mistake(
        "two pipelines of one class in a manager",
        lambda: PipelineManager(SESSIONS, [Sound(), Sound()]),
        "rename one",
    ),
    Mistake(
        "an `async def` handler in `ThreadEngine`",
        dispatch(on_loop, ThreadEngine()),
        "use LoopEngine for an `async def`",
    ),
    Mistake(
        "a `def` handler in `LoopEngine`",
        dispatch(in_thread, LoopEngine()),
        "use ThreadEngine for a `def`",
    ),
    Mistake(
        "a local function in `ProcessEngine`",
        dispatch(lambda task: iter(()), ProcessEngine()),
        "define it at the top of a module",
    ),
    Mistake(
        "an `async def` handler that returns",
        dispatch(returns, LoopEngine()),
        "handler must yield events",
    ),
    Mistake(
        "forgotten `dispatch_indexes`",
        dispatch(on_loop, LoopEngine(), Unindexed),
        "write __table_args__ = dispatch_indexes('unindexed')",
    ),
)
