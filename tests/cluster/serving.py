"""A real `concertina serve` in a process of its own, over a temporary home."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.client import Client, ClientError
from service.folders import token_file
from service.settings import environment
from service.supervise.home import Home
from service.supervise.log_files import last_lines
from service.supervise.processes import belonging_to
from service.supervise.ray_record import RayRecord, read_ray_record
from tests.cluster.foreign_ray import Foreign
from tests.faults.findings import Finding
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 90.0
STOP_LIMIT_S = 90.0
SECRET_NAME = "PLACE_OF_TESTS"
"""A name that does not tell what is in it."""
SECRET_LINES = (secrets.token_hex(16), secrets.token_hex(16))
SECRET = "".join(f"{line}\\\n" for line in SECRET_LINES)
"""Written otherwise by most ways to quote it."""

UP = ("✓ Ray", "logs a browser in")

CONCERTINA = [sys.executable, "-m", "service.cli.main"]


class Serving:
    """One started `serve`. ``told`` is what it has printed.

    For the oracle: ``foreign`` is the Ray that it attached to, ``lost`` is by job how often a test has killed all its
    workers at once, or the cluster; ``findings`` are those that have failed a test.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], home: Path, output: Path, foreign: Foreign | None = None
    ) -> None:
        self.process, self.home, self._output = process, home, output
        self.foreign = foreign
        self.lost: Counter[str] = Counter()
        self.findings: list[Finding] = []

    @property
    def told(self) -> str:
        return self._output.read_text()

    @property
    def url(self) -> str:
        found = re.search(r"api +(http://\S+)", self.told)
        assert found, self.told
        return found[1]

    def wait_told(self, text: str, limit_s: float = START_LIMIT_S) -> None:
        def is_told() -> bool:
            assert self.process.poll() is None or text in self.told, self.told
            return text in self.told

        wait_for(f"{text!r} from serve", is_told, limit_s)

    def client(self) -> Client:
        return Client(self.url, token_file(self.home).read_text().strip())

    def cluster(self) -> dict[str, Any]:
        """What the API says of the cluster."""
        with self.client() as client:
            found: dict[str, Any] = client.get("/cluster")
        return found

    def account(self, about: str) -> str:
        """What explains a finding about a job: its timeline, the end of its logs, and of the service's own."""
        with self.client() as client:
            try:
                rows, logs = client.timeline(about), client.logs(about).text
            except ClientError as error:
                return f"{about}: {error}"
        lines = [f"timeline of {about}:", *map(str, rows), "the end of its logs:", logs[-5000:], self.last_logs()]
        return "\n".join(lines)

    def pid_of(self, part: str) -> int:
        """The newest process that was told of for ``api`` or ``reconciler``."""
        return int(re.findall(rf"✓ {part} .*process (\d+)", self.told)[-1])

    def ray(self) -> RayRecord:
        record = read_ray_record(Home(self.home).ray_file)
        assert record is not None
        return record

    def processes(self) -> list[psutil.Process]:
        """All that belongs to this service: serve, its children, and everything of its Ray."""
        own = psutil.Process(self.process.pid)
        found = {p.pid: p for p in [own, *own.children(recursive=True)]}
        record = read_ray_record(Home(self.home).ray_file)
        if record is not None:
            found |= {p.pid: p for p in belonging_to(Path(record.temp_dir), record.pid)}
        return list(found.values())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=STOP_LIMIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"serve did not end:\n{self.told}\n{self.last_logs()}") from None

    def stop_by_command(self) -> int:
        """By `concertina stop`, from another terminal."""
        command = [*CONCERTINA, "stop", "--home", str(self.home), "-o", "json"]
        told = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, timeout=STOP_LIMIT_S)
        assert json.loads(told.stdout) == {"home": str(self.home), "pid": self.process.pid, "stopped": True}, told
        return self.process.wait(timeout=STOP_LIMIT_S)

    def last_logs(self) -> str:
        """The end of what each of its processes has logged."""
        logs = sorted((self.home / "logs").glob("*.log"))
        return "\n".join(line for log in logs for line in [f"{log.name}:", *last_lines(log, 20)])


@contextmanager
def serving(
    home: Path,
    *flags: str,
    num: int = 1,
    until: Sequence[str] = UP,
    inside: Sequence[str] = (),
    foreign: Foreign | None = None,
) -> Iterator[Serving]:
    """Start `serve` and wait ``until`` it has told this; killed at the end if it still runs.

    ``num`` tells several apart; ``inside`` is a command that starts it somewhere else; ``foreign`` is the Ray that it
    attaches to.
    """
    output = home.with_name(f"{home.name}-{num}.out")
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [*inside, *CONCERTINA, "serve", "--home", str(home), "--port", "0", "--num-cpus", "3", *flags],
            cwd=ROOT,
            env=environment(),
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    served = Serving(process, home, output, foreign)
    try:
        for text in until:
            served.wait_told(text)
        yield served
    finally:
        if process.poll() is None:
            served.kill()


@contextmanager
def whole_service(
    home: Path,
    *flags: str,
    settings: Mapping[str, object] | None = None,
    variables: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
    foreign: Foreign | None = None,
) -> Iterator[Serving]:
    """A `serve` that ends in order after the block, and leaves nothing.

    ``settings`` is what its file holds, ``variables`` what is set for the block besides; for the rest see ``serving``.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (variables or {}).items():
            patch.setenv(name, value)
        if settings:
            configure(home, settings)
        try:
            with serving(home, *flags, inside=inside, foreign=foreign) as started:
                yield started
                assert started.stop() == 0
        finally:
            end_everything(home)


def configure(home: Path, settings: Mapping[str, object]) -> None:
    """Make a home whose file of settings holds these."""
    home.mkdir(mode=0o700)
    # JSON's numbers, words and lists are TOML's too.
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (home / "config.toml").write_text("".join(lines))


def end_everything(home: Path) -> None:
    """Whatever a test left of a home ends and goes: the command `purge`, which must succeed."""
    done = subprocess.run(
        [*CONCERTINA, "purge", "--home", str(home), "--yes"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * STOP_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
