"""What `concertina db` tells people and programs."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from service.migrations.upgrade import head
from tests.service.cli.calls import Run


def test_programs_get_one_document(concertina: Run, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"), "-o", "json")
    assert json.loads(concertina("db", "upgrade", *home).stdout) == {"migration": head()}
    copy = str(tmp_path / "copy.db")
    told = json.loads(concertina("db", "backup", copy, *home).stdout)
    assert told == {"database": str(tmp_path / "home" / "concertina.db"), "backup": copy}


@pytest.mark.parametrize("command", [("backup", "copy.db"), ("migrate", "postgresql+asyncpg://u:secret@127.0.0.1/d")])
def test_a_home_without_a_database_is_told_with_the_remedy(
    concertina: Run, tmp_path: Path, command: tuple[str, str]
) -> None:
    done = concertina("db", *command, "--home", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no database at {tmp_path / 'concertina.db'}; start the service once" in done.stderr


def test_a_server_that_is_away_is_told_with_the_remedy(concertina: Run, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    concertina("db", "upgrade", *home)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"postgresql+asyncpg://u:secret@127.0.0.1:{nobody.getsockname()[1]}/d"
        done = concertina("db", "migrate", url, *home)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("error: the database does not answer: ")
    assert "see that it is there and can be reached" in done.stderr
    assert "secret" not in done.stderr
