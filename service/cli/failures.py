"""Turns every known failure into words for a person and an exit code."""

from __future__ import annotations

import os
import sys

from rich.markup import escape

from service.cli.documents import DocumentError
from service.cli.output import complain
from service.client_errors import AddressError, AmbiguousError, ClientError, NotThereError, RefusedError
from service.packing import PackingError
from service.settings import SettingsError, TokenError
from service.store.port import DatabaseAwayError, StoreError
from service.supervise.home import HomeError
from service.supervise.lock import AlreadyServedError, DatabaseServedError
from service.supervise.ports import PortTakenError

FAILED, USAGE, NOT_AUTHORISED, NOT_FOUND, SERVER_ERROR, INTERRUPTED = 1, 2, 3, 4, 5, 130
_USAGE_ERRORS = (
    AddressError,
    AmbiguousError,
    DocumentError,
    PackingError,
    SettingsError,
    HomeError,
    AlreadyServedError,
    DatabaseServedError,
    PortTakenError,
)


class CommandError(Exception):
    """A command cannot go on; ``exit_code`` is the process's."""

    def __init__(self, message: str, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def describe(error: Exception) -> int | None:
    """Print what went wrong and give the exit code; None for a fault of our own, which shows its traceback."""
    code = exit_code(error)
    if isinstance(error, RefusedError):
        _tell_refusal(error)
    elif code is None and isinstance(error, OSError) and error.filename is None and _is_output_refused():
        complain(escape(f"standard output cannot be written: {error.strerror}; make room, or send it elsewhere"))
        return USAGE
    elif code is not None:
        is_away = isinstance(error, DatabaseAwayError)
        remedy = "; see that it is there and can be reached, then try again" if is_away else ""
        complain(escape(f"{error}{remedy}"))
    return code


def exit_code(error: Exception) -> int | None:
    """The exit code of a known failure; None for any other."""
    match error:
        case CommandError():
            return error.exit_code
        case RefusedError():
            return _code_of_status(error.status)
        case NotThereError():
            return NOT_FOUND
        case TokenError():
            return NOT_AUTHORISED
    if isinstance(error, _USAGE_ERRORS):
        return USAGE
    return SERVER_ERROR if isinstance(error, ClientError | StoreError) else None


def _code_of_status(status: int) -> int:
    if status in (401, 403):
        return NOT_AUTHORISED
    if status >= 500:
        return SERVER_ERROR
    return NOT_FOUND if status == 404 else USAGE


def _is_output_refused() -> bool:
    """Whether standard output refuses a line; then what is left for it is dropped, or the end would fail by it."""
    try:
        print(flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False


def _tell_refusal(error: RefusedError) -> None:
    code = f" ({error.code})" if error.code else ""
    complain(f"{escape(error.detail)}{code}")
    for problem in error.problems:
        complain(f"  [bold]{escape(problem.pointer or '/')}[/bold]: {escape(problem.detail)}", is_detail=True)
    if error.status in (401, 403):
        complain(
            "  set CONCERTINA_TOKEN to the service's token; its home directory holds it in `token`", is_detail=True
        )
    elif error.status >= 500:
        complain(f"  request {error.request_id}; the service's log tells more", is_detail=True)
