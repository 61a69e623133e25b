"""Where settings come from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.settings import (
    ClientSettings,
    Settings,
    SettingsError,
    load_client_settings,
    load_settings,
    secret_values,
)


def test_flags_win_over_variables_and_those_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('port = 1000\nhold_s = 5\ncurrency = "USD"\nallowed_hosts = ["a", "b"]\n')
    environ = {"CONCERTINA_HOME": str(tmp_path), "CONCERTINA_PORT": "2000", "CONCERTINA_HOLD_S": "6", "OTHER": "x"}
    settings = load_settings({"port": 3000, "hold_s": None}, environ)
    assert (settings.port, settings.hold_s, settings.currency) == (3000, 6.0, "USD")
    assert settings.allowed_hosts == ("a", "b")


def test_every_setting_has_a_text(tmp_path: Path) -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_settings_survive_the_way_to_a_child_process(tmp_path: Path) -> None:
    settings = load_settings(
        {
            "home": tmp_path,
            "allowed_hosts": ("a", "b"),
            "worker_env": ("A", "B"),
            "behind_proxy": True,
            "price_cpu_hour": 0.5,
        },
        {},
    )
    assert load_settings({}, settings.as_environment()) == settings


@pytest.mark.parametrize(
    ("flags", "environ", "file", "words"),
    [
        ({"prot": 1}, {}, "", "did you mean 'port'"),
        ({}, {"CONCERTINA_PROT": "1"}, "", "CONCERTINA_PROT; did you mean 'port'"),
        ({}, {}, "prot = 1", "did you mean 'port'"),
        ({}, {}, "port = ", "cannot be read"),
        ({}, {}, "port = 'x'", "port"),
        ({"host": "0.0.0.0"}, {}, "", "behind_proxy"),
        ({"host": "0.0.0.0"}, {}, "", "tls_certificate"),
        ({"tls_key": "k.pem"}, {}, "", "tls_key is given without tls_certificate"),
        ({"tls_certificate": "c.pem"}, {}, "", "tls_certificate is given without tls_key"),
        ({"host": "train.example"}, {}, "", "behind_proxy"),
        ({"storage": "memory://x"}, {}, "", "other processes would not see it"),
        ({"storage": "s4://bucket/x"}, {}, "", "fsspec knows no s4://"),
        ({"storage": "wandb://x"}, {}, "", "wandbfs"),
        ({"storage": "http://127.0.0.1:1/x"}, {}, "", "nothing can be written to http://; use a folder, s3://"),
        ({"storage": "zip://x"}, {}, "", "nothing can be written to zip://"),
        ({"storage": "file://elsewhere/x"}, {}, "", "names a machine; write file:///PATH"),
        (
            {"storage": "s3:/bucket/x"},
            {},
            "",
            "'s3:/bucket/x' is neither a URL nor plainly a folder; write s3://bucket/x",
        ),
        ({"storage": "gs:bucket"}, {}, "", "write gs://bucket, or ./gs:bucket"),
        ({"storage": "s3//bucket/x"}, {}, "", "write s3://bucket/x"),
        ({"storage": "file:/data"}, {}, "", "write file:///data"),
        ({"storage": "s3://"}, {}, "", "names no place; write s3://BUCKET/PATH"),
        ({"storage": ""}, {}, "", "'' names no folder"),
        ({"database": "sqlite:///"}, {}, "", "'sqlite:///' names no file"),
        ({"database": "sqlite:////tmp"}, {}, "", "is a folder; name a file in it: sqlite:////tmp/concertina.db"),
        ({"database": "mysql://x"}, {}, "", "'mysql' is no database"),
        ({"ray_address": "foo"}, {}, "", "ray_address: 'foo' is not HOST:PORT"),
        ({"ray_address": "foo:0"}, {}, "", "ray_address: 'foo:0' is not HOST:PORT"),
        ({}, {"CONCERTINA_PORT": "abc"}, "", "CONCERTINA_PORT='abc' cannot be used: Input should be a valid integer"),
        ({}, {"CONCERTINA_PORT": "abc"}, "", "TCP port to listen on; 0 takes a free one"),
        ({}, {}, "liveness_s = 0", "config.toml=0 cannot be used: Input should be greater than 0"),
        ({}, {"CONCERTINA_STORAGE": "gs:x"}, "", "CONCERTINA_STORAGE: 'gs:x' is neither"),
        ({}, {}, "database = ['secret@']", "database in "),
        ({}, {"CONCERTINA_STORAGE_OPTIONS": '["secret@"]'}, "", "CONCERTINA_STORAGE_OPTIONS cannot be used"),
        ({"database": "postgresql+asyncpg://u:secret@h"}, {}, "", "names no database"),
        ({"port": 70000}, {}, "", "port"),
        ({"liveness_s": float("inf")}, {}, "", "liveness_s"),
        ({"liveness_s": 0}, {}, "", "liveness_s"),
    ],
)
def test_what_is_unknown_or_unusable_is_refused_with_the_remedy(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str], file: str, words: str
) -> None:
    (tmp_path / "config.toml").write_text(file)
    with pytest.raises(SettingsError) as caught:
        load_settings({"home": tmp_path, **flags}, environ)
    assert words in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_another_host_is_allowed_behind_a_proxy_or_with_a_certificate(tmp_path: Path) -> None:
    assert load_settings({"home": tmp_path, "host": "0.0.0.0", "behind_proxy": True}, {}).host == "0.0.0.0"
    pair = {"tls_certificate": tmp_path / "c.pem", "tls_key": tmp_path / "k.pem"}
    assert load_settings({"home": tmp_path, "host": "0.0.0.0", **pair}, {}).tls_key == tmp_path / "k.pem"
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert load_settings({"home": tmp_path, "host": host}, {}).host == host


def test_storage_and_database_are_in_home_or_where_they_are_said_to_be(tmp_path: Path) -> None:
    settings = load_settings({"home": tmp_path}, {})
    assert settings.storage_folder == tmp_path / "storage"
    assert settings.database_file == tmp_path / "concertina.db"
    elsewhere = load_settings(
        {"home": tmp_path, "storage": "file:///data/my%20files", "database": "sqlite:////data/a.db"}, {}
    )
    assert elsewhere.storage_folder == Path("/data/my files")
    assert elsewhere.storage_url == "/data/my files"
    assert elsewhere.database_file == Path("/data/a.db")
    here = load_settings({"home": tmp_path, "storage": "./s3:x", "database": "sqlite:///a.db"}, {})
    assert (here.storage_folder, here.database_file) == (Path.cwd() / "s3:x", Path.cwd() / "a.db")
    shared = load_settings({"home": tmp_path, "database": "postgresql+asyncpg://u:secret@h/n"}, {})
    assert (shared.database_url, shared.database_file) == ("postgresql+asyncpg://u:secret@h/n", None)


def test_clients_have_settings_of_their_own() -> None:
    environ = {"CONCERTINA_URL": "http://a", "CONCERTINA_TOKEN": "t", "CONCERTINA_CA_FILE": "/etc/ca.pem"}
    expected = ClientSettings(url="http://a", token="t", ca_file=Path("/etc/ca.pem"))
    assert load_client_settings(None, environ) == expected
    assert load_settings({"home": Path("/nonexistent")}, environ).port == 8420
    assert load_client_settings("http://b", environ).url == "http://b"


def test_blanks_around_an_address_or_a_token_are_not_part_of_it() -> None:
    environ = {"CONCERTINA_URL": "http://a\r\n", "CONCERTINA_TOKEN": " t\r"}
    assert load_client_settings(None, environ) == ClientSettings(url="http://a", token="t")
    assert load_client_settings(" http://b", {"CONCERTINA_TOKEN": "\n"}) == ClientSettings(url="http://b")


def test_an_address_that_is_none_is_refused_by_where_it_was_given() -> None:
    with pytest.raises(SettingsError, match=r"--url='ftp://x' is no address"):
        load_client_settings("ftp://x", {})
    with pytest.raises(SettingsError, match=r"CONCERTINA_URL='http://a:b' is no address"):
        load_client_settings(None, {"CONCERTINA_URL": "http://a:b"})


def test_secrets_are_only_what_is_asked_for() -> None:
    assert secret_values({"A", "B"}, {"A": "1", "C": "3"}) == {"A": "1"}
    own = {"CONCERTINA_DATABASE": "postgresql+asyncpg://u:p@h/d", "RAY_AUTH_TOKEN": "t"}
    assert secret_values(own, own) == {}
