"""Where a trial's job stands still for the verdict of its rung."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Jobs so far train to their ends."""
    op.add_column("jobs", sa.Column("until", sa.BigInteger(), nullable=True))
