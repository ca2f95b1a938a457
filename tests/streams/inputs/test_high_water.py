"""The high-water mark: below it nothing comes any more, whoever writes how; on real databases, and
decided from moments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import MetaData, Table, delete, event, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock import PositionsWentBackError
from rowlock.streams.inputs.candidates import CANDIDATES_MAX, Candidates, OpenWriter, still_open
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import run_flow

from ...lengths import at_length
from ..walk.flows import add_up, open_bank
from .writing import METADATA, ROWS, Writers, add, end_prepared, mark_of, new_look, read, read_here

WRITERS, TRANSACTIONS = at_length((10, 10), (24, 25))


async def all_positions(engine: AsyncEngine) -> list[int]:
    """Return every position that is there in the end."""
    return await read(engine, 0, 1 << 60)


async def test_no_row_is_missed(database: TemporaryDatabase) -> None:
    """Rows of transactions that commit late would be counted never."""
    await database.create_tables(METADATA)
    writers = Writers(database, {"postgresql": WRITERS}.get(database.dialect_name, 3), TRANSACTIONS)
    writing = asyncio.create_task(writers.write())
    found, look, upto, last = list[int](), new_look(), 0, False
    while not last:
        last = writers.are_done
        mark = await mark_of(database.engine, look, upto)
        found += await read(database.engine, upto, mark)
        upto = mark
    await writing
    assert found == await all_positions(database.engine)
    assert len(found) > TRANSACTIONS


@asynccontextmanager
async def late_writer(database: TemporaryDatabase) -> AsyncIterator[None]:
    """Have a transaction open that took position 1, and another committed that took 2."""
    await database.create_tables(METADATA)
    async with database.create_engine().connect() as late:
        await add(late, "late")
        async with database.engine.begin() as early:
            await add(early, "early")
        yield
        await late.commit()


async def test_a_late_row_is_waited_for(postgresql_database: TemporaryDatabase) -> None:
    """A reader of the last visible position would skip it for ever."""
    engine, look = postgresql_database.engine, new_look()
    async with late_writer(postgresql_database):
        async with engine.begin() as connection:
            assert await connection.scalar(select(func.max(ROWS.c.position))) == 2
            water = await look.look(connection, recorded=0)
        assert (water.mark, water.newest) == (0, 2)
        [writer] = water.held_back_by
        assert writer.pid is not None
        assert writer.age_s is not None
    assert await mark_of(engine, look) == 2


async def test_what_holds_a_mark_back_has_a_name(postgresql_database: TemporaryDatabase) -> None:
    """A host would not know which connection to look for."""
    await postgresql_database.create_tables(METADATA)
    engine = postgresql_database.create_engine()
    async with engine.connect() as late, postgresql_database.engine.connect() as connection:
        await late.execute(text("SET application_name = 'nightly import'"))
        pid = await late.scalar(text("SELECT pg_backend_pid()"))
        await add(late, "late")
        water = await new_look().look(connection, recorded=0)
        assert water.held_back_by == ()
        await late.execute(text("SAVEPOINT a"))
        await late.commit()
        await add(late, "later")
        look = new_look()
        water = await look.look(connection, recorded=0)
        [writer] = water.held_back_by
        assert (writer.pid, writer.application) == (pid, "nightly import")


async def test_who_writes_elsewhere_is_not_waited_for(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Any session that idles in a transaction would stall every stream."""
    await postgresql_database.create_tables(METADATA)
    async with postgresql_database.create_engine().connect() as other:
        await other.execute(text("CREATE TABLE elsewhere (a integer)"))
        await other.execute(text("INSERT INTO elsewhere VALUES (1)"))
        await other.execute(select(ROWS))
        async with postgresql_database.engine.begin() as connection:
            await add(connection, "here")
        assert await mark_of(postgresql_database.engine, new_look()) == 1


