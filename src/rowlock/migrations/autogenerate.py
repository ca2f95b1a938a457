"""What Alembic's autogenerate found, made into migrations that run as they are, of steps that are
written as calls of our own, and reversed for the downgrade.

The one idea: Alembic compares, and what it found is rewritten. An index of the claim becomes a step
of ours, which is the same on all databases and knows how to be built ``CONCURRENTLY``.

Alembic does not compare the condition of an index. So the database's planner is asked for what the
model's index says: if no index can serve that, in order, then the index of this name is another
one. Where the planner finds any, nothing is changed: a difference that is none would be written
into each revision.

Source: Alembic, "Auto Generating Migrations" and "Operation Plugins".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    Column,
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

from rowlock import Pipeline, UtcDateTime
from rowlock.errors import AppError, ConfigurationError
from rowlock.insight.apps import app_named
from rowlock.insight.findings import sql_of
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.rows.indexes import KEY, DueColumn
from rowlock.rows.migrations import (
    FILLFACTOR,
    add_due_index,
    add_parked_index,
    drop_due_index,
    drop_parked_index,
    set_fillfactor,
)
from rowlock.spi import INDEX_INFO, PARKED, DueIndex, due_at_once

STEPS_MODULE = "rowlock.migrations"  # from where a migration imports the steps


@dataclass(frozen=True, kw_only=True)
class IndexStep(MigrateOperation):
    """An index of ours, built (`adds`) or dropped: of claims, made of a `DueIndex`, or of parked
    rows, made of their `key`.
    """

    name: str
    table_name: str
    schema: str | None
    concurrently: bool
    adds: bool
    made_of: DueIndex | str

    @property
    def is_of_claims(self) -> bool:
        return isinstance(self.made_of, DueIndex)

    @property
    def call(self) -> Callable[..., None]:
        if self.is_of_claims:
            return add_due_index if self.adds else drop_due_index
        return add_parked_index if self.adds else drop_parked_index

    def reverse(self) -> IndexStep:
        return replace(self, adds=not self.adds)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return (self.call.__name__, self.table_name, self.name)

    def arguments(self, context: AutogenContext | None) -> dict[str, Any]:
        """Return what is called with; with a `context`, as it is written."""
        told: dict[str, Any] = {}
        if isinstance(self.made_of, DueIndex):
            if self.adds:
                ready = self.made_of.ready
                if context is not None and not isinstance(ready, str):
                    assert context.dialect is not None
                    ready = sql_of(ready, context.dialect)
                told["ready"] = ready
            told["column"] = self.made_of.column
        elif self.adds and self.made_of != KEY:
            told["key"] = self.made_of
        told["name"] = self.name
        if self.schema is not None:
            told["schema"] = self.schema
        if self.concurrently:
            told["concurrently"] = True
        return told


@Operations.implementation_for(IndexStep)
def _run(operations: Operations, step: IndexStep) -> None:
    step.call(operations, step.table_name, **step.arguments(None))


@renderers.dispatch_for(IndexStep)
def _render(context: AutogenContext, step: IndexStep) -> str:
    return _call(context, step.call.__name__, step.table_name, **step.arguments(context))


@dataclass(frozen=True, kw_only=True)
class SetFillfactor(MigrateOperation):
    """`set_fillfactor`, to be written into a migration.

    Attributes:
        percent: what is set; None takes it back.
        goes_with_table: whether the table itself goes in the downgrade.
    """

    table_name: str
    schema: str | None
    percent: int | None = FILLFACTOR
    goes_with_table: bool

    def reverse(self) -> SetFillfactor:
        return replace(self, percent=None)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("set_fillfactor", self.table_name, self.percent)


@Operations.implementation_for(SetFillfactor)
def _set(operations: Operations, step: SetFillfactor) -> None:
    set_fillfactor(operations, step.table_name, step.percent, schema=step.schema)


@renderers.dispatch_for(SetFillfactor)
def _render_set(context: AutogenContext, step: SetFillfactor) -> str | list[str]:
    if step.percent is None and step.goes_with_table:
        return []
    schema = {} if step.schema is None else {"schema": step.schema}
    percent = () if step.percent == FILLFACTOR else (step.percent,)
    return _call(context, "set_fillfactor", step.table_name, *percent, **schema)


def _call(context: AutogenContext, step: str, *values: object, **options: object) -> str:
    context.imports.add(f"from {STEPS_MODULE} import {step}")
    prefix = str(context.opts.get("alembic_module_prefix") or "op.").removesuffix(".")
    told = [prefix, *map(repr, values), *(f"{name}={one!r}" for name, one in options.items())]
    one_line = f"{step}({', '.join(told)})"
    if len(one_line) <= LINE_MAX:
        return one_line
    return f"{step}(\n" + "".join(f"    {part},\n" for part in told) + ")"


LINE_MAX = 96  # longest call that is written in one line, in characters


@comparators.dispatch_for("schema")
def compare_claim_indexes(
    context: AutogenContext, steps: UpgradeOps, schemas: Collection[str | None]
) -> None:
    """Add the steps that make each index of a claim anew that serves none; Alembic calls it."""
    connection = context.connection
    if connection is None:
        return
    tables = [one.ops if isinstance(one, ModifyTableOps) else [one] for one in steps.ops]
    told = {
        step.index_name
        for each in tables
        for step in each
        if isinstance(step, CreateIndexOp | DropIndexOp)
    }
    for table in context.sorted_tables:
        of_claims = [index for index in table.indexes if INDEX_INFO in index.info]
        known = _names_in(connection, table) if of_claims else set[str]()
        for index in of_claims:
            if index.name in known - told and not _serves(connection, table, index):
                steps.ops.append(_made_anew(connection, table, index))


def _names_in(connection: Connection, table: Table) -> set[str]:
    inspector = inspect(connection)
    if not inspector.has_table(table.name, schema=table.schema):
        return set()
    return {str(one["name"]) for one in inspector.get_indexes(table.name, schema=table.schema)}


def _serves(connection: Connection, table: Table, index: Index) -> bool:
    dialect = connection.dialect
    where = index.dialect_kwargs.get(f"{dialect.name}_where")
    query: Select[Any] = select(literal_column("1")).select_from(table)
    query = query if where is None else query.where(where)
    query = query.order_by(*index.expressions).limit(1)
    sql = str(query.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    try:
        return INSIGHT.on(dialect.name).serves(connection, table, query=sql, index=str(index.name))
    except SQLAlchemyError:
        # A column that the condition names is to come in this revision; the next one compares.
        return True


def _made_anew(connection: Connection, table: Table, index: Index) -> ModifyTableOps:
    there = Table(table.name, MetaData(), schema=table.schema, autoload_with=connection)
    old = next(one for one in there.indexes if one.name == index.name)
    steps: list[Any] = [DropIndexOp.from_index(old), CreateIndexOp.from_index(index)]
    return ModifyTableOps(table.name, steps, schema=table.schema)


ItemRenderer: TypeAlias = Callable[[str, Any, AutogenContext], Any]
DirectivesHook: TypeAlias = Callable[[MigrationContext, Any, list[MigrationScript]], None]
TableKey: TypeAlias = tuple[str | None, str]  # schema and name of a table

_NAME: Final = r'(?:\w+|"[^"]+")'
_IS_PARKED: Final = re.compile(rf"\(*(?:{_NAME}\.)*\"?{PARKED}\"? IS NOT NULL\)*", re.IGNORECASE)
"""The condition of an index of parked rows, as a model or a database has it."""


def item_renderer(own: ItemRenderer | None) -> ItemRenderer:
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


def directives_hook(own: DirectivesHook | None) -> DirectivesHook:
    """Return what rewrites the steps of a revision, before `own`, the host's."""

    def rewrite(
        context: MigrationContext, revision: Any, directives: list[MigrationScript]
    ) -> None:
        for script in tuple(directives):
            has_identities = context.dialect.supports_identity_columns
            given = context.opts.get("target_metadata")
            metadata = [given] if isinstance(given, MetaData) else list(given or ())
            indexes = _rewrite(script, metadata, has_identities=has_identities)
            if indexes:
                directives.append(_script_of(indexes, after=script))
        if own is not None:
            own(context, revision, directives)

    return rewrite


