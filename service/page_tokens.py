"""Opaque page tokens: where the next page of a list begins, signed, and bound to the list's filter."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

from service.errors import BadRequestError
from service.records import ListPart

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 500
_MAC_BYTES = 16

T = TypeVar("T")


class PageTokens:
    """Makes and reads tokens with one installation's secret, which ``use`` hands over before the first call."""

    def __init__(self) -> None:
        self._secret = b""

    def use(self, secret: bytes) -> None:
        """Sign with this secret; the same for all processes of an installation."""
        self._secret = secret

    async def page(
        self,
        wanted: str,
        size: int,
        token: str | None,
        fetch: Callable[[int, str | None], Awaitable[list[T]]],
        place: Callable[[T], str],
    ) -> tuple[list[T], str | None]:
        """A page of the list that ``wanted`` describes, and the token of the next, None on the last.

        ``fetch`` gives at most so many, from behind a place on or from the beginning, and fewer only at the end.
        Raises as ``read``.
        """

        async def part(most: int, behind: str | None) -> ListPart[T]:
            found = await fetch(most + 1, behind)
            return ListPart(found[:most], has_more=len(found) > most)

        return await self.bounded_page(wanted, size, token, part, place)

    async def bounded_page(
        self,
        wanted: str,
        size: int,
        token: str | None,
        fetch: Callable[[int, str | None], Awaitable[ListPart[T]]],
        place: Callable[[T], str],
    ) -> tuple[list[T], str | None]:
        """As ``page``, where ``fetch`` has a bound of its own: the page may have fewer than ``size`` then."""
        behind = None if token is None else self.read(wanted, token)
        found = await fetch(max(1, min(size, MAX_PAGE_SIZE)), behind)
        return found.rows, self.make(wanted, place(found.rows[-1])) if found.has_more else None

    def make(self, wanted: str, last_id: str) -> str:
        """A token for the page after ``last_id`` of the list that ``wanted`` describes."""
        position = last_id.encode()
        return base64.urlsafe_b64encode(self._mac(wanted, position) + position).decode().rstrip("=")

    def read(self, wanted: str, token: str) -> str:
        """The id after which the page begins.

        Raises BadRequestError for a token that was not made here, or for a list with another filter.
        """
        try:
            raw = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error, ValueError):
            raw = b""
        mac, position = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not position or not hmac.compare_digest(mac, self._mac(wanted, position)):
            raise BadRequestError(
                f"page_token {token[:40]!r} does not belong to this list; take next_page_token from the answer "
                "before, with the same filters, or leave it out to begin anew"
            )
        return position.decode()

    def _mac(self, wanted: str, position: bytes) -> bytes:
        assert self._secret, "tokens need the installation's secret first"
        return hmac.new(self._secret, wanted.encode() + b"\0" + position, hashlib.sha256).digest()[:_MAC_BYTES]
