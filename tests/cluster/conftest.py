"""One running service for all tests that leave it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.serving import SECRET, SECRET_NAME, Serving, whole_service


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`serve` with a Ray of its own; what a test submits it must also end."""
    # On a busy machine the second worker may come long after the first, and tests count on both.
    home, variables = tmp_path_factory.mktemp("cluster") / "home", {SECRET_NAME: SECRET}
    with whole_service(home, settings={"gather_s": 60}, variables=variables) as started:
        yield started
