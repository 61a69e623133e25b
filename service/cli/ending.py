"""Ends and removals: stop what runs from a home, and take the home away."""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.markup import escape
from rich.prompt import Confirm

from service.cli.connection import connect, home_of
from service.cli.emptying import empty, is_ours
from service.cli.failures import INTERRUPTED, SERVER_ERROR, CommandError
from service.cli.news import tell
from service.cli.options import Form
from service.cli.output import answering, complain, say
from service.cli.unended import num_unended
from service.client import Client, ClientError
from service.settings import Settings, environment
from service.supervise.home import Home
from service.supervise.lock import Holder, ServeLock, current_holder
from service.supervise.processes import Identity, belonging_to, kill_all_of
from service.supervise.ray_head import RAY_FOLDER
from service.supervise.ray_record import read_ray_record
from service.supervise.serve import Served, last_settings, serve
from service.supervise.supervisor import Mark
from workers.errors import described

STOP_LIMIT_S = 120.0
TAKE_OVER_LIMIT_S = 60.0
LOOK_EVERY_S = 0.2


def stop_service(home: Path | None, form: Form) -> int:
    """End the service of a home, and what one that was killed left running; gives the exit code.

    Raises CommandError when it does not end in time.
    """
    place = home_of(home)
    with answering(form) as answer:
        holder = current_holder(place.lock_file)
        has_run = holder is not None or has_own_ray(place)
        exit_code = _stop(place, holder)
        answer({"home": str(place.path), "pid": holder.pid if holder else None, "stopped": has_run and exit_code == 0})
    return exit_code


def _stop(place: Home, holder: Holder | None) -> int:
    if holder is not None:
        _end_holder(place, holder)
        return 0
    if _has_recorded_ray(place):
        tell(Mark.NOTE, "Ray", "an earlier serve was killed and left it running; its jobs are saved first")
        settings = last_settings(place).model_copy(update={"port": 0})
        return serve(settings, environment(), tell, _stop_when_it_works)
    if has_own_ray(place):
        _end_rest_of_ray(place)
        return 0
    say(f"nothing runs from {escape(str(place.path))}")
    return 0


def purge_home(home: Path | None, *, is_sure: bool, form: Form) -> int:
    """Remove everything of a home, after asking; gives the exit code, that of an interruption after a "no".

    Raises HomeError for a foreign folder, CommandError while jobs may run on a Ray that is not ours, and where
    nobody can be asked.
    """
    place = home_of(home)
    with answering(form) as answer:
        removed: list[str] = []
        exit_code = _purge(place, removed, is_sure=is_sure, may_ask=form is Form.TEXT)
        answer({"home": str(place.path), "removed": removed})
    return exit_code


def _purge(place: Home, removed: list[str], *, is_sure: bool, may_ask: bool) -> int:
    belongings = place.belongings()
    if not belongings:
        say(f"there is nothing of Concertina's at {escape(str(place.path))}")
        return 0
    settings = last_settings(place)
    _check_foreign_ray(settings)
    remote = _objects_of(settings)
    holder = current_holder(place.lock_file)
    is_running = holder is not None or has_own_ray(place)
    for path in belongings:
        say(f"  {escape(str(path))}")
    if remote is not None:
        say(f"  {escape(remote)}, what is this service's there")
    if not is_sure and not _is_confirmed(is_running=is_running, may_ask=may_ask):
        say("nothing was removed")
        return INTERRUPTED
    if is_running and _stop(place, holder) != 0:
        complain("the service did not stop; nothing was removed")
        return SERVER_ERROR
    if remote is not None:
        _empty(remote, place)
        removed.append(remote)
    place.remove()
    removed += map(str, belongings)
    say("removed")
    return 0


def _is_confirmed(*, is_running: bool, may_ask: bool) -> bool:
    question = "Stop the service that runs, and remove all of this" if is_running else "Remove all of this"
    try:
        if may_ask:
            return Confirm.ask(f"{question}, with every job, checkpoint and log?", default=False)
    except EOFError:
        pass
    raise CommandError("nobody can be asked whether to remove all of this; give --yes to remove it")


