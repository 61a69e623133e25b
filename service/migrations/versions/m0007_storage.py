"""Each upload has a key of its own in storage, noted before it is written; which storage bears the mark."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Uploads so far lie under keys made of their digests."""
    op.create_table(
        "uploads",
        sa.Column("key", sa.String(length=128), nullable=False),
        sa.Column("begun_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_uploads")),
    )
    op.add_column("installation", sa.Column("storage", sa.Text(), nullable=True))
    # SQLite adds no column without a default to a table that has rows; nobody relies on this one.
    op.add_column("bundles", sa.Column("key", sa.String(length=128), nullable=False, server_default=""))
    op.execute("UPDATE bundles SET key = 'bundles/' || sha256 || '.zip'")