def _rewrite(
    script: MigrationScript, metadata: Iterable[MetaData], *, has_identities: bool
) -> list[MigrateOperation]:
    """Rewrite the steps of `script`, and return those that want a migration of their own."""
    tables: dict[TableKey, Table] = {
        (table.schema, table.name): table for one in metadata for table in one.tables.values()
    }
    several_databases = len(script.upgrade_ops_list) > 1
    apart: list[MigrateOperation] = []
    for up, down in zip(script.upgrade_ops_list, script.downgrade_ops_list, strict=True):
        steps = list(_steps_of(up.ops, tables, has_identities=has_identities))
        _check_drops(steps, tables)
        if steps == up.ops:
            continue
        # Stable: what is concurrent comes last, since it commits all that came before.
        steps.sort(key=_is_concurrent)
        others = [step for step in steps if not _is_concurrent(step)]
        if others and not several_databases:
            apart += [step for step in steps if _is_concurrent(step)]
            steps = others
        up.ops[:] = steps
        up.reverse_into(down)
    return apart


def _check_drops(steps: Collection[MigrateOperation], tables: dict[TableKey, Table]) -> None:
    """Refuse to drop indexes that the module of a pipeline may declare which was not imported."""
    own = [step for step in steps if isinstance(step, IndexStep)]
    added = {(one.schema, one.table_name, one.is_of_claims) for one in own if one.adds}
    for step in own:
        if step.adds or (step.schema, step.table_name, step.is_of_claims) in added:
            continue
        table, time = tables[step.schema, step.table_name], PARKED
        if isinstance(step.made_of, DueIndex):
            time = step.made_of.column[0]
        if time not in table.columns:
            continue
        declared = step.is_of_claims and sum(INDEX_INFO in index.info for index in table.indexes)
        # Of a pipeline that was imported the index was taken away.
        if declared < _pipelines_of(table):
            continue
        rows = "claims" if step.is_of_claims else "parked rows"
        raise ConfigurationError(
            f"the migration would drop {step.name}, an index of {rows} that the database has and no"
            f" module declares; import the module of the pipelines of {step.table_name} in"
            f" env.py{_import_of_app()}; or, if the index is to go, call {step.call.__name__}(op,"
            f" {step.table_name!r}, name={step.name!r}) in a migration of your own"
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
        module = app_named(None, os.environ, Path.cwd())[0].partition(":")[0]
    except AppError:
        return ", which calls due_index"
    return f", such as `import {module}`"


def _is_concurrent(step: MigrateOperation) -> bool:
    return isinstance(step, IndexStep) and step.concurrently


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
    steps: Sequence[MigrateOperation], tables: dict[TableKey, Table], *, has_identities: bool
) -> Iterator[MigrateOperation]:
    new = {(step.schema, step.table_name) for step in steps if isinstance(step, CreateTableOp)}
    for step in steps:
        if isinstance(step, ModifyTableOps):
            is_new = (step.schema, step.table_name) in new
            yield from _table_steps(step, tables, is_new=is_new, has_identities=has_identities)
            continue
        yield _index_step(step, tables, is_new=_table_of(step) in new) or step
        if isinstance(step, CreateTableOp) and _is_leased(
            {str(item.name) for item in step.columns if isinstance(item, Column)}
        ):
            yield SetFillfactor(
                table_name=step.table_name, schema=step.schema, goes_with_table=True
            )


