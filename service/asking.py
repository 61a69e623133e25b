"""Asking the storage, which may be slow, full or away, on behalf of a request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import structlog

from service.errors import UnavailableError
from service.patience import answered
from workers.storage import StorageAwayError

log = structlog.get_logger("concertina.storage")

P = ParamSpec("P")
T = TypeVar("T")


async def asked(call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """The answer of a call that blocks. Raises UnavailableError where the storage fails, or gives no answer."""
    return await asked_within(None, call, *args, **named)


async def asked_within(bound_s: float | None, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """As ``asked``, for a call that may take another time than most."""
    try:
        return await answered(partial(call, *args, **named), bound_s)
    except StorageAwayError as error:
        raise UnavailableError(str(error)) from error
    except OSError as error:
        log.error("the storage fails", why=str(error))
        raise UnavailableError("the storage does not do what it should now; the log tells more, try again") from error
