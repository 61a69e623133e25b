"""Which database a crash point is tried on: that of the whole run, and for the ones that matter most PostgreSQL too."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

OF_THE_RUN = None
"""The one that ``--faults-on`` names."""


def each_method(methods: Iterable[str], *also_on_postgres: str) -> pytest.MarkDecorator:
    """Run a test with each ``method`` on the database of the run, and with some of them on PostgreSQL as well."""
    known = list(methods)
    assert set(also_on_postgres) <= set(known)
    params = [pytest.param(method, OF_THE_RUN, id=method) for method in known]
    for method in also_on_postgres:
        params.append(pytest.param(method, "postgres", id=f"{method}-postgres", marks=pytest.mark.postgres))
    return pytest.mark.parametrize(("method", "database"), params)
