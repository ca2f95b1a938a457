"""Rows of a fold in the database: found by their keys, and written where they are as they were."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import JSON, String, delete, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import ModelError, RowsChanged
from rowlock.streams.folds import FoldCodec, FoldedRow, FoldModel, FoldTable
from rowlock.streams.shards.writing import topics_of
from rowlock.testing import TemporaryDatabase

from ..walk.flows import add_up, open_bank
from .books import open_books


class Base(DeclarativeBase):
    """The host's."""


class Word(Base):
    __tablename__ = "words"
    word: Mapped[str] = mapped_column(String(50), primary_key=True)
    count: Mapped[int] = mapped_column(default=0)
    note: Mapped[str | None] = mapped_column(String(50))


MODEL = FoldModel(Word, is_keyed_by_host=False, is_cached=False)
CODEC = FoldCodec(MODEL)


def changed(row: Any, **values: Any) -> FoldedRow:
    """Return what a handler has made of a row, or of a key if there is no row."""
    held = CODEC.fresh(row) if isinstance(row, str) else CODEC.decode_many([row.value])[0]
    for name, value in values.items():
        setattr(held.row, name, value)
    return CODEC.encode(held)


async def test_rows_are_written_where_they_are_as_they_were(database: TemporaryDatabase) -> None:
    """A step would write half of its rows, or over those of others."""
    await database.create_tables(Base.metadata)
    table = FoldTable(MODEL, is_cached=False)
    engine = database.engine
    async with engine.begin() as connection:
        assert await table.read(connection, ["a", "b"]) == {}
        await table.write(connection, [changed("a", count=1), changed("b", count=2)])
    async with engine.begin() as connection:
        rows = await table.read(connection, ["b", "a", "c"])
    assert {key: row.value.values["count"] for key, row in rows.items()} == {"a": 1, "b": 2}
    written = [changed(rows["a"], count=5), changed(rows["b"], note="n")]
    async with engine.begin() as connection:
        await table.write(connection, written)
    for twice in (written, [changed("c"), changed("a")]):
        with pytest.raises(RowsChanged, match=r"words: [12] rows") as caught:
            async with engine.begin() as connection:
                await table.write(connection, twice)
        assert caught.value.table == "words"
    async with engine.begin() as connection:
        rows = await table.read(connection, ["a", "b", "c"])
    assert {key: row.value.values["count"] for key, row in rows.items()} == {"a": 5, "b": 2}
    assert rows["b"].value.values["note"] == "n"
    async with engine.begin() as connection:
        await connection.execute(update(Word).values(note="host").where(Word.word == "a"))
        await connection.execute(delete(Word).where(Word.word == "b"))
    for key in ("a", "b"):
        with pytest.raises(RowsChanged, match="1 rows"):
            async with engine.begin() as connection:
                await table.write(connection, [changed(rows[key], count=9)])


class Document(Base):
    """A row with a column that fits no array."""

    __tablename__ = "documents"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[dict[str, int]] = mapped_column(JSON, default=dict)
    size: Mapped[int] = mapped_column(default=0)


async def test_rows_that_fit_no_array(database: TemporaryDatabase) -> None:
    """Rows with documents would be written over those of the host, or be another's."""
    await database.create_tables(Base.metadata)
    model = FoldModel(Document, is_keyed_by_host=True, is_cached=False)
    table, codec = FoldTable(model, is_cached=False), FoldCodec(model)
    keys = [f'["d", "{n}"]' for n in range(3)]
    new = [codec.encode(codec.fresh(("d", n))) for n in range(3)]
    async with database.engine.begin() as connection:
        await table.write(connection, new)
    async with database.engine.begin() as connection:
        rows = await table.read(connection, keys)
    written = []
    for n, held in enumerate(codec.decode_many([rows[key].value for key in keys])):
        held.row.text["n"] = held.row.size = n
        written.append(codec.encode(held))
    async with database.engine.begin() as connection:
        await table.write(connection, written)
        after = await table.read(connection, keys)
    assert [after[key].value.values["text"] for key in keys] == [{"n": n} for n in range(3)]
    assert [after[key].value.values["size"] for key in keys] == [0, 1, 2]
    with pytest.raises(RowsChanged, match="documents: 2 rows"):
        async with database.engine.begin() as connection:
            await table.write(connection, [*written[1:], written[0]][:2])


async def test_a_database_that_takes_one_key_for_another(
    sqlite_database: TemporaryDatabase,
) -> None:
    """Two shards would write one row, each over the other."""
    async with sqlite_database.engine.begin() as connection:
        await connection.execute(
            text("CREATE TABLE words (word VARCHAR(50) COLLATE NOCASE PRIMARY KEY, count, note)")
        )
        await connection.execute(text("INSERT INTO words VALUES ('A', 1, NULL)"))
        table = FoldTable(MODEL, is_cached=False)
        with pytest.raises(ModelError, match=r"row \('A',\) by another key"):
            await table.read(connection, ["a"])


async def test_who_is_hinted_behind_a_step(database: TemporaryDatabase) -> None:
    """A consumer would not hear that the slowest shard, which has no results, has done a step."""
    bank = await open_bank(database)
    add_up(bank)
    assert topics_of(bank.flow.program, []) == ["stream:balances:frontier", "stream:balances/seen"]
    books = await open_books(database)
    assert topics_of(books.flow.program, []) == ["stream:books:frontier"]
