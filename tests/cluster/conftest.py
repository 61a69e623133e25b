"""One running service for all tests that leave it whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gated import Gated, Submit
from tests.cluster.serving import SECRET, SECRET_NAME, Serving, whole_service


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`serve` with a Ray of its own; what a test submits it must also end."""
    # On a busy machine the second worker may come long after the first, and tests count on both. Which spare is taken
    # tests tell by there being one.
    home, variables = tmp_path_factory.mktemp("cluster") / "home", {SECRET_NAME: SECRET}
    with whole_service(home, settings={"gather_s": 60, "spares_per_node": 1}, variables=variables) as started:
        yield started


@pytest.fixture
def submit(served: Serving, tmp_path: Path) -> Iterator[Submit]:
    """Makes jobs of the gated task there, which end with the test."""
    made: list[Gated] = []

    def make(**changes: Any) -> Gated:
        made.append(Gated(served, tmp_path, **changes))
        return made[-1]

    yield make
    for job in made:
        job.end()
