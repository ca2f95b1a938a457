"""Lend two tables to pipelines: the columns of the lease, and for documents those of a schedule."""

from __future__ import annotations

from alembic import op
from rowlock.migrations import (
    add_lock_columns,
    add_schedule_columns,
    drop_lock_columns,
    drop_schedule_columns,
    set_fillfactor,
)

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    wait_for_locks_only_briefly()
    add_lock_columns(op, "volumes")
    set_fillfactor(op, "volumes")
    add_lock_columns(op, "documents")
    add_schedule_columns(op, "documents")
    set_fillfactor(op, "documents")


def downgrade() -> None:
    wait_for_locks_only_briefly()
    set_fillfactor(op, "documents", None)
    drop_schedule_columns(op, "documents")
    drop_lock_columns(op, "documents")
    set_fillfactor(op, "volumes", None)
    drop_lock_columns(op, "volumes")


def wait_for_locks_only_briefly() -> None:
    """Fail rather than let the whole service queue behind a migration that waits for one long
    transaction.
    """
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '3s'")
