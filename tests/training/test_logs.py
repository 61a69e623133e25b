"""A worker's log: everything printed arrives in the file, and is read in whole lines and characters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.training.logs import LogReader

PRINTING = """
import ctypes, os, subprocess, sys
from pathlib import Path
from workers.training.logs import redirect_output
old = sys.stdout
print("before", flush=True)
redirect_output(Path(sys.argv[1]) / "logs" / "w.log")
print("to stdout")
print("to stderr", file=sys.stderr)
os.write(1, b"to descriptor 1\\n")
ctypes.CDLL(None).puts(b"from C"); ctypes.CDLL(None).fflush(None)
subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
print("not text: \\udcff")
old.write("by the old stream\\n"); old.flush()
assert "torch" not in sys.modules
os.kill(os.getpid(), 9)
"""


def test_all_output_is_in_the_file_when_the_worker_is_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTING, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-9, "before\n", "")
    path = tmp_path / "logs" / "w.log"
    assert path.read_text().splitlines() == [
        "to stdout",
        "to stderr",
        "to descriptor 1",
        "from C",
        "from a child",
        "not text: \\udcff",
        "by the old stream",
    ]
    assert path.stat().st_mode & 0o077 == 0


FULL = """
import sys
from pathlib import Path
from workers.training.logs import redirect_output
redirect_output(Path("/dev/full"))
for stream in (sys.stdout, sys.stderr):
    print("to a full disk", file=stream, flush=True)
    print("x" * 100_000, file=stream)
sys.exit(7)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file here that is always full")
def test_whoever_prints_goes_on_where_the_disk_is_full() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


def read(path: Path, after: int, max_bytes: int) -> bytes:
    return b"".join(chunk.data for chunk in LogReader(path).chunks(after, 0, "1.1", max_bytes))


def test_a_chunk_tells_whose_it_is_and_where_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(b"first\nsecond\n")
    [chunk] = LogReader(path).chunks(6, 3, "1.2", 100)
    assert (chunk.worker_id, chunk.rank, chunk.offset, chunk.data) == ("1.2", 3, 6, b"second\n")
    assert chunk.time == path.stat().st_mtime


def test_there_is_no_chunk_at_the_end_or_without_a_file(tmp_path: Path) -> None:
    assert LogReader(tmp_path / "none.log").chunks(0, None, "1.1", 100) == ()
    (tmp_path / "w.log").write_bytes(b"abc")
    assert LogReader(tmp_path / "w.log").chunks(3, None, "1.1", 100) == ()


@pytest.mark.parametrize(
    ("content", "max_bytes", "first"),
    [
        (b"one\ntwo\nthree\n", 9, b"one\ntwo\n"),
        (b"no newline yet", 100, b"no newline yet"),
        (b"a line longer than a chunk\n", 6, b"a line"),
        ("aä".encode() * 3, 2, b"a"),
        ("€".encode(), 3, "€".encode()),
        ("€€".encode(), 5, "€".encode()),
        (b"\x80" * 10, 4, b"\x80"),
    ],
)
def test_a_chunk_ends_at_a_line_else_between_characters(
    content: bytes, max_bytes: int, first: bytes, tmp_path: Path
) -> None:
    (tmp_path / "w.log").write_bytes(content)
    assert read(tmp_path / "w.log", 0, max_bytes) == first


@given(content=st.text(alphabet="aä€😀\n").map(str.encode) | st.binary(), max_bytes=st.integers(1, 10))
def test_reading_on_and_on_gives_every_byte_once(
    content: bytes, max_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("logs") / "w.log"
    path.write_bytes(content)
    seen = b""
    while piece := read(path, len(seen), max_bytes):
        assert len(piece) <= max_bytes
        seen += piece
    assert seen == content
