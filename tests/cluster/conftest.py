"""One running service for all tests that leave it whole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.serving import Serving, end_everything, serving


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`serve` with a Ray of its own; what a test submits it must also end."""
    home = tmp_path_factory.mktemp("cluster") / "home"
    try:
        with serving(home) as started:
            yield started
            assert started.stop() == 0
    finally:
        end_everything(home)
