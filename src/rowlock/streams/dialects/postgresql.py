"""Streams and folds on PostgreSQL: many writers at once, whose positions become visible out of
order.

The one idea: a transaction holds ``RowExclusiveLock`` on a table from before it takes a position
until after its rows are visible. So the holders of that lock after a row was seen are all
transactions that may still add rows below it.

What breaks that, and is refused: sequences with a cache (a session keeps positions for later
transactions), and positions that the client takes before its INSERT.

The mark of a fold's row is the transaction that wrote it, which the server keeps with every version
of a row. Rows are found and written by arrays, one for each column. Columns whose type fits no
array are written row by row, in one batch of the driver, once the rows are locked under their
marks.

Source: measured with 24 writers, 49,963 rows; PostgreSQL, ``src/backend/access/transam/xact.c``
(`CommitTransaction`: a transaction is visible before its locks are released), and "System Columns"
(``xmin``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Table,
    Text,
    and_,
    bindparam,
    column,
    func,
    insert,
    select,
    text,
    type_coerce,
    update,
)
from sqlalchemy import cast as cast_to
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.dialects.postgresql.rows import fits_array, name_in_database, unnested
from rowlock.errors import ConfigurationError, ModelError
from rowlock.rows.assignments import Slot
from rowlock.spi import ROWS, kept_statement
from rowlock.streams.dialects.stream_dialect import (
    LOGGED,
    NO_COLUMN,
    REFUSES,
    FoldDialect,
    KeyedTable,
    Rows,
    StreamDialect,
    sliced,
    slot,
)
from rowlock.streams.inputs.candidates import OpenWriter

_PLAIN_DEFAULT = re.compile(r"nextval\(.*::regclass\)", re.DOTALL)
_RECOVERED = "-1/"
"""Begins the names of prepared transactions that the server has found when it was started: they
have no backend's.
"""

_ASSIGNED_BY = text("""
SELECT c.relkind::text, a.attidentity::text, pg_get_expr(d.adbin, d.adrelid) AS given_by,
       quote_ident(n.nspname) || '.' || quote_ident(o.relname) AS counter,
       s.seqcache, s.seqincrement, s.seqcycle, s.seqmin, quote_ident(current_user) AS role,
       has_sequence_privilege(s.seqrelid, 'SELECT') AS may_read
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a
  ON a.attrelid = c.oid AND a.attname = :column AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_catalog.pg_depend p
  ON p.refclassid = 'pg_catalog.pg_class'::regclass
 AND CASE WHEN a.attidentity <> ''
     THEN p.classid = 'pg_catalog.pg_class'::regclass AND p.deptype = 'i'
          AND p.refobjid = c.oid AND p.refobjsubid = a.attnum
     ELSE p.classid = 'pg_catalog.pg_attrdef'::regclass AND p.objid = d.oid
          AND p.refobjid IN (SELECT seqrelid FROM pg_catalog.pg_sequence) END
LEFT JOIN pg_catalog.pg_sequence s
  ON s.seqrelid = CASE WHEN a.attidentity <> '' THEN p.objid ELSE p.refobjid END
LEFT JOIN pg_catalog.pg_class o ON o.oid = s.seqrelid
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = o.relnamespace
WHERE c.oid = to_regclass(:table)
""")
"""What assigns a column: its sequence, if it is an identity or has ``nextval`` as its default."""

_TYPE_OF = text("""
SELECT t.typcategory::text, format_type(a.atttypid, a.atttypmod) AS name
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(:table) AND a.attname = :column AND NOT a.attisdropped
""")

# One call of the function that reads the locks: two would see two moments. A row that is added to a
# partition by way of its parent has its position before the partition is locked, and a row that is
# added to the partition itself locks no parent.
_OPEN_WRITERS = text("""
WITH RECURSIVE above(oid) AS (
  SELECT to_regclass(:table)::oid
  UNION SELECT i.inhparent FROM pg_catalog.pg_inherits i JOIN above ON i.inhrelid = above.oid
), family(oid) AS (
  SELECT oid FROM above
  UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family ON i.inhparent = family.oid
), held AS MATERIALIZED (
  SELECT virtualtransaction, pid, relation, transactionid, database, locktype, mode, granted
  FROM pg_catalog.pg_locks
), writers AS (
  SELECT DISTINCT virtualtransaction, pid FROM held
  WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
    AND relation IN (SELECT oid FROM family)
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
)
SELECT w.virtualtransaction, w.pid, coalesce(a.application_name, x.gid, '') AS application,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8 AS age_s
FROM writers w
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = w.pid
LEFT JOIN held t
  ON w.pid IS NULL AND t.virtualtransaction = w.virtualtransaction AND t.pid IS NULL
 AND t.locktype = 'transactionid'
