"""What statements are put together from: names of values for those that are built once, and numbers of any size.

To put one together takes longer than to look it up and let SQLite run it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, reduce
from operator import add

from sqlalchemy import BigInteger, Column, ColumnElement, LargeBinary, Table, Text, bindparam, cast, func, literal


def having(table: Table, *names: str) -> Iterator[ColumnElement[bool]]:
    """That a row of ``table`` has the values given for these columns, each by its name with ``of_`` before it.

    A column's bare name is what an update sets it to.
    """
    return (table.c[name] == bindparam(f"of_{name}") for name in names)


def any_number(value: int) -> ColumnElement[int]:
    """A number that a caller gives, as PostgreSQL's driver takes it beyond the kind of the column, too."""
    return literal(value, BigInteger)


@cache
def text_bytes(table: Table, dialect: str) -> ColumnElement[int]:
    """What a row's texts (the columns without a greatest length) have in all, in bytes."""
    sizes = (_size(column, dialect) for column in table.c if isinstance(column.type, Text))
    return reduce(add, (func.coalesce(size, 0) for size in sizes))


def _size(column: Column[str], dialect: str) -> ColumnElement[int]:
    # PostgreSQL finds it beside the row, without the text. SQLite has no octet_length before 3.43.
    return func.octet_length(column) if dialect == "postgresql" else func.length(cast(column, LargeBinary))
