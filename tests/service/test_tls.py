"""A service with a certificate of its own: who believes it, what it shows, what is refused."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from service.cli.connection import connect
from service.client import Client, UnreachableError
from service.folders import token_file
from service.settings import Settings, SettingsError, load_settings
from service.supervise.home import Home, write_private
from service.supervise.lock import ServeLock
from service.supervise.supervisor import Address
from service.tls import authority_trust, check_certificate, own_trust
from tests.waiting import LIMIT_S, wait_for

NAME = "train.example"


@dataclass(frozen=True)
class Files:
    """A certificate for ``NAME``, its key, and the authority that made it."""

    certificate: Path
    key: Path
    authority: Path

    def flags(self, home: Path) -> dict[str, object]:
        return {"home": home, "tls_certificate": self.certificate, "tls_key": self.key}


def made(folder: Path, name: str = NAME) -> Files:
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    server = authority.issue_cert(name)
    files = Files(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
    files.certificate.write_bytes(b"".join(pem.bytes() for pem in server.cert_chain_pems))
    files.key.write_bytes(server.private_key_pem.bytes())
    authority.cert_pem.write_to_path(str(files.authority))
    return files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return made(tmp_path_factory.mktemp("tls"))


@dataclass(frozen=True)
class Served:
    """An API process that does TLS."""

    settings: Settings
    address: Address
    token: str


@pytest.fixture(scope="module")
def served(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("served") / "home"
    Home(home).prepare()
    settings = load_settings({**files.flags(home), "allowed_hosts": (NAME,)}, {})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.supervise.api_process", str(listener.fileno())],
            env={"PATH": os.environ["PATH"], **settings.as_environment()},
            pass_fds=(listener.fileno(),),
        )
        address = Address("127.0.0.1", listener.getsockname()[1], own_trust(settings))
        try:
            wait_for("the API", lambda: address.status("/livez") == 200)
            yield Served(settings, address, token_file(home).read_text().strip())
        finally:
            process.terminate()
            process.wait(timeout=LIMIT_S)


def test_the_supervisor_sees_it_by_its_certificate_and_by_no_other(served: Served, tmp_path: Path) -> None:
    assert served.address.url.startswith("https://127.0.0.1:")
    stranger = load_settings(made(tmp_path).flags(tmp_path), {})
    assert Address("127.0.0.1", served.address.port, own_trust(stranger)).status("/livez") is None
    assert Address("127.0.0.1", served.address.port).status("/livez") is None


def test_a_browsers_session_is_secure(served: Served) -> None:
    context = own_trust(served.settings)
    assert context is not None
    with httpx2.Client(base_url=served.address.url, verify=context, trust_env=False) as browser:
        answer = browser.post("/login", data={"token": served.token}, headers={"Origin": served.address.url})
    assert answer.status_code == 303
    assert {"Secure", "HttpOnly"} <= {part.strip() for part in answer.headers["set-cookie"].split(";")}


def at_once(pause_s: float) -> None:
    """No pause before a call is tried again: none of these will do better."""


def test_a_caller_believes_the_authority_that_it_was_given_and_nobody_else(served: Served, files: Files) -> None:
    with (
        Client(served.address.url, served.token, sleep=at_once) as stranger,
        pytest.raises(UnreachableError, match="CONCERTINA_CA_FILE"),
    ):
        stranger.get("/version")
    with (
        Client(served.address.url, served.token, authority_trust(files.authority), sleep=at_once) as caller,
        pytest.raises(UnreachableError, match="by a name that is in the certificate"),
    ):
        caller.get("/version")
    with (
        Client(f"http://127.0.0.1:{served.address.port}", served.token, sleep=at_once) as plain_caller,
        pytest.raises(UnreachableError, match="write https:// instead"),
    ):
        plain_caller.get("/version")
    with (
        socket.create_connection(("127.0.0.1", served.address.port)) as plain,
        authority_trust(files.authority).wrap_socket(plain, server_hostname=NAME) as connection,
    ):
        assert connection.version() is not None


def test_commands_on_the_same_machine_need_nothing_besides(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CONCERTINA_")]:
        monkeypatch.delenv(name)
    place = Home(served.settings.home)
    write_private(place.settings_file, json.dumps(served.settings.as_environment()))
    with ServeLock(place.lock_file) as lock:
        lock.announce(served.address.url)
        with connect(home=place.path) as client:
            assert client.get("/version")["version"]


def test_links_name_the_service_as_its_certificate_does(files: Files, tmp_path: Path) -> None:
    named = load_settings({**files.flags(tmp_path), "allowed_hosts": (NAME,), "port": 443}, {})
    assert named.public_url == f"https://{NAME}:443"
    assert load_settings({"home": tmp_path, "allowed_hosts": (NAME,)}, {}).public_url is None


def test_files_that_cannot_be_used_are_named_before_anything_starts(files: Files, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    key = load_pem_private_key(files.key.read_bytes(), None)
    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    locked.write_bytes(key.private_bytes(*form))
    cases = {
        (tmp_path / "gone.pem", files.key): "tls_certificate=.*gone.pem cannot be read",
        (files.certificate, tmp_path): "tls_key=.* cannot be read",
        (files.certificate, made(tmp_path / "other").key): "cannot be used together",
        (files.certificate, locked): "without a password",
        (files.key, files.key): "cannot be used together",
    }
    for (certificate, key_file), words in cases.items():
        settings = load_settings({"home": tmp_path, "tls_certificate": certificate, "tls_key": key_file}, {})
        with pytest.raises(SettingsError, match=words):
            check_certificate(settings)
    check_certificate(load_settings(files.flags(tmp_path), {}))
    with pytest.raises(SettingsError, match="CONCERTINA_CA_FILE"):
        authority_trust(files.key)
