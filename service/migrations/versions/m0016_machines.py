"""Words on nodes know the node's name: a machine that comes back has another id."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column; of words that were said before it no name is known."""
    op.add_column("node_marks", sa.Column("name", sa.String(length=255), nullable=False, server_default=""))