LEFT JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = t.transactionid
WHERE t.transactionid IS NULL OR x.gid IS NOT NULL OR w.pid IS NOT NULL
""")


class PostgresqlStreams(StreamDialect):
    async def check_position(self, connection: AsyncConnection, column: Column[Any]) -> str:
        names = {"table": name_in_database(connection, column.table), "column": column.name}
        found = (await connection.execute(_ASSIGNED_BY, names)).all()
        problem = _problem_with(found)
        if problem:
            raise ModelError(
                f"{column.table.name}.{column.name} is no position: {problem}",
                model=column.table.name,
                column=column.name,
            )
        return str(found[0].counter)

    async def problem_with_number(self, connection: AsyncConnection, column: Column[Any]) -> str:
        """Ask for the category of its type, which a domain shares."""
        names = {"table": name_in_database(connection, column.table), "column": column.name}
        found = (await connection.execute(_TYPE_OF, names)).first()
        if found is None:
            return NO_COLUMN
        return "" if found.typcategory == "N" else f"it is {found.name} in the database"

    async def last_assigned(
        self, connection: AsyncConnection, column: Column[Any], counter: str
    ) -> int:
        """Read the sequence, whose value is no part of any transaction."""
        # A replica has neither the locks of the writers nor their latest positions.
        statement = f"SELECT last_value, is_called, pg_is_in_recovery() FROM {counter}"  # noqa: S608 - the database has quoted it
        found = (await connection.exec_driver_sql(statement)).one()
        if found.pg_is_in_recovery:
            raise ConfigurationError(
                f"the stream {column.table.name} is read from a replica of the database, which does"
                " not know who adds rows: bind the session factory to the primary server"
            )
        return int(found.last_value if found.is_called else found.last_value - 1)

    async def open_writers(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[OpenWriter, ...]:
        """List the holders of the lock on the table, its partitions and its parents."""
        names = {"table": name_in_database(connection, table)}
        return tuple(
            OpenWriter(name, pid, application, age_s, name.startswith(_RECOVERED))
            for name, pid, application, age_s in await connection.execute(_OPEN_WRITERS, names)
        )

    def event_guard(
        self, table: str, columns: Sequence[str], *, name: str, deletes: bool
    ) -> list[str]:
        quoted = _beside(table, name)
        when = f"UPDATE OF {', '.join(columns)}" + " OR DELETE" * deletes
        return [
            f"CREATE FUNCTION {quoted}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION '{REFUSES}: %', TG_TABLE_NAME; END $$",
            f'CREATE TRIGGER "{name}" BEFORE {when} ON {table}'
            f" FOR EACH ROW EXECUTE FUNCTION {quoted}()",
        ]

    def no_event_guard(self, table: str, *, name: str) -> list[str]:
        quoted = _beside(table, name)
        return [f'DROP TRIGGER "{name}" ON {table}', f"DROP FUNCTION {quoted}()"]

    async def append(self, connection: AsyncConnection, log: Table, rows: Rows) -> tuple[int, int]:
        """Insert in statements that return one row, however many are inserted."""
        dialect = ROWS.of(connection)
        inserted = dialect.insert(log, LOGGED).returning(log.c.position).cte("inserted")
        found = select(func.min(inserted.c.position), func.max(inserted.c.position))
        ends: list[int] = []
        for parameters in sliced(dialect, LOGGED, rows, text=LOGGED[-1]):
            ends += (await connection.execute(found, parameters)).one()
        return ends[0], ends[-1]


def _beside(table: str, name: str) -> str:
    """Return a name in the schema of a table, whose name is quoted where it has to be."""
    schema = re.match(r'((?:"(?:[^"]|"")*"|[^".]+)\.)?', table)
    return f'{schema[0] if schema else ""}"{name}"'


def _problem_with(found: Sequence[Any]) -> str:
    if not found:
        return NO_COLUMN
    one = found[0]
    if one.relkind not in ("r", "p"):
        return "a stream is a table, not a view or a foreign table"
    is_plain = one.attidentity or _PLAIN_DEFAULT.fullmatch(one.given_by or "")
    if not is_plain or one.counter is None or len(found) > 1:
        return (
            "the database does not assign it from a sequence: declare it with Identity(always=True)"
        )
    return _problem_with_sequence(one)


def _problem_with_sequence(one: Any) -> str:
    if one.seqcache > 1:
        return (
            f"its sequence has CACHE {one.seqcache}, so a session keeps positions for later, and"
            f" rows come below those that were read: ALTER SEQUENCE {one.counter} CACHE 1, then let"
            " all sessions connect anew"
        )
    if one.seqincrement < 1 or one.seqcycle or one.seqmin < 1:
        return (
            f"its sequence {one.counter} does not ascend from 1 or more without end: alter it to"
            " INCREMENT BY 1 MINVALUE 1 NO CYCLE"
        )
    if not one.may_read:
        return (
            f"the role {one.role} may not read its sequence, and a stream is complete up to where"
            f" that is: GRANT SELECT ON SEQUENCE {one.counter} TO {one.role}"
        )
    return ""


_PREFIX = "fold_"


class PostgresqlFolds(FoldDialect):
    async def read(
        self, connection: AsyncConnection, of: KeyedTable, keys: Sequence[tuple[Any, ...]]
    ) -> Sequence[Any]:
        found = kept_statement(of.table, (self, *of.names), lambda: _select(of))
        return (await connection.execute(found, _arrays(keys))).all()

    async def insert(
        self, connection: AsyncConnection, of: KeyedTable, *, names: Sequence[str], rows: Rows
    ) -> int:
        """Insert all in one statement, unless a column needs SQLAlchemy's defaults row by row."""
        table = of.table
        if not (_fit(table, names) and _has_no_default(table, besides=names)):
            values = [dict(zip(names, row, strict=True)) for row in rows]
            await connection.execute(insert(table), values)
            return len(rows)
        bulk = ROWS.of(connection)
        statement = bulk.insert(table, names).on_conflict_do_nothing(index_elements=[*of.keys])
        parameters = bulk.insert_parameters(names, rows)
        return (await connection.execute(statement, parameters)).rowcount

    async def update(
        self, connection: AsyncConnection, of: KeyedTable, *, names: Sequence[str], rows: Rows
    ) -> int:
        """Update all in one statement, or lock them and then update each."""
        columns = [of.table.c[name] for name in names]
        if _fit(of.table, names):
            key = (self, "update", of.is_marked, *names)
            statement = kept_statement(of.table, key, lambda: _update(of, columns))
            return (await connection.execute(statement, _arrays(rows))).rowcount
        count = await _lock(connection, of, rows)
        if count == len(rows):
            await _update_each(connection, of, columns, rows=rows)
        return count


