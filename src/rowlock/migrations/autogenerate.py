"""What Alembic's autogenerate found, made into migrations that run as they are, of steps that are
written as calls of our own, and reversed for the downgrade.

An index of the claim becomes a step of ours, which is the same on all databases and knows how to be
built ``CONCURRENTLY``.

Alembic does not compare the condition of an index. So the database's planner is asked for what the
model's index says: if no index can serve that, in order, then the index of this name is another
one. Where the planner finds any, nothing is changed: a difference that is none would be written
into each revision.

Source: Alembic, "Auto Generating Migrations" and "Operation Plugins".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias, cast, get_args

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.operations.ops import (
    AddColumnOp,
    CreateIndexOp,
    CreateTableOp,
    DowngradeOps,
    DropIndexOp,
    MigrateOperation,
    MigrationScript,
    ModifyTableOps,
    UpgradeOps,
)
from alembic.util import rev_id
from sqlalchemy import (
    Connection,
    DefaultClause,
    Identity,
    Index,
    MetaData,
    Select,
    Table,
    inspect,
    literal_column,
    select,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.elements import ClauseElement

from rowlock import Pipeline, UtcDateTime
from rowlock.app_names import app_of_project
from rowlock.errors import AppError, ConfigurationError
from rowlock.spi import (
    INDEX_INFO,
    KEY,
    PARKED,
    DueColumn,
    DueIndex,
    IndexSeen,
    ParkedIndex,
    due_at_once,
    due_indexes,
    indexes_of,
    serving_index,
    sql_of,
)

STEPS_MODULE = "rowlock.migrations"  # from where a migration imports the steps

StepCall: TypeAlias = tuple[str, Mapping[str, Any]]
"""The name of a step, and what it is given beside ``op`` and the table."""


@dataclass(frozen=True)
class WrittenStep(MigrateOperation):
    """A step of ours, to be written into a migration; in the `downgrade` there is another one, or
    none, since the table itself goes.
    """

    table_name: str
    schema: str | None
    name: str
    given: Mapping[str, Any]
    downgrade: StepCall | None

    def reverse(self) -> MigrateOperation:
        if self.downgrade is None:
            return ModifyTableOps(self.table_name, [])
        name, given = self.downgrade
        return replace(self, name=name, given=given, downgrade=(self.name, self.given))

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return (self.name, self.table_name, *self.given.values())


@Operations.implementation_for(WrittenStep)
def _run(operations: Operations, step: WrittenStep) -> None:
    call = getattr(import_module(STEPS_MODULE), step.name)
    call(operations, step.table_name, **step.given, schema=step.schema)


@renderers.dispatch_for(WrittenStep)
def _render(context: AutogenContext, step: WrittenStep) -> str:
    context.imports.add(f"from {STEPS_MODULE} import {step.name}")
    told = dict(step.given)
    if step.schema is not None:
        told["schema"] = step.schema
    if isinstance(ready := told.get("ready"), ClauseElement):
        assert context.dialect is not None
        told["ready"] = sql_of(ready, context.dialect)
    op = str(context.opts.get("alembic_module_prefix") or "op.").removesuffix(".")
    parts = [op, repr(step.table_name), *(f"{name}={one!r}" for name, one in told.items())]
    one_line = f"{step.name}({', '.join(parts)})"
    if len(one_line) <= LINE_MAX:
        return one_line
    return f"{step.name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


LINE_MAX = 96  # longest call that is written in one line, in characters


@comparators.dispatch_for("schema")
def compare_claim_indexes(
    context: AutogenContext, steps: UpgradeOps, schemas: Collection[str | None]
) -> None:
    """Add the steps that make each index of a claim anew that serves none."""
    connection = context.connection
    if connection is None:
        return
    told = {
        step.index_name
        for one in steps.ops
        for step in (one.ops if isinstance(one, ModifyTableOps) else [one])
        if isinstance(step, CreateIndexOp | DropIndexOp)
    }
    for table in context.sorted_tables:
        declared = due_indexes(table)
        seen = indexes_of(connection, table) if declared else ()
        known = {one.name for one in seen} - told
        for index in declared:
            if index.name in known and not _is_served(connection, index, seen):
                there = Table(table.name, MetaData(), schema=table.schema, autoload_with=connection)
                old = next(one for one in there.indexes if one.name == index.name)
                anew: list[Any] = [DropIndexOp.from_index(old), CreateIndexOp.from_index(index)]
                steps.ops.append(ModifyTableOps(table.name, anew, schema=table.schema))


def _is_served(connection: Connection, index: Index, seen: tuple[IndexSeen, ...]) -> bool:
    table = cast("Table", index.table)
    where = index.dialect_kwargs.get(f"{connection.dialect.name}_where")
    query: Select[Any] = select(literal_column("1")).select_from(table)
    query = query if where is None else query.where(where)
    query = query.order_by(*index.expressions).limit(1)
    try:
        with connection.begin_nested() as savepoint:
            name = serving_index(
                connection, table, query, indexes=seen, place=index.columns[0].name
            )
            savepoint.rollback()  # with what was set to ask
    except SQLAlchemyError:
        # A column that the condition names is to come in this revision; the next one compares.
        return True
    return name is not None


Tables: TypeAlias = dict[tuple[str | None, str], Table]  # by schema and name

OwnIndex: TypeAlias = DueIndex | ParkedIndex

_IS_PARKED: Final = re.compile(rf'\(*"?{PARKED}"? IS NOT NULL\)*', re.IGNORECASE)
"""The condition of an index of parked rows, as a database has it."""


def item_renderer(own: Any) -> Callable[[str, Any, AutogenContext], Any]:
    """Return what renders our types and defaults, after `own`, the host's."""

    def render(kind: str, item: Any, context: AutogenContext) -> Any:
        rendered = False if own is None else own(kind, item, context)
        if rendered is not False:
            return rendered
        if kind == "type" and isinstance(item, UtcDateTime):
            return f"{context.opts['sqlalchemy_module_prefix'] or ''}DateTime(timezone=True)"
        if (
            kind == "server_default"
            and isinstance(item, DefaultClause)
            and isinstance(item.arg, due_at_once)
        ):
            context.imports.add(f"from {STEPS_MODULE} import due_at_once")
            return "due_at_once()"
        return False

    return render


