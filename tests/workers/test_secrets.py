"""Secrets do not leave a worker: not in text, not in log bytes, not split over two pieces, quoted or cut."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.assignment import JobKey, Storage
from workers.control.launch import Launch
from workers.errors import MAX_MESSAGE_CHARS, Failure, Reason, failure_of
from workers.secrets import Secrets, secrets_of
from workers.spec import parse_job_spec
from workers.training.logs import LogReader

SECRET = "hunter2-hunter2"
SPEC = {"name": "s", "entrypoint": "t:b", "bundle": "b", "steps": 1, "env": {"KEY": {"secret": "A"}}}


def quoted(value: str) -> str:
    return quote(value, safe="", errors="surrogateescape")


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


@pytest.mark.parametrize("write", [str, str.strip, repr, json.dumps, quoted])
@pytest.mark.parametrize("value", ["a 'b' \\ c/d\n", '\n\tkey: "1"\n', "schlüssel %", "\udcff\udcfe bytes"])
def test_a_value_is_found_however_it_is_quoted(write: Callable[[str], str], value: str) -> None:
    secrets = secrets_of(parse_job_spec(SPEC), {"KEY": value})
    assert secrets.text(write(value)).strip("'\"") == "***"
    assert set(secrets.data(os.fsencode(write(value)))) <= set(b"*'\"")


def test_what_takes_values_to_a_worker_does_not_show_them() -> None:
    places = Storage(checkpoints="c", output="o")
    launch = Launch(spec=parse_job_spec(SPEC), storage=places, scratch="s", env={"KEY": SECRET})
    assert SECRET not in repr((launch, launch.assignment(JobKey(job_id="j", attempt=1), "1.1")))


@pytest.mark.parametrize("before", range(MAX_MESSAGE_CHARS // 2 - len(SECRET), MAX_MESSAGE_CHARS // 2 + 1))
def test_a_huge_message_is_cut_within_no_value(before: int) -> None:
    error = ValueError("." * before + SECRET + "." * MAX_MESSAGE_CHARS)
    assert set(failure_of(error, blot=Secrets((SECRET,)).text).message.split("\n")[0]) <= {".", "*"}


@given(st.integers(0, len(SECRET)), st.integers(0, len(SECRET)))
def test_the_rest_of_a_log_shows_no_part_of_a_value_at_its_ends(begin: int, end: int) -> None:
    data = f"{SECRET[begin:]}: {SECRET}, {SECRET[:end]}".encode()
    stars = "*" * len(SECRET)
    shown = f"{stars[begin:]}: {stars}, {stars[:end]}".encode()
    assert Secrets((SECRET,)).tail(data, is_cut=True) == shown


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
