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


@dataclass(frozen=True, slots=True)
class Kept:
    """The positions between which a job's log is still there."""

    begin: int
    end: int


def log_text(pieces: Sequence[LogPiece], offset: int, begin: int, *, has_names: bool) -> LogText:
    """The pieces from position ``offset`` on; with ``has_names`` each line begins with its rank.

    ``begin`` is where the job's log begins by now: what is missing before it is told.
    """
    parts = [piece.data[max(0, offset - piece.position) :] for piece in pieces]
    begin = min([begin, *(piece.position for piece in pieces)])
    end = max([begin, offset, *(piece.end for piece in pieces)])
    return LogText(_left_out(begin - offset) + _joined(pieces, parts, has_names=has_names), end)


def tail_text(pieces: Sequence[LogPiece], num_lines: int, kept: Kept, *, has_names: bool) -> LogText:
    """The last ``num_lines`` lines of the pieces; where these are all that is kept, with what is left out before."""
    lines = _joined(pieces, [piece.data for piece in pieces], has_names=has_names).splitlines(keepends=True)
    shown = lines[len(lines) - num_lines :] if num_lines < len(lines) else lines
    end = max([kept.end, *(piece.end for piece in pieces)])
    is_cut = len(shown) < len(lines) or bool(pieces and pieces[0].position > kept.begin)
    before = "" if is_cut or not pieces else _left_out(pieces[0].position)
    return LogText(before + "".join(shown), end, is_cut)


def _left_out(num_bytes: int) -> str:
    return f"[{num_bytes} bytes left out]\n" if num_bytes > 0 else ""


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
