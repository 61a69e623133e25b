"""One job trained to a target on a service that runs: how long that took, and which batches it went through."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.client import Client, RefusedError
from tests.benchmarks.sweeps_setting import load_1min

ADAPTED = "goodput"
LOOK_S = 1.0
START_LIMIT_S = 120.0
END_LIMIT_S = 60.0
MOST_POINTS = 10_000
START, LARGEST = 32, 512
"""Samples a step that the batch that adapts begins with, and that it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A recipe and what it shall reach: ``metric`` at ``target``, looked at each ``eval_samples`` samples.

    ``lr`` is meant at ``START`` samples a step. A run may take ``bound_s`` and ``most_samples``.
    """

    entrypoint: str
    config: Mapping[str, Any]
    lr: float
    metric: str
    target: float
    is_rising: bool
    eval_samples: int
    most_samples: int
    bound_s: float

    def is_met(self, value: float) -> bool:
        return value >= self.target if self.is_rising else value <= self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``seconds`` from the begin of the first step until the target was seen, None where it was not within bounds.

    ``best`` is the best value of the metric, ``batches`` each batch with the seconds at which it began.
    """

    case: str
    side: str
    seed: int
    seconds: float | None
    samples: int
    steps: int
    best: float
    trained_s: float
    batches: list[tuple[float, int]]
    noise_scale: float | None
    judged: list[str]
    load_1min: float


def spec(case: Case, side: str, seed: int) -> dict[str, Any]:
    """``side`` is a fixed batch, or ``ADAPTED``."""
    is_adapted = side == ADAPTED
    batch = START if is_adapted else int(side)
    adapted = {"adapt": "goodput", "max_global_size": LARGEST} if is_adapted else {}
    return {
        "name": f"to-target-{side}",
        "entrypoint": case.entrypoint,
        "config": dict(case.config),
        "samples": case.most_samples,
        "seed": seed,
        "workers": 2,
        "batch": {"global_size": batch, **adapted},
        "optimizer": {"lr": case.lr, "base_batch": START},
        "lr_schedule": {"warmup_fraction": 0.0, "decay": "constant"},
        "checkpoint": {"every_steps": 1_000_000},
        "eval_every_steps": max(1, case.eval_samples // batch),
        "precision": "fp32",
    }


def run(client: Client, name: str, case: Case, side: str, seed: int) -> Run:
    """Train until the target is met or the bounds are; the job is gone then. Raises RuntimeError where it fails."""
    load = load_1min()
    job_id = client.submit(spec(case, side, seed))["id"]
    try:
        _await_target(client, case, job_id)
        points = _points(client, job_id, case.metric, "step_s", "global_batch", "noise_scale")
        told = [row for row in client.timeline(job_id) if row["actor"] == ADAPTED]
    finally:
        _end(client, job_id)
    seconds, num_steps = reached(case, points)
    values = [value for _, value in _told(points, case.metric)]
    return Run(
        case=name,
        side=side,
        seed=seed,
        seconds=seconds,
        samples=round(sum(point["values"]["global_batch"] for point in points[:num_steps])),
        steps=num_steps,
        best=(max if case.is_rising else min)(values) if values else float("nan"),
        trained_s=_time_s(points[-1]) - _begin_s(points[0]),
        batches=_batches(points[:num_steps]),
        noise_scale=next((value for _, value in reversed(_told(points[:num_steps], "noise_scale"))), None),
        judged=[row["reason"] for row in told if row["kind"] == "probation"],
        load_1min=load,
    )


def _await_target(client: Client, case: Case, job_id: str) -> None:
    """Until the target is in the metrics, the job has ended, or its bound is over."""
    submitted_s, since = time.monotonic(), 0
    began_s: float | None = None
    while True:
        job = client.job(job_id)
        points = _points(client, job_id, case.metric, since_step=since)
        if any(case.is_met(value) for _, value in _told(points, case.metric)) or job["state"] == "SUCCEEDED":
            return
        if job["state"] in ("FAILED", "CANCELLED"):
            raise RuntimeError(f"job {job_id} is {job['state']}: {job['reason']}")
        now_s = time.monotonic()
        if points and began_s is None:
            began_s = now_s
        since = points[-1]["step"] if points else since
        if began_s is None and now_s > submitted_s + START_LIMIT_S:
            raise RuntimeError(f"job {job_id} has not begun after {START_LIMIT_S:.0f} s: {job['state']}")
        if began_s is not None and now_s > began_s + case.bound_s:
            return
        time.sleep(LOOK_S)


def _end(client: Client, job_id: str) -> None:
    """Cancel, and wait until its workers are gone, so that the next job has the machine to itself."""
    with contextlib.suppress(RefusedError):
        client.command(job_id, "cancel")
    until_s = time.monotonic() + END_LIMIT_S
    while client.job(job_id)["state"] not in ("CANCELLED", "SUCCEEDED", "FAILED"):
        if time.monotonic() > until_s:
            raise TimeoutError(f"job {job_id} has not ended within {END_LIMIT_S:.0f} s")
        time.sleep(LOOK_S / 4)


def reached(case: Case, points: Sequence[dict[str, Any]]) -> tuple[float | None, int]:
    """Seconds until the target was seen, evaluation included, and steps until then; all steps where it was not."""
    for place, point in enumerate(points, start=1):
        value = point["values"].get(case.metric)
        if value is not None and case.is_met(value):
            # A record has the time of its commit, and its evaluation ends where the next step begins.
            seen_s = _begin_s(points[place]) if place < len(points) else _time_s(point)
            return seen_s - _begin_s(points[0]), place
    return None, len(points)


def _batches(points: Sequence[dict[str, Any]]) -> list[tuple[float, int]]:
    found, begin_s = list[tuple[float, int]](), _begin_s(points[0])
    for point in points:
        batch = round(point["values"]["global_batch"])
        if not found or batch != found[-1][1]:
            found.append((round(_begin_s(point) - begin_s, 2), batch))
    return found


def _told(points: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(_time_s(point), point["values"][key]) for point in points if key in point["values"]]


def _time_s(point: dict[str, Any]) -> float:
    return datetime.fromisoformat(point["time"]).timestamp()


def _begin_s(point: dict[str, Any]) -> float:
    return _time_s(point) - float(point["values"]["step_s"])


def _points(client: Client, job_id: str, *keys: str, since_step: int = 0) -> list[dict[str, Any]]:
    asked = {"keys": ",".join(keys), "max_points": MOST_POINTS, "since_step": since_step}
    return list(client.get(f"/jobs/{job_id}/metrics", **asked)["points"])
