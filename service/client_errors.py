"""What can become of a call to the service, in words for the person who made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ClientError(Exception):
    """A call to the service did not succeed; the message is for the person who made it."""


class UnreachableError(ClientError):
    """Nobody answered at the address, or the answer broke off."""

    def __init__(self, url: str, why: str) -> None:
        remedy = "start the service with `concertina serve`, or name another with --url"
        if "CERTIFICATE_VERIFY_FAILED" in why:
            remedy = (
                "set CONCERTINA_CA_FILE to a PEM file of the authority that made its certificate, "
                "and call it by a name that is in the certificate"
            )
        elif url.startswith("http://") and "disconnected" in why:
            remedy = "if it has a certificate, write https:// instead of http://; else see its log"
        super().__init__(f"no answer from {url} ({why}); {remedy}")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a request: a JSON Pointer into it and what is wrong there."""

    pointer: str
    detail: str


class RefusedError(ClientError):
    """The service answered with a problem document (RFC 9457)."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(document.get("code") or "")
        self.request_id = str(document.get("request_id") or "")
        self.problems = tuple(
            Problem(str(e.get("pointer", "")), str(e.get("detail", ""))) for e in document.get("errors") or ()
        )
        title = str(document.get("title") or f"status {status}")
        self.detail = str(document.get("detail") or title)
        super().__init__(self.detail)


class AddressError(ClientError):
    """What was given as the service's address cannot be called at all."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{url[:200]!r} cannot be called ({why}); give an address such as http://127.0.0.1:8420")


class StrangerError(ClientError):
    """Something answered that is not Concertina's API."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"{url} answers, but is not Concertina, or not of this version: {why}; give the service's address as --url"
        )


class MovedError(ClientError):
    """The API is at another address, to which no token is sent unasked."""

    def __init__(self, url: str, target: str) -> None:
        super().__init__(f"{url} is not where the service answers: it redirects to {target}; give that as --url")


class NotThereError(ClientError):
    """Nothing is meant by what was given."""


class AmbiguousError(ClientError):
    """More than one thing is meant by what was given."""
