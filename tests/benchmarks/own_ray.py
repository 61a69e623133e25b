"""A Ray head for one measurement: the service's own kind, in a folder of its own, ended by its process id."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.supervise.home import Home
from service.supervise.ray_head import HeadEvent, RayHead, ray_environment
from service.supervise.ray_record import read_ray_record
from tests.benchmarks.figures import ROOT

START_S = 90.0
LOOK_S = 0.1


@contextmanager
def own_ray(folder: Path, num_cpus: int) -> Iterator[str]:
    """The address of a new head whose workers can import this source tree.

    Puts what drivers need into this process's environment, so Ray must not have been imported before.
    """
    home = Home(folder / "home")
    home.prepare()
    inherited = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    head = RayHead(home, num_cpus, inherited)
    temp_dir = home.temp_dir()
    try:
        deadline_s = time.monotonic() + START_S
        while (news := head.tick(time.monotonic())) is None or news.event is not HeadEvent.UP:
            if time.monotonic() > deadline_s or (news is not None and news.event is HeadEvent.LOST):
                raise RuntimeError(f"the Ray head is not up: {news}; look into {home.logs / 'ray.log'}")
            time.sleep(LOOK_S)
        os.environ.update(ray_environment({"PYTHONPATH": str(ROOT)}, home.ray_token))
        record = read_ray_record(home.ray_file)
        assert record is not None
        yield record.address
    finally:
        head.stop()
        shutil.rmtree(temp_dir, ignore_errors=True)
