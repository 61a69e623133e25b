"""How a database goes about the statements that some code sends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    return (_bad_on_postgres if conn.dialect.name == "postgresql" else _bad_on_sqlite)(conn, queries)


def _bad_on_sqlite(conn: Connection, queries: Sequence[Sent]) -> list[str]:
    plans = [conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all() for text, values in queries]
    whole = tuple(f"SCAN {name}" for name in metadata.tables)
    steps = [row.detail for plan in plans for row in plan]
    return [step for step in steps if "TEMP B-TREE" in step or (step.startswith(whole) and "COVERING" not in step)]


def _bad_on_postgres(conn: Connection, queries: Sequence[Sent]) -> list[str]:
    """Those for which there is no other way; of small tables the planner would read all in any case."""
    for way in ("seqscan", "sort", "bitmapscan", "hashagg"):
        conn.exec_driver_sql(f"SET LOCAL enable_{way} = off")
    plans = [conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {text}", values).scalar_one() for text, values in queries]
    found = [step for plan in plans for step in _steps_below(plan[0]["Plan"])]
    return [f"{step['Node Type']} {step.get('Relation Name', step.get('Sort Key'))}" for step in found if _is_bad(step)]


def repeated_steps(conn: Connection, sent: Sent) -> list[Mapping[str, Any]]:
    """All steps of PostgreSQL's plan for whatever values, which it keeps for a statement that is sent often."""
    text, values = sent
    conn.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
    conn.exec_driver_sql(f"PREPARE repeated AS {text}")
    whatever = ", ".join(["NULL"] * len(values))
    plan = conn.exec_driver_sql(f"EXPLAIN (FORMAT JSON) EXECUTE repeated ({whatever})").scalar_one()
    conn.exec_driver_sql("DEALLOCATE repeated")
    return list(_steps_below(plan[0]["Plan"]))


def _steps_below(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield step
    for part in step.get("Plans", ()):
        yield from _steps_below(part)


def _is_bad(step: Mapping[str, Any]) -> bool:
    return step["Node Type"] == "Sort" or (step["Node Type"] == "Seq Scan" and step["Relation Name"] in metadata.tables)


def num_rows(conn: Connection, statements: Sequence[Sent]) -> int:
    """How many rows their queries give; they are asked once more."""
    queries = [each for each in statements if each[0].startswith("SELECT")]
    return sum(len(conn.exec_driver_sql(text, values).all()) for text, values in queries)


def most_rows(conn: Connection, statements: Sequence[Sent]) -> int:
    """How many rows the largest answer has; they are asked once more."""
    return max(num_rows(conn, [sent]) for sent in statements)


def num_steps(conn: Connection, work: Callable[[], object]) -> int:
    """What SQLite's machine does for the work; each row that it looks at is a few steps."""
    driver = conn.connection.driver_connection
    assert driver is not None
    count = itertools.count()
    driver.set_progress_handler(lambda: next(count) and None, 10)
    work()
    driver.set_progress_handler(None, 0)
    return 10 * next(count)
