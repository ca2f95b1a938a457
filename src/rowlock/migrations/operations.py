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

STEPS_MODULE = "rowlock.migrations"  # from where a migration imports the steps


@dataclass(frozen=True, kw_only=True)
class IndexStep(MigrateOperation):
    """An index of ours, built or dropped: `call` is a migration's step, `undo` takes it back."""

    name: str
    table_name: str
    schema: str | None
    concurrently: bool
    call: ClassVar[Any]
    undo: ClassVar[type[IndexStep]]

    def reverse(self) -> IndexStep:
        return self.undo(**_told(self))

    def to_diff_tuple(self) -> tuple[Any, ...]:
        return (self.call.__name__, self.table_name, self.name)

    def own_arguments(self, context: AutogenContext | None) -> dict[str, Any]:
        """Return what this kind takes; with a `context`, as it is written."""
        return {}

    def arguments(self, context: AutogenContext | None) -> dict[str, Any]:
        return {
            **self.own_arguments(context),
            "name": self.name,
            **({} if self.schema is None else {"schema": self.schema}),
            **({"concurrently": True} if self.concurrently else {}),
        }


@dataclass(frozen=True, kw_only=True)
class DueIndexStep(IndexStep):
    made_of: DueIndex

    def own_arguments(self, context: AutogenContext | None) -> dict[str, Any]:
        return {"column": self.made_of.column}


class AddDueIndex(DueIndexStep):
    call = staticmethod(add_due_index)

    def own_arguments(self, context: AutogenContext | None) -> dict[str, Any]:
        ready: Any = self.made_of.ready
        ready = ready if context is None else sql_of(ready, context)
        return {"ready": ready, **super().own_arguments(context)}


class DropDueIndex(DueIndexStep):
    call = staticmethod(drop_due_index)
    undo = AddDueIndex


@dataclass(frozen=True, kw_only=True)
class ParkedIndexStep(IndexStep):
    """An index of parked rows; `key` is the primary key."""

    key: str


class AddParkedIndex(ParkedIndexStep):
    call = staticmethod(add_parked_index)

    def own_arguments(self, context: AutogenContext | None) -> dict[str, Any]:
        return {} if context is not None and self.key == KEY else {"key": self.key}


class DropParkedIndex(ParkedIndexStep):
    call = staticmethod(drop_parked_index)
    undo = AddParkedIndex


AddDueIndex.undo, AddParkedIndex.undo = DropDueIndex, DropParkedIndex


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


def _run(operations: Operations, step: IndexStep) -> None:
    step.call(operations, step.table_name, **step.arguments(None))


def _render(context: AutogenContext, step: IndexStep) -> str:
    return _call(context, step.call.__name__, step.table_name, **step.arguments(context))


for _kind in (AddDueIndex, DropDueIndex, AddParkedIndex, DropParkedIndex):
    Operations.implementation_for(_kind)(_run)
    renderers.dispatch_for(_kind)(_render)


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


LINE_MAX = 96  # longest call that is written in one line, in characters
