"""Finds the service that a command is for, and its token."""

from __future__ import annotations

from pathlib import Path

from service.cli.failures import NOT_AUTHORISED, CommandError
from service.client import Client
from service.folders import token_file
from service.settings import DEFAULT_HOME, is_loopback, load_client_settings, load_settings
from service.supervise.home import Home
from service.supervise.lock import current_holder
from service.supervise.serve import last_settings
from service.tls import authority_trust, own_trust

DEFAULT_URL = "http://127.0.0.1:8420"


def home_of(home: Path | None) -> Home:
    """The home directory that is meant: the flag, else the settings. Raises SettingsError."""
    return Home(load_settings({"home": home}).home)


def connect(url: str | None = None, home: Path | None = None) -> Client:
    """A client of the service meant: ``--url``, else the one that serves the home directory now.

    Raises CommandError without a token, SettingsError.
    """
    settings = load_client_settings(url)
    place = home_of(home)
    holder = current_holder(place.lock_file)
    served = holder.url if holder and holder.url.startswith("http") else None
    address = settings.url or served or DEFAULT_URL
    token = settings.token or _token_of(place, address)
    if settings.ca_file is not None:
        return Client(address, token, authority_trust(settings.ca_file))
    is_own = address == served and address.startswith("https")
    return Client(address, token, own_trust(last_settings(place)) if is_own else None)


def _token_of(place: Home, address: str) -> str:
    # The token of this machine's service must not be sent to another machine.
    if is_loopback(_host(address)):
        try:
            return token_file(place.path).read_text().strip()
        except OSError:
            pass
    raise CommandError(
        f"no token for {address}: start the service with `concertina serve` (it makes one in {DEFAULT_HOME}), "
        "or set CONCERTINA_TOKEN",
        NOT_AUTHORISED,
    )


def _host(address: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(address).hostname or ""
