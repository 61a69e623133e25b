"""The service's own log: one JSON object a line on standard error, without the values of variables."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO, cast

import structlog


class _Lossy:
    """Standard error as far as it can be written: on a full disk a line is lost, not the request it tells of."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


_ERRORS = cast(TextIO, _Lossy())


def configure_log() -> None:
    """Set up structlog for this process; each of the service's processes calls it first.

    Tracebacks are text without local variables, which hold tokens and secrets.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(_ERRORS),
        cache_logger_on_first_use=False,
    )
