"""Asking the storage, which may be slow, full or away, on behalf of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import structlog

from service.errors import UnavailableError
from workers.storage import StorageAwayError

log = structlog.get_logger("concertina.storage")

P = ParamSpec("P")
T = TypeVar("T")


async def asked(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """The answer of a call that blocks. Raises UnavailableError where the storage fails."""
    try:
        return await asyncio.to_thread(call, *args, **named)
    except StorageAwayError as error:
        raise UnavailableError(str(error)) from error
    except OSError as error:
        log.error("the storage fails", why=str(error))
        raise UnavailableError("the storage does not do what it should now; the log tells more, try again") from error
