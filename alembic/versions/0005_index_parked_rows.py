"""Parked rows are counted and listed by an index of their own, built while the service goes on."""

from __future__ import annotations

from alembic import op
from rowlock.migrations import add_parked_index, drop_parked_index

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    add_parked_index(op, "documents", concurrently=True)
    add_parked_index(op, "jobs", concurrently=True)


def downgrade() -> None:
    drop_parked_index(op, "jobs", concurrently=True)
    drop_parked_index(op, "documents", concurrently=True)
