"""Jobs that users have deleted are noted, so that what is half done is finished, and files of no others are removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "deletions",
        sa.Column("job_id", sa.String(length=32), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_deletions")),
    )
