"""A Ray head for one measurement: the service's own kind, in a folder of its own, ended by its process id."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.supervise.home import Home
from service.supervise.inherited import inherited
from service.supervise.ray_head import HeadEvent, RayHead, ray_environment
from service.supervise.ray_record import read_ray_record
from tests.benchmarks.figures import ROOT

START_S = 90.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRay:
    """A head that runs.

    ``variables`` must be in the environment of a driver or a further node before it imports Ray; workers can
    then import this source tree. ``folder`` holds Ray's files.
    """

    address: str
    variables: Mapping[str, str]
    folder: Path


@contextmanager
def own_ray(folder: Path, num_cpus: int) -> Iterator[OwnRay]:
    """A new head; it and all that joined it end with the block."""
    home = Home(folder / "home")
    home.prepare()
    handed_on = inherited({**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    head = RayHead(home, num_cpus, handed_on)
    temp_dir = home.temp_dir()
    try:
        deadline_s, told = time.monotonic() + START_S, None
        while (news := head.tick(time.monotonic())) is None or news.event is not HeadEvent.UP:
            # One that ended while it started is started again, as by `serve`: its port may have been taken meanwhile.
            told = news or told
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the Ray head is not up: {told}; look into {home.logs / 'ray.log'}")
            time.sleep(LOOK_S)
        record = read_ray_record(home.ray_file)
        assert record is not None
        variables = ray_environment({"PYTHONPATH": str(ROOT)}, home.ray_token)
        yield OwnRay(address=record.address, variables=variables, folder=temp_dir)
    finally:
        head.stop()
        shutil.rmtree(temp_dir, ignore_errors=True)
