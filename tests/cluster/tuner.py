"""A user's script around ``tune.Tuner``, as a process of its own: ``python -m tests.cluster.tuner JSON``.

The same call begins an experiment, or goes on with the one that it finds in the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator

from tuning.trainable import concertina_trainable

NUM_TRAIN = 1437
EPOCHS = 160
EXPERIMENT = "tuned"
METRIC = "eval.accuracy"
JOB = {"entrypoint": "train:build", "epochs": EPOCHS, "checkpoint": {"every_steps": 200}}


def main() -> None:
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    ray.init(address="local", num_cpus=1, include_dashboard=False, _temp_dir=given["ray_folder"])
    job = {**JOB, **given["job"]}
    trainable = concertina_trainable(
        job, metric=METRIC, report_samples=4 * NUM_TRAIN, url=given["url"], token=given["token"]
    )
    results = _tuner(trainable, folder).fit()
    told = [{"config": r.config, "metrics": r.metrics, "error": repr(r.error) if r.error else None} for r in results]
    (folder / "results.json").write_text(json.dumps(told, default=str))


def _tuner(trainable: type[tune.Trainable], folder: Path) -> tune.Tuner:
    place = folder / EXPERIMENT
    if tune.Tuner.can_restore(str(place)):
        return tune.Tuner.restore(str(place), trainable=trainable, resume_unfinished=True)
    scheduler = ASHAScheduler(
        time_attr="samples",
        metric=METRIC,
        mode="max",
        max_t=EPOCHS * NUM_TRAIN,
        grace_period=40 * NUM_TRAIN,
        reduction_factor=2,
    )
    # The good one has the largest batch, so that it comes first to the rung where the others are judged.
    points = [{"optimizer.lr": lr, "batch.global_size": size} for lr, size in ((3e-3, 256), (1e-6, 32), (2e-6, 32))]
    return tune.Tuner(
        trainable,
        param_space={"optimizer.lr": tune.loguniform(1e-6, 1e-1), "batch.global_size": tune.choice([32, 256])},
        tune_config=tune.TuneConfig(
            search_alg=BasicVariantGenerator(points_to_evaluate=points), num_samples=len(points), scheduler=scheduler
        ),
        run_config=tune.RunConfig(name=EXPERIMENT, storage_path=str(folder)),
    )


if __name__ == "__main__":
    main()
