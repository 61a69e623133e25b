"""Steps are counted on from the round before: nobody looks for skipped rounds any more."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Points stay as they are."""
    op.drop_index("ix_points_skipped", "points")
