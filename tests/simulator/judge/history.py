"""The database as historian: triggers write down every change of a lease, whatever a replica
believes of itself.

The one idea: what is judged is what was committed. A trigger notes, within the transaction that
makes the change, what a row's lock columns were before and after, with the database's time; a
transaction that rolls back leaves no note.

The order: changes are numbered by the database. Those of one row are in the order of their commits,
since each is numbered while its row is locked and that lock ends with the transaction. On SQLite
there is one writer, so all are. On PostgreSQL numbers of different rows may be in another order
than their commits: one that was made first may be committed last. Two rows may still be compared
where the changes of one are made with the other locked, as rowlock locks related rows with their
main row locked, or by the snapshot that a change carries; nothing else may rest on it.

Not here: the judge (``checker.py``). A change of nothing, such as a lease set to what it was, is
not noted.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.rows.leased_table import LOCK_COLUMNS, LeasedTable

HISTORY_TABLE: Final = "rowlock_history"
"""The table of the notes; empty it to begin anew."""

HISTORY_QUERY: Final = (
    "SELECT number, place, key_before, key_after, instant, statement_at, transaction_at,"
    f" transaction_id, snapshot, was, became FROM {HISTORY_TABLE} ORDER BY number"
)
"""What `changes_from` reads the rows of."""

_SCHEDULE_COLUMNS: Final = ("due_at", "attempts", "parked_at")
_NOW_ON_SQLITE: Final = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
_DASHED: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TABLE: Final = {
    "sqlite": (
        f"CREATE TABLE {HISTORY_TABLE} (number INTEGER PRIMARY KEY AUTOINCREMENT, place TEXT NOT"
        " NULL, key_before TEXT, key_after TEXT, instant TEXT NOT NULL, statement_at TEXT NOT"
        " NULL, transaction_at TEXT, transaction_id INTEGER, snapshot TEXT, was TEXT, became TEXT)"
    ),
    "postgresql": (
        f"CREATE TABLE {HISTORY_TABLE} (number BIGSERIAL PRIMARY KEY, place TEXT NOT NULL,"
        " key_before TEXT, key_after TEXT, instant TEXT NOT NULL, statement_at TEXT NOT NULL,"
        " transaction_at TEXT, transaction_id BIGINT, snapshot TEXT, was TEXT, became TEXT)"
    ),
}


@dataclass(frozen=True, slots=True)
class RowState:
    """What a row said at one time.

    Attributes:
        lock_token: who holds it; the same UUID for every shape of the column.
        lock_owner: the holder's name, or the name of who comes back.
        lock_expires_at: the end of the lease, aware.
        last_processed_at: the last outcome, aware.
        due_at: None without a schedule, as the following.
        attempts: failed attempts.
        parked_at: when it was set aside.
        values: the host's own columns that the historian was asked to watch, by attribute name, as
            JSON has them.
    """

    lock_token: uuid.UUID | None = None
    lock_owner: str | None = None
    lock_expires_at: datetime | None = None
    last_processed_at: datetime | None = None
    due_at: datetime | None = None
    attempts: int | None = None
    parked_at: datetime | None = None
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row.

    Attributes:
        number: its place in the order of changes.
        at: the database's time when it was made.
        statement_at: when its statement began; on SQLite the same.
        transaction_at: when its transaction began; on SQLite nobody knows, and it is None.
        transaction: tells transactions apart; None on SQLite.
        snapshot: which transactions had ended when it was noted, as PostgreSQL writes it.
        table: the table's name.
        key: the row's key as text; see `key_text`.
        before: None if the row was inserted, or was there when the historian came.
        after: None if the row was deleted.
    """

    number: int
    at: datetime
    statement_at: datetime
    transaction_at: datetime | None
    transaction: int | None
    table: str
    key: str
    before: RowState | None
    after: RowState | None
    snapshot: str | None = None

    def was_noted_after(self, transaction: int) -> bool:
        """Whether `transaction`, which was committed at some time, was so already."""
        if self.snapshot is None:
            return True
        _, ends, running = self.snapshot.split(":")
        return transaction < int(ends) and str(transaction) not in running.split(",")


