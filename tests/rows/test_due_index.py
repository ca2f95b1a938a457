"""The one index as SQL; how claims use it is tested in ``tests/migrations``."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, or_
from sqlalchemy import column as named
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex

from rowlock.rows.due_index import DueOrder, due_index

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
