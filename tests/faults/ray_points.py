"""The reconciler dies within calls on a real Ray, at one point after another, and the oracle is asked.

    python -m tests.faults.ray_points FOLDER calls|effects

``calls``: between two calls on Ray. ``effects``: between two effects that one blocking call has.

FOLDER holds the home of a Ray, as ``own_ray`` makes it, whose variables are in the environment. Ends with 1, and the
findings in lines, where anything was found.
"""

from __future__ import annotations

import sys
from pathlib import Path

from service.client import Client
from service.folders import token_file
from service.migrations.upgrade import upgrade
from service.settings import load_settings
from service.supervise.home import Home
from service.supervise.ray_record import read_ray_record
from tests.cluster.gated import gated_bundle
from tests.faults.processes import API, RECONCILER, Installation
from tests.faults.ray_effect_scene import EffectScene
from tests.faults.ray_scene import END_S, Scene
from tests.waiting import wait_for

SCENES = {"calls": Scene, "effects": EffectScene}


def main() -> int:
    """Play all points and judge."""
    folder, make_scene = Path(sys.argv[1]), SCENES[sys.argv[2]]
    record = read_ray_record(Home(folder / "home").ray_file)
    assert record is not None
    Home(folder / "service").prepare()
    given = {"home": folder / "service", "ray_address": record.address, "leader_lease_s": 2.0}
    settings = load_settings(given, {})
    upgrade(settings.database_url)
    with Installation(settings, names=(API,), ray=record, is_patient=make_scene.is_patient) as installation:
        token = token_file(settings.home)
        wait_for("the API's token", token.exists)
        with Client(installation.url, token.read_text().strip()) as client:
            scene = make_scene(record, installation, client, client.upload(gated_bundle())["id"])
            begun = {point: scene.struck(number) for number, point in enumerate(scene.points)}
            installation.start(RECONCILER)
            for point, is_over in begun.items():
                wait_for(f"the end of what was begun at {point}", is_over, END_S, installation.told)
            found = scene.judged()
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
