"""Puts the parts of one installation together and runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from service.settings import PREFIX, Settings, load_settings
from service.supervise.child import Child, Program
from service.supervise.home import Home, write_private
from service.supervise.inherited import inherited
from service.supervise.lock import ServeLock, database_lock
from service.supervise.ports import LOOPBACK, listen
from service.supervise.ray_head import RayHead, foreign_ray_environment, ray_environment
from service.supervise.ray_record import RayRecord, write_ray_record
from service.supervise.supervisor import Address, Mark, Parts, Say, Supervisor
from service.tls import check_certificate, own_trust

SOURCE_ROOT = Path(__file__).resolve().parents[2]
HEAPS = {"MALLOC_ARENA_MAX": "2"}
"""glibc's eight a core keep the gaps between what many threads have allocated by turns: memory that nobody uses."""
LEAST_PATIENCE_S = 20.0  # where many processes share few cores a healthy one may say nothing for seconds


@dataclass(frozen=True, slots=True)
class Served:
    """A service that is up: where it answers, how to end it, and whether that was asked already."""

    settings: Settings
    url: str
    request_stop: Callable[[], None]
    is_stopping: Callable[[], bool]

    @property
    def page_url(self) -> str:
        """Where browsers call, which may be elsewhere: there only the certificate's name is believed."""
        return self.settings.public_url or self.url


def serve(settings: Settings, environment: Mapping[str, str], say: Say, on_ready: Callable[[Served], None]) -> int:
    """Run the service of one home until it is told to stop; gives the exit code. Main thread only.

    Raises HomeError, AlreadyServedError, DatabaseServedError, PortTakenError and SettingsError before anything is
    started.
    """
    check_certificate(settings)
    home = Home(settings.home)
    home.prepare()
    with (
        ServeLock(home.lock_file) as lock,
        _sole_user(settings),
        _listening(settings) as (listener, actual),
        _lifeline() as lifeline,
    ):
        home.remember_outside(_own_outside(actual))
        write_private(home.settings_file, json.dumps(actual.as_environment()))
        host = actual.host if actual.host not in ("0.0.0.0", "::") else LOOPBACK
        address = Address(host, actual.port, own_trust(actual))
        lock.announce(address.url)
        handed_on = inherited(with_source(environment), actual.worker_env)
        head = None if actual.ray_address else RayHead(home, actual.num_cpus, handed_on)
        if actual.ray_address:
            _attach(home, actual.ray_address, actual, environment, say)
        parts = Parts(
            address=address,
            api=Child(_api(home, actual, environment, listener), lifeline),
            reconciler=Child(_reconciler(home, actual, environment), lifeline),
            head=head,
        )
        say(Mark.OK, "home", str(home.path))
        supervisor = Supervisor(parts, say, lambda: on_ready(served))
        served = Served(actual, address.url, supervisor.request_stop, lambda: supervisor.is_stopping)
        exit_code = supervisor.run()
        home.ray_file.unlink(missing_ok=True)
        return exit_code


def _own_outside(settings: Settings) -> list[Path]:
    """What goes with the home; nothing where a database server is used, with which other replicas may go on."""
    if settings.database_file is None:
        return []
    return [path for path in (settings.storage_folder, settings.database_file) if path is not None]


def last_settings(home: Home) -> Settings:
    """The settings of the `serve` that runs or ran last from a home; without one, today's. Raises SettingsError."""
    try:
        variables: dict[str, str] = json.loads(home.settings_file.read_text())
    except (OSError, ValueError):
        return load_settings({"home": home.path})
    return load_settings({"home": home.path}, environ=variables)


def child_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """What a child gets: this environment, with exactly these settings in place of all others."""
    child = {name: value for name, value in environment.items() if not name.startswith(PREFIX)}
    return HEAPS | with_source(child) | settings.as_environment()


def with_source(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which our packages can be imported also where they were never installed."""
    if SOURCE_ROOT.name == "site-packages":
        return dict(environment)
    paths = (str(SOURCE_ROOT), environment.get("PYTHONPATH", ""))
    return {**environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _api(home: Home, settings: Settings, environment: Mapping[str, str], listener: int) -> Program:
    return Program(
        name="api",
        module="service.supervise.api_process",
        arguments=(str(listener),),
        environment=child_environment(settings, environment),
        log_file=home.logs / "api.log",
        cwd=home.path,
        patience_s=max(LEAST_PATIENCE_S, settings.liveness_s),
        descriptors=(listener,),
    )


def _reconciler(home: Home, settings: Settings, environment: Mapping[str, str]) -> Program:
    child = child_environment(settings, environment)
    drives = foreign_ray_environment(child) if settings.ray_address else ray_environment(child, home.ray_token)
    return Program(
        name="reconciler",
        module="service.reconciler",
        environment=drives,
        log_file=home.logs / "reconciler.log",
        cwd=home.path,
        # Where several could lead another one does by then: it took over after one lease.
        patience_s=max(LEAST_PATIENCE_S, 2 * settings.leader_lease_s),
    )


def _attach(home: Home, address: str, settings: Settings, environment: Mapping[str, str], say: Say) -> None:
    """Use somebody else's Ray; a head of our own that was left behind ends first."""
    RayHead(home, settings.num_cpus, environment).stop()
    write_ray_record(home.ray_file, RayRecord(address=address, is_own=False))
    say(Mark.OK, "Ray", f"attached to {address}")


def _sole_user(settings: Settings) -> AbstractContextManager[None]:
    return nullcontext() if settings.database_file is None else database_lock(settings.database_file)


@contextmanager
def _listening(settings: Settings) -> Iterator[tuple[int, Settings]]:
    with listen(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        yield listener.fileno(), settings.model_copy(update={"port": port})


@contextmanager
def _lifeline() -> Iterator[int]:
    """The reading end of a pipe that nobody writes to; it ends when this process does."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)
