"""The one index as SQL; how claims use it is tested in ``tests/migrations``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Index, Integer, MetaData, Table, and_, exists, func, or_
from sqlalchemy import column as named
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.schema import CreateIndex

from rowlock import (
    LockColumns,
    ModelError,
    Pipeline,
    ScheduleColumns,
    database_now,
    due_index,
    parked_index,
)
from rowlock.rows.indexes import DueOrder

DIALECTS = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}


@pytest.mark.parametrize(
    ("column", "dialect", "name", "columns"),
    [
        ("due_at", "postgresql", "ix_jobs_due_at", "(due_at, id)"),
        ("due_at", "sqlite", "ix_jobs_due_at", "(due_at, id)"),
        (
            "last_processed_at",
            "postgresql",
            "ix_jobs_last_processed_at",
            "(last_processed_at NULLS FIRST, id)",
        ),
        ("last_processed_at", "sqlite", "ix_jobs_last_processed_at", "(last_processed_at, id)"),
        (("due_at", "number"), "postgresql", "ix_jobs_due_at", "(due_at, number)"),
        (
            ("last_processed_at", "number"),
            "sqlite",
            "ix_jobs_last_processed_at",
            "(last_processed_at, number)",
        ),
    ],
)
def test_the_key_tells_rows_of_one_time_apart(
    column: DueOrder, dialect: str, name: str, columns: str
) -> None:
    """A claim would walk past all rows that share a time, or a table whose key is not called id
    could not have the index.
    """
    names = ("id", "number", "due_at", "last_processed_at", "status")
    index = due_index("jobs", ready="status = 1", column=column)
    Table("jobs", MetaData(), *(Column(each, Integer) for each in names), index)
    statement = str(CreateIndex(index).compile(dialect=DIALECTS[dialect]))
    in_play = "" if "last_processed_at" in column else " AND parked_at IS NULL"
    ready = "(status = 1)" if in_play else "status = 1"
    assert statement == f"CREATE INDEX {name} ON jobs {columns} WHERE {ready}{in_play}"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "ready", ["status = 1 OR status = 2", or_(named("status") == 1, named("status") == 2)]
)
def test_parked_rows_are_in_no_index_of_due_rows(dialect: str, ready: Any) -> None:
    """Parked rows would head each claim; or a condition with an OR would let them in."""
    index = due_index("jobs", ready=ready, column="due_at")
    Table(
        "jobs",
        MetaData(),
        *(Column(each, Integer) for each in ("id", "due_at", "status", "parked_at")),
        index,
    )
    statement = str(CreateIndex(index).compile(dialect=DIALECTS[dialect]))
    assert statement.endswith("WHERE (status = 1 OR status = 2) AND parked_at IS NULL")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_may_have_columns_of_a_pipelines_names(dialect: str) -> None:
    """A table of cars, each of a model and ready to go, could have no index from its class."""

    class Base(DeclarativeBase):
        pass

    class Car(ScheduleColumns, LockColumns, Base):
        __tablename__ = "cars"

        id: Mapped[int] = mapped_column(primary_key=True)
        model: Mapped[str]
        ready: Mapped[bool]

    for index in (due_index(Car, ready=Car.ready), parked_index(Car)):
        statement = str(CreateIndex(index).compile(dialect=DIALECTS[dialect]))
        assert statement.startswith(f"CREATE INDEX {index.name} ON cars (")


# ---------------------------------------------------------------- from a pipeline


def models() -> tuple[Any, Any]:
    """Return two models of their own registry: an index is added to its table for good."""

    class Base(DeclarativeBase):
        pass

    class Task(LockColumns, ScheduleColumns, Base):
        __tablename__ = "tasks"
        number: Mapped[int] = mapped_column(primary_key=True)
        lock_owner: Mapped[str | None] = mapped_column("held_by")

    class Job(LockColumns, Base):
        __tablename__ = "jobs"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str]
        is_open: Mapped[bool]
        size: Mapped[int] = mapped_column("size_gb")
        task_id: Mapped[int] = mapped_column(ForeignKey("tasks.number"))
        later: Mapped[list[Any]] = relationship("NotImportedYet", foreign_keys=task_id)

    return Job, Task


def pipeline_of(model: Any, ready: Callable[[Any], Any]) -> type[Pipeline[Any]]:
    class JobPipeline(Pipeline[Any]):
        def ready(self) -> Any:
            return ready(model)

    JobPipeline.model = model
    return JobPipeline


def sql_of(index: Index, dialect: str) -> str:
    return str(CreateIndex(index).compile(dialect=DIALECTS[dialect]))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_pipeline_says_all_of_its_index(dialect: str) -> None:
    """`ready`, the key and the order would be said a second time, and the two would drift apart;
    or models that are imported later would be missed.
    """
    job, task = models()
    index = due_index(pipeline_of(job, lambda model: model.status == "it's new"))
    assert index in job.__table__.indexes
    first = "last_processed_at" + (" NULLS FIRST" if dialect == "postgresql" else "")
    assert sql_of(index, dialect) == (
        f"CREATE INDEX ix_jobs_last_processed_at ON jobs ({first}, id) WHERE status = 'it''s new'"
    )
    scheduled = due_index(pipeline_of(task, lambda model: model.number > 3))
    assert sql_of(scheduled, dialect) == (
        "CREATE INDEX ix_tasks_due_at ON tasks (due_at, number) WHERE number > 3 AND parked_at IS"
        " NULL"
    )


def test_a_condition_stands_for_a_pipeline() -> None:
    """A host that says its condition beside the model would spell table, key and order, too."""
    job, task = models()
    index = due_index(job, ready=job.size > 7, name="mine")
    assert sql_of(index, "sqlite").endswith(
        "mine ON jobs (last_processed_at, id) WHERE size_gb > 7"
    )
    text = due_index(task, ready="number = 1 OR number = 2")
    assert sql_of(text, "sqlite").endswith(
        "(due_at, number) WHERE (number = 1 OR number = 2) AND parked_at IS NULL"
    )


@pytest.mark.parametrize(
    ("dialect", "spelt"), [("postgresql", "WHERE is_open"), ("sqlite", "WHERE is_open = 1")]
)
def test_a_boolean_column_is_spelt_as_in_the_claim(dialect: str, spelt: str) -> None:
    """SQLite would not use the index: ``is_open`` does not imply ``is_open = 1`` there."""
    job, _ = models()
    assert sql_of(due_index(pipeline_of(job, lambda model: model.is_open)), dialect).endswith(spelt)


def test_what_no_index_can_hold_is_left_out() -> None:
    """A pipeline that asks another table or the clock would have no index, or the database would
    refuse to build it.
    """
    job, task = models()

    def ready(model: Any) -> Any:
        other = exists().where(task.number == model.task_id)
        asks_clock = [model.size > func.now(), database_now() > func.random()]
        part = and_(or_(model.status == "a", model.size.in_([1, 2])), other)
        return and_(part, *asks_clock, func.lower(model.status) != "b", task.number == 1)

    assert sql_of(due_index(pipeline_of(job, ready)), "sqlite").endswith(
        "WHERE (status = 'a' OR size_gb IN (1, 2)) AND lower(status) != 'b'"
    )
    with pytest.raises(ModelError, match="no part of the condition of JobPipeline"):
        due_index(pipeline_of(job, lambda model: model.size > func.now()), name="mine")


@pytest.mark.parametrize(
    ("give", "told"),
    [
        (due_index, r"due_index\(Job, ready=Job.status"),
        (lambda job: due_index("jobs"), r"due_index\('jobs', ready="),
        (lambda job: due_index(pipeline_of(job, named), ready="a"), "give it a name at most"),
        (lambda job: due_index(job, ready="a", column="due_at"), "table and order are known"),
        (lambda job: due_index(job, ready=job.lock_token.is_(None)), "lock_token"),
        (lambda job: due_index(job, ready="lock_owner IS NULL"), "lock_owner"),
        (lambda job: due_index(job.__base__, ready="a"), "not a mapped class"),
        (lambda job: due_index(pipeline_of(job, lambda _: True)), "one SQL expression"),
        (lambda job: due_index(pipeline_of(job, lambda _: (_ for _ in ()).x)), "an instance"),
        (lambda job: [due_index(job, ready="a"), due_index(job, ready="b")], "another name"),
    ],
)
def test_what_makes_no_index_is_told(give: Callable[[Any], object], told: str) -> None:
    """A slip would be found by the database, if at all, and long after it was made."""
    job, _ = models()
    with pytest.raises(ModelError, match=told):
        give(job)


def test_a_lock_column_is_refused_by_whatever_name() -> None:
    """Every heartbeat would write the index, because the host calls the column otherwise."""
    _, task = models()
    with pytest.raises(ModelError, match="held_by") as refused:
        due_index(pipeline_of(task, lambda model: model.lock_owner.is_(None)))
    assert (refused.value.model, refused.value.column) == ("Task", "held_by")