def _select(of: KeyedTable) -> Any:
    given = _given(_slots(of.keys))
    is_asked = _is_same(of.keys, given)
    return select(*of.columns, _mark(of.table)).join_from(of.table, given, is_asked)


def _update(of: KeyedTable, columns: Sequence[Column[Any]]) -> Any:
    heads = _heads(of)
    given = _given(_slots([*heads, *columns]))
    values: Any = {one: given.c[slot(n)] for n, one in enumerate(columns, len(heads))}
    return update(of.table).values(values).where(_is_same(heads, given))


async def _lock(connection: AsyncConnection, of: KeyedTable, rows: Rows) -> int:
    """Lock the rows that are there under their marks; return how many they are."""
    heads = _heads(of)
    given = _given(_slots(heads))
    locked = (
        select(of.keys[0])
        .join_from(of.table, given, _is_same(heads, given))
        .with_for_update(of=of.table, key_share=True)
    )
    found = await connection.execute(locked, _arrays([row[: len(heads)] for row in rows]))
    return len(found.all())


async def _update_each(
    connection: AsyncConnection, of: KeyedTable, columns: Sequence[Column[Any]], *, rows: Rows
) -> None:
    first = len(of.keys) + of.is_marked
    values: Any = {one: bindparam(slot(n), type_=one.type) for n, one in enumerate(columns, first)}
    is_it = [key == bindparam(slot(n), type_=key.type) for n, key in enumerate(of.keys)]
    used = [*range(len(of.keys)), *range(first, first + len(columns))]
    parameters = [{slot(n): row[n] for n in used} for row in rows]
    await connection.execute(update(of.table).values(values).where(*is_it), parameters)


def _heads(of: KeyedTable) -> list[Any]:
    """Return the columns by which a written row is found: its keys, and its mark if it has one."""
    return [*of.keys, *([_mark(of.table)] if of.is_marked else [])]


def _slots(columns: Sequence[Any]) -> list[Slot]:
    return [(slot(number), one.type) for number, one in enumerate(columns)]


def _given(slots: Sequence[Slot]) -> TableValuedAlias:
    return unnested(slots, name="folded", prefix=_PREFIX)


def _arrays(rows: Rows) -> dict[str, list[Any]]:
    columns = zip(*rows, strict=True)
    return {f"{_PREFIX}{slot(n)}": list(values) for n, values in enumerate(columns)}


def _is_same(columns: Sequence[Any], given: TableValuedAlias) -> Any:
    return and_(*(one == given.c[slot(n)] for n, one in enumerate(columns)))


def _mark(table: Table) -> Any:
    written_by: Any = column("xmin")
    written_by.table = table
    return type_coerce(cast_to(written_by, Text), Text)


def _fit(table: Table, names: Sequence[str]) -> bool:
    return all(fits_array(table.c[name].type) for name in names)


def _has_no_default(table: Table, *, besides: Sequence[str]) -> bool:
    given = frozenset(besides)
    return all(one.default is None for one in table.columns if one.key not in given)
