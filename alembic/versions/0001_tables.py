"""The tables as they were before any pipeline worked on them."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "volumes",
        sa.Column("id", sa.Uuid, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("size_gb", sa.Integer, nullable=False),
        sa.Column("disk_id", sa.String(100)),
        sa.Column("active_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_volumes"),
    )
    op.create_table(
        "documents",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("volume_id", sa.Uuid, nullable=False),
        sa.Column("path", sa.String(1000), nullable=False),
        sa.Column("status", sa.String(20), nullable=False, server_default="listed"),
        sa.Column("sha256", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_documents"),
        sa.ForeignKeyConstraint(
            ["volume_id"], ["volumes.id"], name="fk_documents_volume_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("path", name="uq_documents_path"),
    )
    op.create_index("ix_documents_volume_id", "documents", ["volume_id"])


def downgrade() -> None:
    op.drop_table("documents")
    op.drop_table("volumes")
