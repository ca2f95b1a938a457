"""The one index as SQL; how claims use it is tested in ``tests/migrations``."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex

from rowlock.rows.due_index import DueOrder, due_index

DIALECTS = {"postgresql": postgresql.dialect(), "sqlite": sqlite.dialect()}


@pytest.mark.parametrize(
    ("column", "dialect", "name", "columns"),
    [
        ("due_at", "postgresql", "ix_jobs_due_at", "(due_at, id)"),
        ("due_at", "sqlite", "ix_jobs_due_at", "(due_at, id)"),
        ("last_processed_at", "postgresql", "ix_jobs_last_processed_at", "(last_processed_at NULLS FIRST, id)"),
        ("last_processed_at", "sqlite", "ix_jobs_last_processed_at", "(last_processed_at, id)"),
        (("due_at", "number"), "postgresql", "ix_jobs_due_at", "(due_at, number)"),
        (("last_processed_at", "number"), "sqlite", "ix_jobs_last_processed_at", "(last_processed_at, number)"),
    ],
)
def test_the_key_tells_rows_of_one_time_apart(column: DueOrder, dialect: str, name: str, columns: str) -> None:
    """A claim would walk past all rows that share a time, or a table whose key is not called id could not have the index."""
    names = ("id", "number", "due_at", "last_processed_at", "status")
    index = due_index("jobs", ready="status = 1", column=column)
    Table("jobs", MetaData(), *(Column(each, Integer) for each in names), index)
    statement = str(CreateIndex(index).compile(dialect=DIALECTS[dialect]))
    assert statement == f"CREATE INDEX {name} ON jobs {columns} WHERE status = 1"
