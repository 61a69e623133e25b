"""How SQLite goes about the statements that some code sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from sqlalchemy import Connection, Engine, event

from service.store.schema import metadata

Sent: TypeAlias = tuple[str, Any]
"""A statement's text and its values."""


@contextmanager
def noted_statements(engine: Engine) -> Iterator[list[Sent]]:
    """What is sent over the engine's connections meanwhile, in order."""
    found: list[Sent] = []

    def note(_conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        found.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def bad_steps(conn: Connection, statements: Sequence[Sent]) -> list[str]:
    """Steps of their plans that read a whole table, or sort: such grow with what is stored."""
    queries = [each for each in statements if each[0].startswith(("SELECT", "UPDATE", "DELETE"))]
    plans = [conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all() for text, values in queries]
    whole = tuple(f"SCAN {name}" for name in metadata.tables)
    steps = [row.detail for plan in plans for row in plan]
    return [step for step in steps if "TEMP B-TREE" in step or (step.startswith(whole) and "COVERING" not in step)]


def num_rows(conn: Connection, statements: Sequence[Sent]) -> int:
    """How many rows their queries give; they are asked once more."""
    queries = [each for each in statements if each[0].startswith("SELECT")]
    return sum(len(conn.exec_driver_sql(text, values).all()) for text, values in queries)
