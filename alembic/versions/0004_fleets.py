"""Fleets, instances and jobs. A new table has the columns of the lease from its first day, and
an empty one is indexed at once.
"""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op
from rowlock.migrations import add_due_index, lock_columns, schedule_columns, set_fillfactor

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "fleets",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("status", sa.String(20), nullable=False, server_default="scattered"),
        *lock_columns(),
        sa.PrimaryKeyConstraint("id", name="pk_fleets"),
        sa.UniqueConstraint("name", name="uq_fleets_name"),
    )
    op.create_table(
        "instances",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("fleet_id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("status", sa.String(20), nullable=False, server_default="up"),
        sa.Column("cpus", sa.Integer, nullable=False),
        sa.Column("cpus_used", sa.Integer, nullable=False, server_default="0"),
        sa.Column("probes", sa.Integer, nullable=False, server_default="0"),
        *lock_columns(),
        sa.PrimaryKeyConstraint("id", name="pk_instances"),
        sa.ForeignKeyConstraint(
            ["fleet_id"], ["fleets.id"], name="fk_instances_fleet_id", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("instance_id", sa.Integer),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("status", sa.String(20), nullable=False, server_default="submitted"),
        sa.Column("cpus", sa.Integer, nullable=False, server_default="1"),
        sa.Column("to_be_stopped", sa.Boolean, nullable=False, server_default=sa.false()),
        *lock_columns(),
        *schedule_columns(),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("name", name="uq_jobs_name"),
        sa.ForeignKeyConstraint(
            ["instance_id"], ["instances.id"], name="fk_jobs_instance_id", ondelete="SET NULL"
        ),
    )
    op.create_index("ix_instances_fleet_id", "instances", ["fleet_id"])
    op.create_index("ix_jobs_instance_id", "jobs", ["instance_id"])
    add_due_index(op, "fleets", ready="status = 'scattered'")
    add_due_index(op, "instances", ready="status = 'up'")
    add_due_index(op, "jobs", ready="status IN ('submitted', 'running')", column="due_at")
    for table_name in ("fleets", "instances", "jobs"):
        set_fillfactor(op, table_name)


def downgrade() -> None:
    op.drop_table("jobs")
    op.drop_table("instances")
    op.drop_table("fleets")
