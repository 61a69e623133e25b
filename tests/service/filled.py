"""Rows for every table of a database, whatever migration it is at: read from it what there is, and fill it."""

from __future__ import annotations

from typing import Any, TypeAlias

from sqlalchemy import Column, Connection, MetaData, Table, func, insert, select

NUM_ROWS = 3
Content: TypeAlias = dict[str, list[dict[str, Any]]]
"""The rows of each table."""


def tables_of(conn: Connection) -> MetaData:
    """The tables that there are now."""
    found = MetaData()
    found.reflect(conn)
    return found


def fill(conn: Connection) -> None:
    """Give every table that is empty its rows; each refers to those of the same number in other tables."""
    made: Content = {}
    for table in tables_of(conn).sorted_tables:
        if not conn.execute(select(func.count()).select_from(table)).scalar_one():
            conn.execute(insert(table), [_row(table, number, made) for number in range(NUM_ROWS)])
        made[table.name] = _rows(conn, table)


def content(conn: Connection) -> Content:
    """Every row of every table, in an order of its own."""
    return {table.name: _rows(conn, table) for table in tables_of(conn).sorted_tables}


def _rows(conn: Connection, table: Table) -> list[dict[str, Any]]:
    order = list(table.primary_key.columns)
    return [dict(row) for row in conn.execute(select(table).order_by(*order)).mappings()]


def _row(table: Table, number: int, made: Content) -> dict[str, Any]:
    """The last row has nothing where nothing is allowed."""
    row = {column.name: _value(column, number) for column in table.columns}
    is_bare = number == NUM_ROWS - 1
    row |= {column.name: None for column in table.columns if is_bare and column.nullable}
    for constraint in table.foreign_key_constraints:
        parent = made[constraint.referred_table.name][number]
        for element in constraint.elements:
            if row[element.parent.name] is not None:
                row[element.parent.name] = parent[element.column.name]
    return row


def _value(column: Column[Any], number: int) -> Any:
    kind = column.type.python_type
    values = {bool: bool(number % 2), int: number + 1, float: number + 0.5, bytes: bytes([0, 255, number])}
    if kind is str:
        # Texts without a bound on their length hold JSON, some of which migrations read.
        return f"{number}" if getattr(column.type, "length", None) else f'{{"loss":{number}.5}}'
    return values[kind]
