"""What recent jobs tell about one that would run the same code: the size of its data, its speed."""

from __future__ import annotations

import json

from sqlalchemy import Connection, bindparam, select

from service.store.schema import jobs
from service.sweep_records import Experience
from workers.lr import LrRule
from workers.spec import JobSpec

MAX_LOOKED_AT = 500
"""Of the newest jobs, whatever they ran: an estimate must not read a whole history."""

_OBSERVED = select(jobs.c.observed).where(jobs.c.id == bindparam("of"))


def experience_with(conn: Connection, job: JobSpec) -> Experience:
    """From jobs of the same bundle and entrypoint."""
    columns = (jobs.c.id, jobs.c.spec, jobs.c.bundle_id, jobs.c.samples, jobs.c.total_samples, jobs.c.worker_s)
    newest = select(*columns).order_by(jobs.c.id.desc()).limit(MAX_LOOKED_AT).subquery()
    same_code = newest.c.bundle_id.is_(None) if job.bundle is None else newest.c.bundle_id == job.bundle
    chosen = select(newest).where(same_code, newest.c.samples > 0).order_by(newest.c.id.desc())
    num_jobs, samples, worker_s = 0, 0.0, 0.0
    per_epoch: int | None = None
    for row in conn.execute(chosen).all():
        spec = json.loads(row.spec)
        if spec["entrypoint"] != job.entrypoint:
            continue
        drawn = row.samples / (_counted(conn, row.id) if spec["batch"].get("lr_rule") == LrRule.ADASCALE else 1.0)
        num_jobs, samples, worker_s = num_jobs + 1, samples + drawn, worker_s + row.worker_s
        if per_epoch is None and spec["epochs"] and row.total_samples:
            per_epoch = max(1, round(row.total_samples / spec["epochs"]))
    speed = samples / worker_s if worker_s > 0 else None
    return Experience(num_jobs=num_jobs, samples_per_epoch=per_epoch, samples_per_worker_s=speed)


def _counted(conn: Connection, job_id: str) -> float:
    """The share of the samples that it drew of late that count; its rounds tell it only where there were several."""
    observed = conn.execute(_OBSERVED, {"of": job_id}).scalar_one()
    return float(json.loads(observed).get("counted", 1.0)) or 1.0
