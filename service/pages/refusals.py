"""What a use case refuses, as a page tells it to a person."""

from __future__ import annotations

from service.errors import (
    BadRequestError,
    ConflictError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    ServiceError,
    TooLargeError,
    TooManyError,
)

_STATUS: tuple[tuple[type[ServiceError], int], ...] = (
    (BadRequestError, 400),
    (NotFoundError, 404),
    (ConflictError, 409),
    (PreconditionError, 412),
    (TooLargeError, 413),
    (InvalidError, 422),
    (TooManyError, 429),
)


def status_of(error: ServiceError) -> int:
    """The HTTP status that a page answers with."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 503)


def title_of(error: ServiceError) -> str:
    """The heading of the page."""
    return "Not found" if isinstance(error, NotFoundError) else "That did not work"


def told(error: ServiceError) -> str:
    """What was wrong, with every field that is at fault, as sentences that begin with a capital."""
    text = "; ".join(problem.detail for problem in error.problems) or error.detail
    return text[:1].upper() + text[1:]
