"""Turns every known failure into words for a person and an exit code."""

from __future__ import annotations

from rich.markup import escape

from service.cli.documents import DocumentError
from service.cli.output import complain
from service.client import AmbiguousError, NotThereError, RefusedError, UnreachableError
from service.packing import PackingError
from service.settings import SettingsError
from service.store.port import DatabaseAwayError, StoreError
from service.supervise.home import HomeError
from service.supervise.lock import AlreadyServedError, DatabaseServedError
from service.supervise.ports import PortTakenError

FAILED, USAGE, NOT_AUTHORISED, NOT_FOUND, SERVER_ERROR, INTERRUPTED = 1, 2, 3, 4, 5, 130
_USAGE_ERRORS = (
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
    if isinstance(error, RefusedError):
        return _refused(error)
    code = _exit_code(error)
    if code is not None:
        is_away = isinstance(error, DatabaseAwayError)
        remedy = "; see that it is there and can be reached, then try again" if is_away else ""
        complain(escape(f"{error}{remedy}"))
    return code


def _exit_code(error: Exception) -> int | None:
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, NotThereError):
        return NOT_FOUND
    if isinstance(error, UnreachableError | StoreError):
        return SERVER_ERROR
    return USAGE if isinstance(error, _USAGE_ERRORS) else None


def _refused(error: RefusedError) -> int:
    code = f" ({error.code})" if error.code else ""
    complain(f"{escape(error.detail)}{code}")
    for problem in error.problems:
        complain(f"  [bold]{escape(problem.pointer or '/')}[/bold]: {escape(problem.detail)}", is_detail=True)
    if error.status in (401, 403):
        complain(
            "  set CONCERTINA_TOKEN to the service's token; its home directory holds it in `token`", is_detail=True
        )
        return NOT_AUTHORISED
    if error.status >= 500:
        complain(f"  request {error.request_id}; the service's log tells more", is_detail=True)
        return SERVER_ERROR
    return NOT_FOUND if error.status == 404 else USAGE
