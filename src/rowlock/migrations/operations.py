"""Steps of a migration as Alembic's autogenerate handles them: written as calls of our own, and
reversed for the downgrade.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from alembic.autogenerate import renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations import MigrateOperation, Operations
from sqlalchemy import ColumnElement

from rowlock.rows.indexes import KEY
from rowlock.rows.migrations import (
    FILLFACTOR,
    add_due_index,
    add_parked_index,
    drop_due_index,
    drop_parked_index,
    set_fillfactor,
)
from rowlock.spi import DueIndex

STEPS_MODULE = "rowlock.migrations"
"""From where a migration imports the steps."""


@dataclass(frozen=True, kw_only=True)
class IndexStep(MigrateOperation):
    """An index of ours, built or dropped; `concurrently`: rows can be read and written
    meanwhile.
    """

    name: str
    table_name: str
    schema: str | None
    concurrently: bool
    call: ClassVar[str]

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return (self.call, self.table_name, self.name)

    def arguments(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **({} if self.schema is None else {"schema": self.schema}),
            **({"concurrently": True} if self.concurrently else {}),
        }


@dataclass(frozen=True, kw_only=True)
class DueIndexStep(IndexStep):
    """An index of the claim, built or dropped."""

    made_of: DueIndex

    def arguments(self) -> dict[str, Any]:
        return {"column": self.made_of.column, **super().arguments()}


class AddDueIndex(DueIndexStep):
    """`add_due_index`, to be written into a migration."""

    call = "add_due_index"

    def reverse(self) -> DropDueIndex:
        return DropDueIndex(**_told(self))


class DropDueIndex(DueIndexStep):
    """`drop_due_index`, to be written into a migration."""

    call = "drop_due_index"

    def reverse(self) -> AddDueIndex:
        return AddDueIndex(**_told(self))


@dataclass(frozen=True, kw_only=True)
class ParkedIndexStep(IndexStep):
    """An index of parked rows, built or dropped; `key` is the primary key."""

    key: str


class AddParkedIndex(ParkedIndexStep):
    """`add_parked_index`, to be written into a migration."""

    call = "add_parked_index"

    def reverse(self) -> DropParkedIndex:
        return DropParkedIndex(**_told(self))


class DropParkedIndex(ParkedIndexStep):
    """`drop_parked_index`, to be written into a migration."""

    call = "drop_parked_index"

    def reverse(self) -> AddParkedIndex:
        return AddParkedIndex(**_told(self))


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
        return SetFillfactor(**{**_told(self), "percent": None})

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return ("set_fillfactor", self.table_name, self.percent)


def _told(step: IndexStep | SetFillfactor) -> dict[str, Any]:
    return {field.name: getattr(step, field.name) for field in fields(step)}


@Operations.implementation_for(AddDueIndex)
def _add(operations: Operations, step: AddDueIndex) -> None:
    add_due_index(operations, step.table_name, ready=step.made_of.ready, **step.arguments())


@Operations.implementation_for(DropDueIndex)
def _drop(operations: Operations, step: DropDueIndex) -> None:
    drop_due_index(operations, step.table_name, **step.arguments())


@Operations.implementation_for(AddParkedIndex)
def _add_parked(operations: Operations, step: AddParkedIndex) -> None:
    add_parked_index(operations, step.table_name, key=step.key, **step.arguments())


@Operations.implementation_for(DropParkedIndex)
def _drop_parked(operations: Operations, step: DropParkedIndex) -> None:
    drop_parked_index(operations, step.table_name, **step.arguments())


@Operations.implementation_for(SetFillfactor)
def _set(operations: Operations, step: SetFillfactor) -> None:
    set_fillfactor(operations, step.table_name, step.percent, schema=step.schema)


@renderers.dispatch_for(AddDueIndex)
def _render_add(context: AutogenContext, step: AddDueIndex) -> str:
    ready = sql_of(step.made_of.ready, context)
    return _call(context, "add_due_index", step.table_name, ready=ready, **step.arguments())


@renderers.dispatch_for(DropDueIndex)
def _render_drop(context: AutogenContext, step: DropDueIndex) -> str:
    return _call(context, "drop_due_index", step.table_name, **step.arguments())


@renderers.dispatch_for(AddParkedIndex)
def _render_add_parked(context: AutogenContext, step: AddParkedIndex) -> str:
    key = {} if step.key == KEY else {"key": step.key}
    return _call(context, "add_parked_index", step.table_name, **key, **step.arguments())


@renderers.dispatch_for(DropParkedIndex)
def _render_drop_parked(context: AutogenContext, step: DropParkedIndex) -> str:
    return _call(context, "drop_parked_index", step.table_name, **step.arguments())


@renderers.dispatch_for(SetFillfactor)
def _render_set(context: AutogenContext, step: SetFillfactor) -> str | list[str]:
    if step.percent is None and step.goes_with_table:
        return []
    schema = {} if step.schema is None else {"schema": step.schema}
    percent = () if step.percent == FILLFACTOR else (step.percent,)
    return _call(context, "set_fillfactor", step.table_name, *percent, **schema)


def sql_of(ready: str | ColumnElement[bool], context: AutogenContext) -> str:
    """Return a condition as SQL of the database that is looked at."""
    if isinstance(ready, str):
        return ready
    assert context.dialect is not None
    nothing: Any = None
    compiler = context.dialect.ddl_compiler(context.dialect, nothing).sql_compiler
    # A driver whose parameters begin with % wants it doubled, and a migration is no statement yet.
    compiler.preparer = copy(compiler.preparer)
    compiler.preparer._double_percents = False
    return compiler.process(ready, include_table=False, literal_binds=True)


def _call(context: AutogenContext, step: str, *values: object, **options: object) -> str:
    context.imports.add(f"from {STEPS_MODULE} import {step}")
    prefix = str(context.opts.get("alembic_module_prefix") or "op.").removesuffix(".")
    told = [prefix, *map(repr, values), *(f"{name}={one!r}" for name, one in options.items())]
    one_line = f"{step}({', '.join(told)})"
    if len(one_line) <= LINE_MAX:
        return one_line
    return f"{step}(\n" + "".join(f"    {part},\n" for part in told) + ")"


LINE_MAX = 96
"""Longest call that is written in one line, in characters."""
