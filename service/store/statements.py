"""What statements are put together from: names of values for those that are built once, and numbers of any size.

To put one together takes longer than to look it up and let SQLite run it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import BigInteger, ColumnElement, Table, bindparam, literal


def having(table: Table, *names: str) -> Iterator[ColumnElement[bool]]:
    """That a row of ``table`` has the values given for these columns, each by its name with ``of_`` before it.

    A column's bare name is what an update sets it to.
    """
    return (table.c[name] == bindparam(f"of_{name}") for name in names)


def any_number(value: int) -> ColumnElement[int]:
    """A number that a caller gives, as PostgreSQL's driver takes it beyond the kind of the column, too."""
    return literal(value, BigInteger)