def directives_hook(own: Any) -> Callable[[MigrationContext, Any, list[MigrationScript]], None]:
    """Return what rewrites the steps of a revision, before `own`, the host's."""

    def rewrite(
        context: MigrationContext, revision: Any, directives: list[MigrationScript]
    ) -> None:
        has_identities = context.dialect.supports_identity_columns
        given = context.opts.get("target_metadata")
        metadata = [given] if isinstance(given, MetaData) else list(given or ())
        tables: Tables = {
            (table.schema, table.name): table for one in metadata for table in one.tables.values()
        }
        apart = [
            _script_of(indexes, after=script)
            for script in directives
            if (indexes := _rewrite(script, tables, has_identities=has_identities))
        ]
        directives += apart
        if own is not None:
            own(context, revision, directives)

    return rewrite


def _rewrite(
    script: MigrationScript, tables: Tables, *, has_identities: bool
) -> list[MigrateOperation]:
    """Rewrite the steps of `script`, and return those that want a migration of their own."""
    several_databases = len(script.upgrade_ops_list) > 1
    apart: list[MigrateOperation] = []
    for up, down in zip(script.upgrade_ops_list, script.downgrade_ops_list, strict=True):
        steps = list(_steps_of(up.ops, tables, has_identities=has_identities))
        _check_drops(steps, tables)
        if steps == up.ops:
            continue
        concurrent = [
            step for step in steps if isinstance(step, WrittenStep) and "concurrently" in step.given
        ]
        others = [step for step in steps if step not in concurrent]
        if others and not several_databases:
            apart += concurrent
            concurrent = []
        # What is concurrent comes last, since it commits all that came before.
        up.ops[:] = [*others, *concurrent]
        up.reverse_into(down)
    return apart


def _check_drops(steps: Collection[MigrateOperation], tables: Tables) -> None:
    """Refuse to drop indexes that the module of a pipeline may declare which was not imported."""
    own = [step for step in steps if isinstance(step, WrittenStep)]
    added = {
        (one.schema, one.table_name, one.name.removeprefix("add_"))
        for one in own
        if one.name.startswith("add_")
    }
    for step in own:
        kind = step.name.removeprefix("drop_")
        if kind == step.name or (step.schema, step.table_name, kind) in added:
            continue
        table, given = tables[step.schema, step.table_name], step.given
        is_of_claims = "column" in given
        if (given["column"][0] if is_of_claims else PARKED) not in table.columns:
            continue
        declared = is_of_claims and len(due_indexes(table))
        # Of a pipeline that was imported the index was taken away.
        if declared < _pipelines_of(table):
            continue
        rows = "claims" if is_of_claims else "parked rows"
        raise ConfigurationError(
            f"the migration would drop {given['name']}, an index of {rows} that the database has"
            f" and no module declares; import the module of the pipelines of {step.table_name} in"
            f" env.py{_import_of_app()}; or, if the index is to go, call {step.name}(op,"
            f" {step.table_name!r}, name={given['name']!r}) in a migration of your own"
        )


def _pipelines_of(table: Table) -> int:
    count, classes = 0, [Pipeline]
    while classes:
        one: Any = classes.pop()
        classes += one.__subclasses__()
        mapper = inspect(getattr(one, "model", None), raiseerr=False)
        count += not one.__subclasses__() and table is getattr(mapper, "local_table", None)
    return count


