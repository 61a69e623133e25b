"""``If-Match``: whether the caller has seen what is about to be changed."""

from __future__ import annotations

from service.errors import PreconditionError


def check_match(etag: str, if_match: str | None) -> None:
    """Compare with the version of a thing's state and intent, the part of its tag before the point.

    Raises PreconditionError.
    """
    if if_match is None or if_match.strip() == "*":
        return
    known = etag.strip('"').partition(".")[0]
    given = {tag.strip().removeprefix("W/").strip('"').partition(".")[0] for tag in if_match.split(",")}
    if known not in given:
        raise PreconditionError(f"If-Match {if_match[:80]} is not its version {etag}; read it again")
