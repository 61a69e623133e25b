"""What `doctor` says of the machine, and of the database, the storage and the Ray that the settings name."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from service.cli.doctor import check_disk, check_home, check_port, check_shared_memory
from service.cli.doctor_reach import check_cluster, check_database, check_storage
from service.cli.findings import run_apart
from service.migrations.upgrade import head
from service.settings import Settings, load_settings
from service.store.schema import VERSION_TABLE
from service.supervise.home import Home
from service.supervise.supervisor import Mark
from tests.object_store import ObjectStore
from tests.service.cli.calls import Run
from tests.service.postgres import PostgresServer


def settings_of(home: Path, **flags: Any) -> Settings:
    return load_settings({"home": home, **flags}, {})


def test_a_database_that_does_not_answer_is_told_without_its_password(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"postgresql+asyncpg://anna:hunter%22two@127.0.0.1:{port}/training"
    found = check_database(settings_of(tmp_path, database=url))
    assert (found.mark, found.about) == (Mark.FAIL, "database")
    assert found.text.startswith(f"postgresql://127.0.0.1:{port}/training: the database does not answer")
    assert "user, password and name" in found.remedy
    assert "hunter" not in repr(found)


@pytest.mark.postgres
def test_a_postgresql_is_told_with_its_version_and_migration(tmp_path: Path, postgres: PostgresServer) -> None:
    served = check_database(settings_of(tmp_path, database=postgres.migrated()))
    assert served.mark is Mark.OK
    assert "PostgreSQL " in served.text
    assert served.text.endswith(f"at migration {head()}")
    empty = check_database(settings_of(tmp_path, database=postgres.empty("doctors")))
    assert (empty.mark, "without tables yet" in empty.text) == (Mark.OK, True)


def test_a_database_of_a_newer_version_is_refused_and_one_to_be_made_is_not_made(
    tmp_path: Path, migrated_file: Path
) -> None:
    file = tmp_path / "concertina.db"
    assert check_database(settings_of(tmp_path)).text == f"{file} will be made"
    assert not file.exists()
    shutil.copy(migrated_file, file)
    assert check_database(settings_of(tmp_path)).mark is Mark.OK
    with sqlite3.connect(file) as database:
        database.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    newer = check_database(settings_of(tmp_path))
    assert (newer.mark, "migration 9999, of a newer version" in newer.text) == (Mark.FAIL, True)


def test_storage_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "installation").write_text("inst_1\n")
    found = check_storage(settings_of(tmp_path / "home", storage=str(folder)))
    assert (found.mark, found.text) == (Mark.OK, f"{folder}: can be written and read; used by installation inst_1")
    assert [each.name for each in folder.iterdir()] == ["installation"]
    (tmp_path / "file").touch()
    wrong = check_storage(settings_of(tmp_path / "home", storage=str(tmp_path / "file")))
    assert (wrong.mark, "may be written" in wrong.remedy) == (Mark.FAIL, True)


def test_a_bucket_that_is_not_there_is_told_without_the_keys(tmp_path: Path) -> None:
    with ObjectStore() as store:
        options = {**store.options, "secret": "hunter22"}
        url = store.make_bucket()
        assert check_storage(settings_of(tmp_path, storage=url, storage_options=options)).mark is Mark.OK
        found = check_storage(settings_of(tmp_path, storage="s3://nowhere/at/all", storage_options=options))
    assert found.mark is Mark.FAIL
    assert found.text.startswith("s3://nowhere/at/all: ")
    assert "hunter22" not in repr(found)


def test_a_port_that_only_accepts_is_no_ray(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        found = check_cluster(settings_of(tmp_path, ray_address=address))
    assert (found.mark, found.text) == (Mark.FAIL, f"{address}: nothing answers at {address}")
    assert "version of Ray" in found.remedy


def test_each_check_of_a_machine_has_its_mark_and_a_failure_is_told_by_the_exit_code(
    concertina: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("thesis.tex").touch()
    nearly_full = shutil.disk_usage(tmp_path)._replace(free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: nearly_full)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = concertina("doctor", "--home", str(tmp_path), "-o", "json", CONCERTINA_PORT=str(port))
    findings = {finding["about"]: finding for finding in json.loads(done.stdout)["findings"]}
    right = dict.fromkeys(("Python", "Ray", "torch", "database", "storage"), "ok")
    wrong = {"home": "fail", "port": "warn", "disk": "warn", "memory": "warn"}
    assert {about: finding["mark"] for about, finding in findings.items()} == right | wrong
    assert (findings["port"]["text"], "--port" in findings["port"]["remedy"]) == (f"{port} is taken", True)
    assert all(findings[about]["remedy"] for about in wrong)
    assert not any(findings[about]["remedy"] for about in right)
    assert done.returncode == 5


def test_a_machine_with_room_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = shutil.disk_usage(tmp_path)._replace(free=10**11)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: roomy)
    place, settings = Home(tmp_path / "home"), settings_of(tmp_path / "home", port=0)
    found = [check_home(place), check_port(settings, place), check_disk(place.path), check_shared_memory()]
    assert [(each.about, each.mark, each.remedy) for each in found] == [
        (about, Mark.OK, "") for about in ("home", "port", "disk", "memory")
    ]


def test_a_check_that_hangs_is_ended() -> None:
    assert run_apart(["-c", "import threading; threading.Event().wait()"], 0.5) == ("", "no answer within 0.5 s")
