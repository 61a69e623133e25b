"""Ray Tune as a side of the measurement of sweeps: OptunaSearch and ASHA over a Ray of its own.

    python -m tests.benchmarks.sweeps_tune '{"side": ..., "search": {...}, "ray_folder": ..., "folder": ...}'

A process of its own for each sweep; prints the outcome as the last line, JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import ROOT
from tests.benchmarks.sweeps_setting import (
    BATCHES,
    HIDDEN,
    LR,
    REDUCTION,
    Outcome,
    Search,
    load_1min,
    steady_ms,
)

LIMIT_S = 900.0
QUIET = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "TUNE_GLOBAL_CHECKPOINT_S": "60"}
SIDES = ("tune", "tune_reuse", "tune_class_reuse", "tune_class_reuse_quiet")
"""``reuse``: with ``reuse_actors=True``; ``class``: a class Trainable instead of a function; ``quiet``: no loggers."""


def run(side: str, search: Search) -> Outcome:
    """One sweep in a process of its own. Raises RuntimeError with the end of what it wrote where it fails."""
    with tempfile.TemporaryDirectory(prefix="ct-tune-") as name:
        given = {"side": side, "search": asdict(search), "ray_folder": f"{name}/ray", "folder": f"{name}/results"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.sweeps_tune", json.dumps(given)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(QUIET if side.endswith("quiet") else {})},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{side} ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-3000:]}")
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """The sweep that the argument tells of."""
    import ray

    given = json.loads(sys.argv[1])
    search = Search(**given["search"])
    ray.init(
        address="local",
        num_cpus=search.parallel,
        include_dashboard=False,
        _temp_dir=given["ray_folder"],
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}},
    )
    outcome = _measured(given["side"], search, Path(given["folder"]))
    ray.shutdown()
    print(json.dumps(asdict(outcome)), flush=True)


def _measured(side: str, search: Search, folder: Path) -> Outcome:
    from ray import tune

    ends_s: list[float] = []

    class Ends(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            ends_s.append(time.monotonic())

    trainable = _class(search) if "class" in side else _function(search)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space=_space(tune, search),
        tune_config=_tune_config(tune, search, has_reuse="reuse" in side),
        run_config=tune.RunConfig(name="rival", storage_path=str(folder), callbacks=[Ends()], verbose=0),
    )
    load, begin_s = load_1min(), time.monotonic()
    results = tuner.fit()
    wall_s = time.monotonic() - begin_s
    if results.errors:
        raise RuntimeError(f"{len(results.errors)} trials failed, the first: {results.errors[0]!r}")
    told = [result.metrics for result in results if result.metrics]
    outcome = Outcome(
        side=side,
        seed=search.seed,
        wall_s=wall_s,
        best=max(metrics["accuracy"] for metrics in told),
        trials=len(told),
        epochs=sum(float(metrics["training_iteration"]) for metrics in told),
        steady_ms=steady_ms(ends_s),
        load_1min=load,
    )
    if search.steps is not None:
        return replace(outcome, epochs=0.0)
    assert outcome.epochs <= search.trials * search.epochs
    return outcome


def _space(tune: Any, search: Search) -> dict[str, Any]:
    batch = {"batch": tune.choice(list(BATCHES))} if search.steps is None else {}
    return {"lr": tune.loguniform(*LR), **batch, "hidden": tune.lograndint(HIDDEN[0], HIDDEN[1] + 1)}


def _tune_config(tune: Any, search: Search, *, has_reuse: bool) -> Any:
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    asha = ASHAScheduler(max_t=search.epochs, grace_period=1, reduction_factor=REDUCTION)
    return tune.TuneConfig(
        metric="accuracy",
        mode="max",
        search_alg=OptunaSearch(seed=search.seed, study_name=f"seed-{search.seed}"),
        scheduler=asha if search.steps is None else None,
        num_samples=search.trials,
        max_concurrent_trials=search.parallel,
        **({"reuse_actors": True} if has_reuse else {}),
    )


def _function(search: Search) -> Any:
    def train(config: dict[str, Any]) -> None:
        from ray import tune

        from tests.benchmarks.sweeps_training import Training

        training = Training(config)
        for _ in range(search.epochs if search.steps is None else 1):
            training.epoch() if search.steps is None else training.steps(search.steps)
            tune.report({"accuracy": training.accuracy()})

    return train


def _class(search: Search) -> Any:
    from ray import tune

    class Trial(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            from tests.benchmarks.sweeps_training import Training

            self.training = Training(config)

        def step(self) -> dict[str, Any]:
            if search.steps is None:
                self.training.epoch()
            else:
                self.training.steps(search.steps)
            is_done = search.steps is not None or self.iteration + 1 >= search.epochs
            return {"accuracy": self.training.accuracy(), "done": is_done}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            return None

        def load_checkpoint(self, checkpoint: Any) -> None:
            return None

    return Trial


if __name__ == "__main__":
    main()
