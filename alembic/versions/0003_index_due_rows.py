"""One index for each claim, built while the service goes on; alone in its migration, because it
runs outside a transaction.
"""

from __future__ import annotations

from alembic import op
from rowlock.migrations import add_due_index, drop_due_index

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    add_due_index(op, "volumes", ready="status = 'submitted'", concurrently=True)
    add_due_index(op, "documents", ready="status = 'listed'", column="due_at", concurrently=True)


def downgrade() -> None:
    drop_due_index(op, "documents", column="due_at", concurrently=True)
    drop_due_index(op, "volumes", concurrently=True)