def _objects_of(settings: Settings) -> str | None:
    """The URL of storage that goes with the home; None where there is none, or where it is not this home's alone."""
    if settings.storage_folder is not None:
        return None
    try:
        if is_ours(settings):
            return settings.storage_url
    except OSError as error:
        raise CommandError(
            f"the storage {settings.storage_url} cannot be read ({described(error)}), so its bundles and checkpoints "
            f"would stay; bring it back and purge again, or remove them and {settings.home} by hand",
            SERVER_ERROR,
        ) from error
    say(f"{escape(settings.storage_url)} stays as it is: no mark says that it is this home's alone")
    return None


def _empty(url: str, place: Home) -> None:
    try:
        empty(url)
    except OSError as error:
        raise CommandError(
            f"not all of {url} could be removed ({described(error)}); {place.path} is kept, so purge again",
            SERVER_ERROR,
        ) from error


def _check_foreign_ray(settings: Settings) -> None:
    """On somebody else's Ray jobs go on without the service: with their rows gone, nobody could end them."""
    if settings.ray_address is None or settings.database_file is None or not settings.database_file.is_file():
        return
    left = num_unended(settings.database_url)
    if left:
        jobs = "1 job is" if left == 1 else f"{left} jobs are"
        raise CommandError(
            f"{jobs} not ended, and may run on the Ray at {settings.ray_address}; cancel each by `concertina cancel` "
            "while `concertina serve` runs, then purge again"
        )


def has_own_ray(place: Home) -> bool:
    """Whether a Ray that was started for this home lives, or a part of one."""
    folder = _ray_folder(place)
    return _has_recorded_ray(place) or (folder is not None and bool(belonging_to(folder)))


def _has_recorded_ray(place: Home) -> bool:
    """Whether it was up once, so that jobs may run on it."""
    record = read_ray_record(place.ray_file)
    return record is not None and record.is_own and Identity(record.pid, record.started_at).is_alive()


def _ray_folder(place: Home) -> Path | None:
    temp_dir = place.remembered_temp_dir()
    return temp_dir / RAY_FOLDER if temp_dir else None


def _end_rest_of_ray(place: Home) -> None:
    folder = _ray_folder(place)
    assert folder is not None, "without a record it is known by its folder"
    with ServeLock(place.lock_file):
        kill_all_of(folder)
    tell(Mark.OK, "Ray", "an earlier serve was killed and left parts of one that is not up; they are ended")


def _stop_when_it_works(served: Served) -> None:
    """End the service as soon as its reconciler has seen the cluster: from then on it lets jobs save."""
    begin = datetime.now(UTC)

    def wait() -> None:
        deadline_s = time.monotonic() + TAKE_OVER_LIMIT_S
        with connect(served.url, served.settings.home) as client:
            while time.monotonic() < deadline_s and not _has_seen_cluster(client, begin):
                time.sleep(LOOK_EVERY_S)
        served.request_stop()

    threading.Thread(target=wait, name="stop", daemon=True).start()


def _has_seen_cluster(client: Client, since: datetime) -> bool:
    try:
        found = client.get("/cluster")
    except ClientError:
        return False
    return bool(found["is_up"]) and datetime.fromisoformat(found["observed_at"]) >= since


def _end_holder(place: Home, holder: Holder) -> None:
    if not holder.pid:
        raise CommandError(f"the service of {place.path} is just starting; try again in a moment", SERVER_ERROR)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(holder.pid).terminate()
    has_own = last_settings(place).ray_address is None
    what = "running jobs save (30 s at most)" if has_own else "jobs go on without the service"
    tell(Mark.NOTE, "stopping", f"process {holder.pid}: {what}")
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while current_holder(place.lock_file) is not None:
        if time.monotonic() > deadline_s:
            raise CommandError(
                f"process {holder.pid} has not ended within {STOP_LIMIT_S:.0f} s; look at {place.logs}, "
                f"then end it by `kill -9 {holder.pid}` and call `concertina stop` again",
                SERVER_ERROR,
            )
        time.sleep(LOOK_EVERY_S)
    tell(Mark.OK, "stopped", "the next `concertina serve` goes on")
