"""The service's own log: one JSON object a line on standard error, without the values of variables."""

from __future__ import annotations

import sys

import structlog


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
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