async def test_a_prepared_row_is_waited_for(postgresql_database: TemporaryDatabase) -> None:
    """It has no session any more, and comes with its COMMIT all the same."""
    database, look = postgresql_database, new_look()
    await database.create_tables(METADATA)
    gid = f"{database.url.database} one"
    async with database.create_engine().connect() as late:
        await add(late, "late")
        async with database.engine.begin() as early:
            await add(early, "early")
        assert await mark_of(database.engine, look) == 0
        await late.exec_driver_sql(f"PREPARE TRANSACTION '{gid}'")
        await late.rollback()
    async with database.engine.begin() as connection:
        for each in (look, new_look()):
            water = await each.look(connection, recorded=0)
            [writer] = water.held_back_by
            assert (water.mark, writer.pid, writer.application) == (0, None, gid)
    await end_prepared(database.engine, gid)
    assert await mark_of(database.engine, look) == 2
    assert await read(database.engine, 0, 2) == [1, 2]


@pytest.mark.parametrize("through", ["parts_one", "parts"])
@pytest.mark.parametrize("source", ["parts_one", "parts"])
async def test_partitions_are_looked_at(
    postgresql_database: TemporaryDatabase, through: str, source: str
) -> None:
    """Rows that are added to a partition itself lock no parent, and would be missed."""
    engine = postgresql_database.engine
    async with engine.begin() as connection:
        for statement in (
            "CREATE TABLE parts (position bigserial, a integer, PRIMARY KEY (position, a))"
            " PARTITION BY LIST (a)",
            "CREATE TABLE parts_one PARTITION OF parts FOR VALUES IN (1)",
        ):
            await connection.execute(text(statement))
    table = await reflected(engine, source)
    look = new_look(table)
    adding = text(f"INSERT INTO {through} (a) VALUES (1)")
    async with postgresql_database.create_engine().connect() as late:
        await late.execute(adding)
        async with engine.begin() as early:
            await early.execute(text("INSERT INTO parts (a) VALUES (1)"))
        assert await mark_of(engine, look) == 0
        await late.commit()
    assert await mark_of(engine, look) == 2


