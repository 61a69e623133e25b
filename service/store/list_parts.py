"""Parts of lists that are bounded in bytes: what the texts of rows weigh is measured before they are read."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select

from service.records import ListPart

MAX_PAGE_BYTES = 8 * 2**20
"""Of the texts of a page's rows, but for the last one: a spec may be as large as the body of a request."""


def part_of(conn: Connection, chosen: Select[Any], size_bytes: ColumnElement[int], limit: int) -> ListPart[Row[Any]]:
    """At most ``limit`` rows of ``chosen``, which gives them in the list's order; fewer by MAX_PAGE_BYTES.

    ``size_bytes`` is what the texts of a row weigh; those of rows beyond the bound are not read.
    """
    sizes = iter(conn.execute(chosen.with_only_columns(size_bytes).limit(limit + 1)).scalars())
    number = num_within_bound(islice(sizes, limit))
    has_more = next(sizes, None) is not None
    return ListPart(list(conn.execute(chosen.limit(number))), has_more)


def num_within_bound(sizes: Iterable[int]) -> int:
    """How many rows make a page, of those with these bytes: it ends with the one that reaches MAX_PAGE_BYTES."""
    number = num_bytes = 0
    for size_bytes in sizes:
        number += 1
        num_bytes += size_bytes
        if num_bytes >= MAX_PAGE_BYTES:
            break
    return number
