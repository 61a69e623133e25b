"""Secrets do not leave a worker: not in text, not in log bytes, not split over two pieces of a log."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from workers.errors import Failure, Reason
from workers.secrets import Secrets, secrets_of
from workers.spec import parse_job_spec
from workers.training.logs import LogReader

SECRET = "hunter2-hunter2"


def test_only_secret_variables_count_and_the_longest_goes_first() -> None:
    spec = parse_job_spec(
        {
            "name": "s",
            "entrypoint": "workers.recipes.digits:build",
            "steps": 1,
            "env": {"PLAIN": "visible", "KEY": {"secret": "A"}, "LONGER": {"secret": "B"}, "TINY": {"secret": "C"}},
        }
    )
    env = {"PLAIN": "visible", "KEY": "abcd", "LONGER": "abcdef", "TINY": "x"}
    assert secrets_of(spec, env) == Secrets(("abcdef", "abcd"))


def test_a_failure_is_told_without_values() -> None:
    failure = Failure(reason=Reason.USER_ERROR, type="E", message=f"bad {SECRET}", traceback=f"at {SECRET}!")
    told = Secrets((SECRET,)).failure(failure)
    assert told is not None
    assert (told.message, told.traceback) == ("bad ***", "at ***!")


@given(st.lists(st.sampled_from([SECRET[:n] for n in range(len(SECRET) + 1)] + ["x", "\n"]), max_size=12))
def test_a_log_written_in_pieces_never_shows_a_value_and_keeps_its_offsets(pieces: list[str]) -> None:
    whole, shown = "", b""
    secrets = Secrets((SECRET,))
    for piece in [*pieces, "\n"]:
        whole += piece
        data = whole.encode()[len(shown) :]
        shown += secrets.piece(data)
    assert SECRET.encode() not in shown
    assert len(shown) == len(whole.encode())


def test_the_log_reader_holds_back_a_value_that_is_half_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reader = LogReader(log, Secrets((SECRET,)))
    log.write_text(f"key {SECRET[:7]}")
    (first,) = reader.chunks(0, None, "1.1", 1000)
    assert first.data == b"key "
    log.write_text(f"key {SECRET} done\n")
    (second,) = reader.chunks(len(first.data), None, "1.1", 1000)
    assert second.data == b"*" * len(SECRET) + b" done\n"