async def test_rows_on_their_way_to_a_partition_are_waited_for(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A row that is added by way of the parent has its position before it is known where it goes:
    who reads the partition would miss it.
    """
    engine = postgresql_database.engine
    async with engine.begin() as connection:
        for statement in (
            "CREATE FUNCTION slow() RETURNS integer LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN 1; END'",
            "CREATE TABLE parts (position bigserial PRIMARY KEY, a integer DEFAULT slow())"
            " PARTITION BY RANGE (position)",
            "CREATE TABLE parts_one PARTITION OF parts FOR VALUES FROM (1) TO (100)",
        ):
            await connection.execute(text(statement))
    look = new_look(await reflected(engine, "parts_one"))
    async with postgresql_database.create_engine().connect() as holder:
        await holder.execute(text("SELECT pg_advisory_xact_lock(7)"))
        late = asyncio.create_task(run(engine, "INSERT INTO parts DEFAULT VALUES"))
        waits = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        while not (late.done() or await holder.scalar(waits)):  # noqa: ASYNC110 - no event of ours
            await asyncio.sleep(0)
        await run(engine, "INSERT INTO parts (a) VALUES (2)")
        mark = await mark_of(engine, look)
    await late
    assert mark == 0
    assert await mark_of(engine, look) == 2


async def run(engine: AsyncEngine, statement: str) -> None:
    """Run one statement in a transaction of its own."""
    async with engine.begin() as connection:
        await connection.execute(text(statement))


async def reflected(engine: AsyncEngine, name: str) -> Table:
    """Return a table as it is in the database."""
    metadata = MetaData()
    async with engine.connect() as connection:
        await connection.run_sync(lambda sync: metadata.reflect(sync, only=[name]))
    return metadata.tables[name]


async def test_repeatable_read(postgresql_database: TemporaryDatabase) -> None:
    """One snapshot for look and read lacks the rows of those who ended in between: this is why
    they are two transactions, and it must stay true of the look itself.
    """
    database = postgresql_database
    engine = database.engine.execution_options(isolation_level="REPEATABLE READ")
    look = new_look()
    async with late_writer(database):
        one = await engine.connect()
        await one.execute(select(ROWS))
    water = await look.look(one, recorded=0)
    assert (water.newest, water.mark) == (2, 2)
    assert await read_here(one, 0, water.mark) == [2], "the trap"
    await one.close()
    assert await read(engine, 0, water.mark) == [1, 2]


async def test_a_flow_reads_what_is_late(postgresql_database: TemporaryDatabase) -> None:
    """A row that commits late would be in no step; or, where sessions are of REPEATABLE READ, rows
    of those who ended behind the first statement be passed over.
    """
    bank = await open_bank(postgresql_database)
    add_up(bank)
    here: dict[int, set[str]] = {}
    seen, mixed = set[str](), list[set[str]]()

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        kinds = {kind for kind in ("pg_locks", "payments.cents") if kind in statement}
        here.setdefault(id(connection), set()).update(kinds)
        seen.update(kinds)

    def forget(connection: Any) -> None:
        if len(done := here.pop(id(connection), set())) > 1:
            mixed.append(done)

    for moment, hear in (("before_cursor_execute", note), ("commit", forget), ("rollback", forget)):
        event.listen(bank.database.engine.sync_engine, moment, hear)
    async with bank.sessions() as late:
        late.add(bank.payment(account="late", cents=1))
        await late.flush()
        await bank.pay(10)
        await run_flow(bank.sessions, bank.flow)
        assert await bank.results() == [], "the mark waits"
        await late.commit()
    await run_flow(bank.sessions, bank.flow)
    assert await bank.balances() == {**bank.paid, "late": 1}
    assert (len(seen), mixed) == (2, [])


async def test_those_who_write_are_listed_behind_the_last_position(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Who has begun in between would not be waited for, and the row may be below the mark."""
    database, sent = postgresql_database, list[str]()
    await database.create_tables(METADATA)
    event.listen(
        database.engine.sync_engine, "before_cursor_execute", lambda *call: sent.append(call[2])
    )
    await mark_of(database.engine, new_look())
    position = next(place for place, one in enumerate(sent) if "max(" in one)
    writers = next(place for place, one in enumerate(sent) if "pg_locks" in one)
    assert position < writers


async def test_restarted_sequence(database: TemporaryDatabase) -> None:
    """New rows would come at positions that were read long ago, and be skipped in silence."""
    await database.create_tables(METADATA)
    engine, look = database.engine, new_look()
    async with engine.begin() as connection:
        await add(connection, "before", 5)
    assert await mark_of(engine, look) == 5
    async with engine.begin() as connection:
        await connection.execute(delete(ROWS))
    assert await mark_of(engine, look, 5) == 5, "rows may be discarded"
    restart = (
        f"ALTER SEQUENCE {ROWS.name}_position_seq RESTART"
        if database.dialect_name == "postgresql"
        else f"DELETE FROM sqlite_sequence WHERE name = '{ROWS.name}'"
    )
    async with engine.begin() as connection:
        await connection.execute(text(restart))
    for each, recorded in ((look, 0), (new_look(), 5)):
        with pytest.raises(PositionsWentBackError) as caught:
            await mark_of(engine, each, recorded)
        error = caught.value
        assert (error.source, error.recorded, error.assigned) == (ROWS.name, 5, 0)
    assert await mark_of(engine, new_look(), 0) == 0


async def test_a_sequence_behind_its_rows_is_told(postgresql_database: TemporaryDatabase) -> None:
    """Rows were imported with positions of their own; those that follow would be skipped."""
    database = postgresql_database
    await database.create_tables(METADATA)
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                f"INSERT INTO {ROWS.name} (position, writer) OVERRIDING SYSTEM VALUE"
                " VALUES (7, 'import')"
            )
        )
    with pytest.raises(PositionsWentBackError, match="known up to position 7"):
        await mark_of(database.engine, new_look())


def writers(*names: str) -> tuple[OpenWriter, ...]:
    return tuple(
        OpenWriter(name, 1, "app", 1.0, was_recovered=name.startswith("-1/")) for name in names
    )