def historian_statements(
    dialect: Dialect, models: Iterable[type], *, also: Mapping[type, Sequence[str]] | None = None
) -> list[str]:
    """Return the DDL of the historian, for whatever runs it: a plain ``sqlite3`` connection, or a
    migration of a test schema.

    Args:
        dialect: whose SQL it is, such as ``sqlalchemy.dialects.sqlite.dialect()``.
        models: mapped classes with the lock columns, whose tables are there.
        also: attribute names of the host's own columns to be watched besides, by model.
    """
    write = _on_sqlite if dialect.name == "sqlite" else _on_postgresql
    statements = [_TABLE[dialect.name]]
    for model in models:
        leased: LeasedTable = LeasedTable.of(model)
        statements += write(_Watched.of(leased, dialect, (also or {}).get(model, ())))
    return statements


async def install_historian(
    connection: AsyncConnection,
    models: Iterable[type],
    *,
    also: Mapping[type, Sequence[str]] | None = None,
) -> None:
    """Let the database note every change of a lease of `models` from now on; joins the caller's
    transaction.

    Args:
        connection: of a transaction that may change the schema.
        models: mapped classes with the lock columns, those of related rows among them; their tables
            are there.
        also: attribute names of the host's own columns to be watched besides, by model.
    """
    for statement in historian_statements(connection.dialect, models, also=also):
        await connection.exec_driver_sql(statement)


async def read_history(source: AsyncConnection | AsyncSession) -> list[Change]:
    """Return all changes so far, in order; joins the caller's transaction."""
    return changes_from((await source.execute(text(HISTORY_QUERY))).all())


def changes_from(rows: Iterable[Sequence[Any]]) -> list[Change]:
    """Return the changes that `HISTORY_QUERY` found, whoever has asked it."""
    return [change for row in rows for change in _changes_of(row)]


def key_text(key: object) -> str:
    """Return a row's key as changes have it: text, a UUID by its 32 digits."""
    return key.hex if isinstance(key, uuid.UUID) else _digits(str(key))


def _changes_of(row: Sequence[Any]) -> Iterable[Change]:
    (
        number,
        table,
        key_before,
        key_after,
        instant,
        statement_at,
        transaction_at,
        transaction,
        snapshot,
        was,
        became,
    ) = row
    times = (_time(instant), _time(statement_at), _time(transaction_at))
    at, began_at, opened_at = times
    assert at is not None
    assert began_at is not None
    before, after = _state(was), _state(became)

    def change(key: str, before: RowState | None, after: RowState | None) -> Change:
        return Change(
            number,
            at,
            began_at,
            opened_at,
            transaction,
            table,
            _digits(key),
            before,
            after,
            snapshot,
        )

    # A row that got another key is, for everybody who looks for it, gone, and another one has come.
    if before is not None and after is not None and key_before != key_after:
        return [change(key_before, before, None), change(key_after, None, after)]
    return [change(key_before if after is None else key_after, before, after)]


def _state(noted: str | None) -> RowState | None:
    if noted is None:
        return None
    columns = json.loads(noted)
    token = columns["lock_token"]
    return RowState(
        lock_token=None if token is None else uuid.UUID(token),
        lock_owner=columns["lock_owner"],
        lock_expires_at=_time(columns["lock_expires_at"]),
        last_processed_at=_time(columns["last_processed_at"]),
        due_at=_time(columns.get("due_at")),
        attempts=columns.get("attempts"),
        parked_at=_time(columns.get("parked_at")),
        values=columns["values"],
    )


def _time(noted: str | None) -> datetime | None:
    if noted is None:
        return None
    time = datetime.fromisoformat(noted)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _digits(key: str) -> str:
    return key.replace("-", "") if _DASHED.fullmatch(key) else key


