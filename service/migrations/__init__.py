"""Alembic migrations of the database, run at the start of the service."""
