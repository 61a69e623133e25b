"""Commands run in this process, and an API to run them against."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from service.cli.main import main
from tests.service.cli.calls import SPEC, Api, Done, Run, running_api


@pytest.fixture
def concertina(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, with no variables of the service but those given."""

    def run(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("CONCERTINA_")]:
                patch.delenv(name)
            for name, value in {"HOME": "/nonexistent", **variables}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["concertina", *arguments])
            capsys.readouterr()
            with pytest.raises(SystemExit) as caught:
                main()
        out, err = capsys.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return run


@pytest.fixture
def call(concertina: Run, api: Api) -> Run:
    """Runs a command against the API."""

    def run(*arguments: str, **variables: str) -> Done:
        return concertina(*arguments, CONCERTINA_URL=api.url, CONCERTINA_HOME=str(api.home), **variables)

    return run


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running_api(tmp_path_factory.mktemp("cli") / "home") as running:
        yield running


@pytest.fixture
def job(api: Api) -> dict[str, Any]:
    with api.client() as client:
        return client.submit(SPEC)