@dataclass(frozen=True, slots=True)
class _Watched:
    """One table in SQL: `table` and `key` quoted, `place` and the names of `columns` as
    literals, quoted columns.
    """

    place: str
    table: str
    key: str
    columns: dict[str, str]
    also: dict[str, str]
    trigger: str

    @classmethod
    def of(cls, leased: LeasedTable, dialect: Dialect, also: Sequence[str]) -> _Watched:
        preparer = dialect.identifier_preparer
        names = (*LOCK_COLUMNS, *(_SCHEDULE_COLUMNS if leased.has_schedule else ()))
        return cls(
            place=_literal(leased.table.name),
            table=preparer.format_table(leased.table),
            key=preparer.quote(leased.key.name),
            columns={_literal(name): preparer.quote(leased.column(name).name) for name in names},
            also={
                _literal(name): preparer.quote(leased.columns_by_name[name].name) for name in also
            },
            # Of a fixed length: PostgreSQL cuts names at 63 bytes, and tables with long names may
            # begin alike.
            trigger=(
                f"rowlock_note_{hashlib.sha256(leased.table.fullname.encode()).hexdigest()[:16]}"
            ),
        )

    def as_json(self, which: str, function: str) -> str:
        own = ", ".join(f"{name}, {which}.{column}" for name, column in self.also.items())
        columns = ", ".join(f"{name}, {which}.{column}" for name, column in self.columns.items())
        return f"{function}({columns}, 'values', {function}({own}))"


def _literal(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _on_sqlite(watched: _Watched) -> list[str]:
    was, became = (watched.as_json(which, "json_object") for which in ("OLD", "NEW"))
    old_key, new_key = (f"CAST({which}.{watched.key} AS TEXT)" for which in ("OLD", "NEW"))
    columns = [watched.key, *watched.columns.values(), *watched.also.values()]
    differs = " OR ".join(f"OLD.{column} IS NOT NEW.{column}" for column in columns)
    insert = (
        f"INSERT INTO {HISTORY_TABLE} (place, key_before, key_after, instant, statement_at, was,"
        f" became) SELECT {watched.place}, %s, %s, {_NOW_ON_SQLITE}, {_NOW_ON_SQLITE}, %s, %s"
    ).replace("%Y-%m-%d %H:%M:%f000", "%%Y-%%m-%%d %%H:%%M:%%f000")
    noted = {
        "INSERT": ("", insert % ("NULL", new_key, "NULL", became)),
        "UPDATE": (f"WHEN {differs} ", insert % (old_key, new_key, was, became)),
        "DELETE": ("", insert % (old_key, "NULL", was, "NULL")),
    }
    triggers = [
        f"CREATE TRIGGER {watched.trigger}_{what.lower()} AFTER {what} ON {watched.table}"
        f" {when}BEGIN {note}; END"
        for what, (when, note) in noted.items()
    ]
    found = noted["INSERT"][1].replace("NEW.", f"{watched.table}.")
    return [f"{found} FROM {watched.table}", *triggers]


def _on_postgresql(watched: _Watched) -> list[str]:
    columns = [watched.key, *watched.columns.values(), *watched.also.values()]
    # As text, since not every type of a host has an equality.
    differs = " OR ".join(
        f"OLD.{column}::text IS DISTINCT FROM NEW.{column}::text" for column in columns
    )
    was, became = (
        watched.as_json(which, "jsonb_build_object") + "::text" for which in ("OLD", "NEW")
    )
    instants = ", ".join(
        f"to_jsonb({function}()) #>> '{{}}'"
        for function in ("clock_timestamp", "statement_timestamp", "now")
    )
    into = (
        f"INSERT INTO {HISTORY_TABLE} (place, instant, statement_at, transaction_at,"
        f" transaction_id, snapshot, key_before, key_after, was, became) SELECT {watched.place},"
        f" {instants}, txid_current(), txid_current_snapshot()::text"
    )
    old, new = "CASE WHEN TG_OP <> 'INSERT' THEN {} END", "CASE WHEN TG_OP <> 'DELETE' THEN {} END"
    noted = ", ".join(
        (
            old.format(f"OLD.{watched.key}::text"),
            new.format(f"NEW.{watched.key}::text"),
            old.format(was),
            new.format(became),
        )
    )
    name = watched.trigger
    found = f"{into}, NULL, {watched.key}::text, NULL, {became} FROM {watched.table} AS NEW_ROW"
    found = found.replace("NEW.", "NEW_ROW.")
    return [
        found,
        (
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $note$ BEGIN {into},"
            f" {noted}; RETURN NULL; END $note$"
        ),
        (
            f"CREATE TRIGGER {name} AFTER INSERT OR DELETE ON {watched.table} FOR EACH ROW EXECUTE"
            f" FUNCTION {name}()"
        ),
        (
            f"CREATE TRIGGER {name}_update AFTER UPDATE ON {watched.table} FOR EACH ROW WHEN"
            f" ({differs}) EXECUTE FUNCTION {name}()"
        ),
    ]