def _table_steps(
    table: ModifyTableOps, tables: dict[TableKey, Table], *, is_new: bool, has_identities: bool
) -> Iterator[MigrateOperation]:
    apart: list[MigrateOperation] = []
    kept: list[MigrateOperation] = []
    for step in table.ops:
        if (own := _index_step(step, tables, is_new=is_new)) is not None:
            apart.append(own)
        # Where the database has no identities, changes into them would come each time.
        elif has_identities or not isinstance(
            getattr(step, "modify_server_default", None), Identity
        ):
            kept.append(step)
    if len(kept) == len(table.ops):
        yield table
    elif kept:
        yield ModifyTableOps(table.table_name, kept, schema=table.schema)
    added = {step.column.name for step in kept if isinstance(step, AddColumnOp)}
    if _is_leased(added):
        yield SetFillfactor(table_name=table.table_name, schema=table.schema, goes_with_table=False)
    yield from apart


def _is_leased(columns: set[str]) -> bool:
    return columns >= {"lock_token", "lock_expires_at"}


def _table_of(step: MigrateOperation) -> TableKey | None:
    if not isinstance(step, CreateIndexOp | DropIndexOp):
        return None
    return step.schema, str(step.table_name)


def _index_step(
    step: MigrateOperation, tables: dict[TableKey, Table], *, is_new: bool
) -> IndexStep | None:
    """Return our step for an index of claims, or of parked rows; None if it is another one."""
    table_key = _table_of(step)
    if table_key is None or (table := tables.get(table_key)) is None:
        return None
    name = str(cast("Any", step).index_name)
    adds, made_of = isinstance(step, CreateIndexOp), None
    if isinstance(step, CreateIndexOp):
        index = next((one for one in table.indexes if str(one.name) == name), None)
        if index is not None:
            made_of = _key_of_parked(index) or _made_of(index)
    else:
        index = cast("DropIndexOp", step).to_index()
        made_of = _key_of_parked(index) or _read_from(index, table)
    if made_of is None:
        return None
    schema, table_name = table_key
    return IndexStep(
        name=name,
        table_name=table_name,
        schema=schema,
        concurrently=not is_new,
        adds=adds,
        made_of=made_of,
    )


def _key_of_parked(index: Index) -> str | None:
    names = [str(column.name) for column in index.columns]
    is_theirs = len(names) == len((PARKED, "key")) and names[0] == PARKED and not index.unique
    texts = [str(condition) for condition in _conditions(index)]
    # An index of the host's may begin with the same column, and hold other rows.
    return names[1] if is_theirs and texts and all(map(_IS_PARKED.fullmatch, texts)) else None


def _conditions(index: Index) -> list[Any]:
    return [value for name, value in index.dialect_kwargs.items() if name.endswith("_where")]


def _made_of(index: Index) -> DueIndex | None:
    made_of: DueIndex | None = index.info.get(INDEX_INFO)
    if made_of is None:
        return None
    # Steps of migrations know the columns by the names that the mixins give them.
    told = made_of.column if isinstance(made_of.column, str) else made_of.column[0]
    is_spelt = told in {column.name for column in index.columns}
    others = {column.name for column in cast("Table", index.table).columns}
    return made_of if is_spelt and (told != "due_at" or PARKED in others) else None


def _read_from(index: Index, table: Table) -> DueIndex | None:
    names = [str(column.name) for column in index.columns]
    is_claims = len(names) == len(("time", "key")) and names[0] in get_args(DueColumn)
    conditions = _conditions(index)
    if not is_claims or not conditions or not _is_leased({*table.columns.keys()}):
        return None
    return DueIndex(str(conditions[0]), (cast("Any", names[0]), names[1]))