def _import_of_app() -> str:
    try:
        named = app_of_project(Path.cwd())
    except AppError:
        named = None
    if named is None:
        return ", which calls due_index"
    return f", such as `import {named[0].partition(':')[0]}`"


def _script_of(steps: Sequence[MigrateOperation], *, after: MigrationScript) -> MigrationScript:
    up = UpgradeOps(list(steps), upgrade_token=after.upgrade_ops_list[0].upgrade_token)
    down = DowngradeOps([], downgrade_token=after.downgrade_ops_list[0].downgrade_token)
    up.reverse_into(down)
    return MigrationScript(
        rev_id(),
        up,
        down,
        message=f"{after.message or ''} indexes of claims".strip(),
        imports=set(after.imports),
        head=after.rev_id,
        version_path=after.version_path,
    )


def _steps_of(
    steps: Sequence[MigrateOperation], tables: Tables, *, has_identities: bool
) -> Iterator[MigrateOperation]:
    new = {(step.schema, step.table_name) for step in steps if isinstance(step, CreateTableOp)}
    for step in steps:
        is_new = (getattr(step, "schema", None), getattr(step, "table_name", None)) in new
        if not isinstance(step, ModifyTableOps):
            yield _index_step(step, tables, is_new=is_new) or step
            if isinstance(step, CreateTableOp) and _is_leased(step.columns):
                yield WrittenStep(step.table_name, step.schema, "set_fillfactor", {}, None)
            continue
        # Where the database has no identities, changes into them would come each time.
        kept = [
            one
            for one in step.ops
            if has_identities
            or not isinstance(getattr(one, "modify_server_default", None), Identity)
        ]
        pairs = [(one, _index_step(one, tables, is_new=is_new)) for one in kept]
        others = [one for one, own in pairs if own is None]
        if len(others) == len(step.ops):
            yield step
        elif others:
            yield ModifyTableOps(step.table_name, others, schema=step.schema)
        if _is_leased([one.column for one in others if isinstance(one, AddColumnOp)]):
            back = "set_fillfactor", {"percent": None}
            yield WrittenStep(step.table_name, step.schema, "set_fillfactor", {}, back)
        yield from (own for _, own in pairs if own is not None)


def _is_leased(columns: Iterable[Any]) -> bool:
    return {"lock_token", "lock_expires_at"} <= {getattr(one, "name", None) for one in columns}


def _index_step(step: MigrateOperation, tables: Tables, *, is_new: bool) -> MigrateOperation | None:
    """Return our step for an index of claims, or of parked rows; None if it is another one."""
    if not isinstance(step, CreateIndexOp | DropIndexOp):
        return None
    name, adds = str(step.index_name), isinstance(step, CreateIndexOp)
    table = tables.get((step.schema, str(step.table_name)))
    if table is None:
        return None
    made_of = _declared(table, name) if adds else _read_from(step.to_index(), table)
    told: dict[str, Any] = {"name": name}
    if not is_new:
        told["concurrently"] = True
    match made_of:
        case DueIndex():
            told = {"column": made_of.column} | told
            kind, builds = "due_index", {"ready": made_of.ready}
        case ParkedIndex():
            kind, builds = "parked_index", {} if made_of.key == KEY else {"key": made_of.key}
        case None:
            return None
    ours = WrittenStep(
        table.name, table.schema, f"add_{kind}", builds | told, (f"drop_{kind}", told)
    )
    return ours if adds else ours.reverse()


def _declared(table: Table, name: str) -> OwnIndex | None:
    index = next((one for one in table.indexes if one.name == name), None)
    made_of: OwnIndex | None = None if index is None else index.info.get(INDEX_INFO)
    # Steps of migrations know the columns by the names that the mixins give them.
    needed = {PARKED}
    if isinstance(made_of, DueIndex):
        place = made_of.column if isinstance(made_of.column, str) else made_of.column[0]
        needed = {place, PARKED} if place == "due_at" else {place}
    return made_of if needed <= {column.name for column in table.columns} else None


def _read_from(index: Index, table: Table) -> OwnIndex | None:
    names = [str(column.name) for column in index.columns]
    where = [str(one) for name, one in index.dialect_kwargs.items() if name.endswith("_where")]
    if index.unique or len(names) != len(("time", "key")) or not where:
        return None
    if names[0] == PARKED:
        # An index of the host's may begin with the same column, and hold other rows.
        return ParkedIndex(names[1]) if _IS_PARKED.fullmatch(where[0]) else None
    if names[0] in get_args(DueColumn) and _is_leased(table.columns):
        return DueIndex(where[0], (cast("Any", names[0]), names[1]))
    return None
