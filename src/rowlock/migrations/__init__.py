"""Migrations of the host's tables: the steps that adopt a table, and what Alembic's autogenerate
needs to write them.

Steps are called by the host's migrations, with Alembic's ``op``; `autogenerate_options` is the one
line in ``env.py``. Alembic is the host's: it is imported when that line is run, and not before.

Not here: the columns and indexes of dispatching pipelines (``rowlock.dispatch.migrations``).
"""

from __future__ import annotations

from typing import Any

from rowlock import due_index, parked_index
from rowlock.rows.migrations import (
    FILLFACTOR,
    add_due_index,
    add_lock_columns,
    add_parked_index,
    add_schedule_columns,
    drop_due_index,
    drop_lock_columns,
    drop_parked_index,
    drop_schedule_columns,
    lock_columns,
    schedule_columns,
    set_fillfactor,
)
from rowlock.spi import due_at_once

__all__ = [
    "FILLFACTOR",
    "add_due_index",
    "add_lock_columns",
    "add_parked_index",
    "add_schedule_columns",
    "autogenerate_options",
    "drop_due_index",
    "drop_lock_columns",
    "drop_parked_index",
    "drop_schedule_columns",
    "due_at_once",
    "due_index",
    "lock_columns",
    "parked_index",
    "schedule_columns",
    "set_fillfactor",
]


def autogenerate_options(
    *, render_item: Any = None, process_revision_directives: Any = None
) -> dict[str, Any]:
    """Return options for ``context.configure`` in ``env.py``, with which ``alembic revision
    --autogenerate`` writes migrations that run as they are:
    ``context.configure(..., **autogenerate_options())``.

    - The types and defaults of the columns are rendered with what the migration imports.
    - The index of `due_index` is built by `add_due_index`, on both databases. In a table that is
      there, it is built ``CONCURRENTLY``, in a migration of its own, which comes last.
    - Pages of a new or newly adopted table get room for heartbeats, by `set_fillfactor`.

    Args:
        render_item: the host's own function for this option of Alembic's, if there is one; it is
            asked first.
        process_revision_directives: likewise; it is called last, with what is to be written.

    Raises:
        ImportError: Alembic is not installed.
    """
    from rowlock.migrations.autogenerate import directives_hook, item_renderer  # noqa: PLC0415 - Alembic is the host's

    return {
        "render_item": item_renderer(render_item),
        "process_revision_directives": directives_hook(process_revision_directives),
    }