def test_what_is_visible_is_the_mark_if_none_writes() -> None:
    """An idle table would wait for nothing."""
    candidates = Candidates()
    assert candidates.look(7, ()) == 7
    assert (len(candidates), candidates.held_back_by) == (0, ())


def test_a_mark_waits_for_those_who_were_there() -> None:
    """A row that commits late would be skipped for ever."""
    candidates = Candidates()
    assert candidates.look(7, writers("a", "b")) == 0
    assert candidates.look(9, writers("b", "c")) == 0
    assert candidates.look(9, writers("c", "d")) == 7
    assert candidates.look(9, writers("d")) == 9


def test_those_who_came_later_are_not_waited_for() -> None:
    """Under steady load there would be no mark at all."""
    candidates = Candidates()
    for number in range(1, 50):
        mark = candidates.look(number, writers(f"t{number}", f"t{number + 1}"))
        assert mark == max(0, number - 2)


def test_a_mark_never_goes_back() -> None:
    """A step would end before it begins, when rows were deleted."""
    candidates = Candidates()
    candidates.look(9, ())
    assert candidates.look(3, ()) == 9
    assert candidates.look(0, writers("a")) == 9
    assert len(candidates) == 0


def test_candidates_are_bounded_and_the_oldest_stay() -> None:
    """A transaction of an hour would fill the memory; or the mark would come later, the more
    often it was looked for.
    """
    candidates = Candidates()
    for number in range(1, 1000):
        candidates.look(number, writers("long", f"t{number}"))
        assert len(candidates) <= CANDIDATES_MAX
    assert candidates.look(1000, writers("t999")) == CANDIDATES_MAX - 1
    assert candidates.look(1001, ()) == 1001


def test_who_holds_a_mark_back_is_named() -> None:
    """A host would see a lag and no reason for it."""
    old, young = OpenWriter("a", 7, "cron", 60.0), OpenWriter("b", 8, "", 1.0)
    candidates = Candidates()
    candidates.look(7, (young, old))
    assert candidates.held_back_by == (old, young)
    assert list(map(str, candidates.held_back_by)) == [
        "pid 7 (cron, open for 60.0 s)",
        "pid 8 (no name, open for 1.0 s)",
    ]
    assert str(OpenWriter("-1/7", None, "gid", None)) == "prepared (gid)"


def test_a_prepared_transaction_is_followed_through_a_restart() -> None:
    """The server gives it another name, and its rows may still come."""
    candidates = Candidates()
    candidates.look(7, writers("3/15"))
    assert candidates.look(7, writers("-1/789")) == 0
    assert candidates.look(7, writers("4/1")) == 7
    assert still_open((), writers("-1/789")) == ()


@given(st.lists(st.sampled_from(["begin", "commit", "roll back", "look"]), max_size=80), st.data())
def test_no_row_appears_at_or_below_a_mark(steps: list[str], data: st.DataObject) -> None:
    """Whatever the order of begins, commits and looks is, a late row would be lost."""
    candidates, visible, open_at, assigned = Candidates(), {0}, dict[str, int](), 0
    for step in steps:
        if step == "begin":
            assigned += 1
            open_at[f"t{assigned}"] = assigned
        elif step == "look":
            candidates.look(max(visible), writers(*open_at))
        elif open_at:
            name = data.draw(st.sampled_from(sorted(open_at)))
            position = open_at.pop(name)
            if step == "commit":
                assert position > candidates.mark
                visible.add(position)
    assert candidates.look(max(visible), ()) == max(visible)


@pytest.mark.parametrize("count", [1, 5])
def test_the_mark_comes_once_all_have_ended(count: int) -> None:
    """It would lag behind for no reason."""
    candidates, names = Candidates(), [f"t{number}" for number in range(count)]
    candidates.look(count, writers(*names))
    while names:
        assert candidates.look(count, writers(*names)) == 0
        names.pop()
    assert candidates.look(count, writers("other")) == count
