"""What use cases refuse with: errors that a caller can act on. REST gives each its status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from workers.errors import FieldProblem


class ServiceError(Exception):
    """Root; ``code`` is stable, ``detail`` says what is wrong, the value seen and what to do."""

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, detail: str, problems: Sequence[FieldProblem] = (), code: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = tuple(problems)
        self.code_seen = code or self.code


class BadRequestError(ServiceError):
    """The request cannot be understood."""

    code = "BAD_REQUEST"


class NotAuthorisedError(ServiceError):
    """No valid token came with the request."""

    code = "NOT_AUTHORISED"


class ForbiddenError(ServiceError):
    """The request comes from where it must not come from."""

    code = "FORBIDDEN"


class NotFoundError(ServiceError):
    """There is no such thing."""

    code = "NOT_FOUND"


class ConflictError(ServiceError):
    """It makes no sense in the state that the thing is in."""

    code = "CONFLICT"


class PreconditionError(ServiceError):
    """``If-Match`` names another version."""

    code = "PRECONDITION_FAILED"


class TooLargeError(ServiceError):
    """The body exceeds its limit."""

    code = "TOO_LARGE"


class InvalidError(ServiceError):
    """The document is understood and refused; ``problems`` names every faulty field."""

    code = "INVALID"


class TooManyError(ServiceError):
    """A bound on things at the same time is reached; try again later."""

    code = "TOO_MANY"


class UnavailableError(ServiceError):
    """Something that is needed does not answer now; try again later."""

    code = "UNAVAILABLE"
