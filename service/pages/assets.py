"""Scripts, styles and pictures of the pages, and how long browsers may keep them."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parents[1] / "static"
_FOR_EVER = "public, max-age=31536000, immutable"


@cache
def static(path: str) -> str:
    """The address of a file; it changes with the file's content, so that browsers may keep it for ever."""
    digest = hashlib.sha256((FOLDER / path).read_bytes()).hexdigest()
    return f"/static/{path}?v={digest[:12]}"


class Assets(StaticFiles):
    """The files under ``/static``; those asked for without a version (imports of modules) are asked about each time."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """As in Starlette, with ``Cache-Control``."""
        answer = super().file_response(full_path, stat_result, scope, status_code)
        answer.headers["Cache-Control"] = _FOR_EVER if scope["query_string"].startswith(b"v=") else "no-cache"
        return answer
