"""Log pieces as the text that a person reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.records import LogPiece


@dataclass(frozen=True, slots=True)
class LogText:
    """``next_offset`` is where to go on; it counts the stored bytes of all ranks, so it is only good for that.

    ``is_cut``: there are lines before these (of a tail).
    """

    text: str
    next_offset: int
    is_cut: bool = False


def log_text(pieces: Sequence[LogPiece], offset: int, *, has_names: bool) -> LogText:
    """The pieces from position ``offset`` on; with ``has_names`` each line begins with its rank."""
    parts = [piece.data[max(0, offset - piece.position) :] for piece in pieces]
    end = max((piece.end for piece in pieces), default=offset)
    return LogText(_joined(pieces, parts, has_names=has_names), max(end, offset))


def tail_text(pieces: Sequence[LogPiece], num_lines: int, end: int, *, has_names: bool) -> LogText:
    """The last ``num_lines`` lines of the pieces; ``end`` is the position to go on from."""
    lines = _joined(pieces, [piece.data for piece in pieces], has_names=has_names).splitlines(keepends=True)
    kept = lines[len(lines) - num_lines :] if num_lines < len(lines) else lines
    is_cut = num_lines < len(lines) or bool(pieces and pieces[0].position > 0)
    return LogText("".join(kept), max(end, max((piece.end for piece in pieces), default=0)), is_cut)


def _joined(pieces: Sequence[LogPiece], parts: Sequence[bytes], *, has_names: bool) -> str:
    texts: list[str] = []
    writer: tuple[int, str] | None = None
    is_line_open = False
    for piece, part in zip(pieces, parts, strict=True):
        if not part:
            continue
        same = writer == (piece.attempt, piece.worker_id)
        if is_line_open and not same:
            texts.append("\n")
        text = part.decode("utf-8", errors="replace")
        texts.append(_named(text, piece, goes_on=is_line_open and same) if has_names else text)
        writer = (piece.attempt, piece.worker_id)
        is_line_open = not text.endswith("\n")
    return "".join(texts)


def _named(text: str, piece: LogPiece, *, goes_on: bool) -> str:
    name = f"[rank {piece.rank}] " if piece.rank is not None else f"[worker {piece.worker_id}] "
    lines = text.split("\n")
    last = len(lines) - 1
    return "\n".join(
        line if (n == 0 and goes_on) or (n == last and not line) else name + line for n, line in enumerate(lines)
    )
