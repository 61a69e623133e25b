"""Concertina jobs as trials of Ray Tune, for who has scripts around ``tune.Tuner``.

The trial's own process trains nothing: it submits a job to a running service, hands on what the job reports, and
cancels it when Tune ends the trial. The job is found again by what it is (experiment, trial, spec), never by a
process that remembers it, so whatever dies between the two, ``Tuner.restore`` goes on with the same job.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ray.tune import PlacementGroupFactory, Trainable, with_parameters

from tuning.paths import Document, applied
from tuning.remote_jobs import (
    ConflictError,
    GoneError,
    Json,
    RemoteJobs,
    ReportedPoint,
    ServiceAddress,
    ServiceError,
    service_address,
)
from tuning.tune_jobs import Progress, digest_of, trial_job
from workers.errors import FieldProblem, SpecError
from workers.telemetry_keys import can_be_reported, no_such_key

if TYPE_CHECKING:
    from ray.train._internal.storage import StorageContext

SUCCEEDED, ENDED = "SUCCEEDED", frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
RUN_LABEL, TRIAL_LABEL, EXPERIMENT_LABEL = "tune.run", "tune.trial", "tune.experiment"

POLL_S = 0.25
FIRST_CALL_S = 10.0
"""That nobody answers at an address is told as soon as this, before there is any trial."""

AWAY_S = 300.0
"""So long the service may be away while a trial runs."""

LET_GO_S = 3.0
"""Tune gives all trials together five seconds to end."""

REVIVE_S = 120.0
_CPUS = 0.01  # Tune refuses a trial that asks for nothing

log = logging.getLogger("concertina.tune")


def concertina_trainable(
    job: Mapping[str, Any],
    *,
    metric: str,
    report_samples: int | None = None,
    patience_s: float = 3600.0,
    url: str | None = None,
    token: str | None = None,
) -> type[Trainable]:
    """What ``tune.Tuner`` takes: a Trainable whose trials are jobs of the service at ``url``.

    ``job`` is a job spec, and the keys of a trial's config are paths in it (``optimizer.lr``), as in a sweep's space;
    its ``name``, where it has one, begins the names of the trials' jobs. Results hold ``metric`` (a telemetry key)
    and ``samples``, which is the ``time_attr`` to compare trials by. ``report_samples`` makes each job evaluate after
    about so many samples, whatever its batch; else its ``eval_every_steps`` counts. A job that reports nothing for
    ``patience_s`` seconds fails its trial. Address and token come from ``CONCERTINA_URL`` and ``CONCERTINA_TOKEN``, or
    this machine's service, where they are not given. The token stays out of Tune's files.

    Raises ServiceError where no token is found, nobody answers or the token is refused, SpecError for a metric that
    no job reports.
    """
    if not can_be_reported(metric):
        raise SpecError([FieldProblem("/metric", no_such_key(metric))])
    address = service_address(url, token)
    with closing(RemoteJobs(address)) as jobs:
        jobs.check(FIRST_CALL_S)
    setting = TrialSetting(
        job=dict(job),
        metric=metric,
        report_samples=report_samples,
        patience_s=patience_s,
        address=address,
    )
    made: type[Trainable] = with_parameters(ConcertinaTrainable, setting=setting)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetting:
    """What all trials of an experiment have in common; see ``concertina_trainable``."""

    job: Document
    metric: str
    address: ServiceAddress
    report_samples: int | None = None
    patience_s: float = 3600.0


class ConcertinaTrainable(Trainable):
    """Made by ``concertina_trainable``; Tune calls its methods.

    One at a time, but that it may stop or reset a trial which waits for a report: of several seconds until that comes,
    Tune gives five before it kills the process, and the job would train on for nobody. So ``train`` is a coroutine,
    which lets Ray deliver other calls meanwhile; they end the wait first.
    """

    _jobs: RemoteJobs | None = None
    _progress: Progress | None = None
    _origin: Progress | None = None

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Next to nothing: the workers are the service's."""
        return PlacementGroupFactory([{"CPU": _CPUS}])

    def setup(self, config: dict[str, Any], setting: TrialSetting | None = None) -> None:
        """Check the trial's job; it is submitted at the first step, when it is known where it goes on from.

        Raises ServiceError where the service cannot be had or refuses the job, SpecError for a config that does not
        name paths of a job spec.
        """
        if setting is None:
            raise ServiceError("ConcertinaTrainable knows no job; give the Tuner concertina_trainable(job, metric=...)")
        self._setting = setting
        self._busy, self._is_unwanted = threading.Lock(), False
        self._jobs = RemoteJobs(setting.address)
        self._begin(config)

    async def train(self) -> dict[str, Any]:
        """The next result; raises what ``step`` raises."""
        return await asyncio.to_thread(self._train)

    def reset(self, new_config: dict[str, Any], storage: StorageContext | None = None) -> bool:
        """Serve another trial."""
        with self._undisturbed(AWAY_S):
            return bool(super().reset(new_config, storage=storage))  # type: ignore[no-untyped-call]  # Ray's

    def stop(self) -> None:
        """The trial has ended, or is to."""
        with self._undisturbed(LET_GO_S):
            super().stop()  # type: ignore[no-untyped-call]  # Ray's

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Serve another trial: the job of the one before is cancelled."""
        self._let_go()
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """The next report of the job.

        Raises ServiceError when the job fails, is cancelled by others, or reports nothing for ``patience_s``.
        """
        if self._progress is None:
            self._progress = self._attached()
        progress = self._progress
        deadline_s = time.monotonic() + self._setting.patience_s
        while not self._is_unwanted:
            job = self._client.job(progress.job_id, AWAY_S)
            if self._has_missed(progress, job):
                self._progress = progress = self._begun_later(progress, job)
            elif result := self._news(progress, job):
                return result
            if time.monotonic() > deadline_s:
                told = (
                    f"{job['state']} and has not reported {self._setting.metric} for {self._setting.patience_s:.0f} s"
                )
                why = self._client.why(progress.job_id, AWAY_S)
                raise ServiceError(f"job {progress.job_id} of this trial is {told}: {why}. Is patience_s too small?")
            time.sleep(POLL_S)
        raise ServiceError(f"Tune ended the trial of job {progress.job_id} while it waited for a report")

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Name the newest checkpoint of the job; the state itself stays with the service."""
        progress = self._progress or self._origin
        if progress is None:
            return {}
        steps = self._client.checkpoint_steps(progress.job_id, AWAY_S)
        return {**asdict(progress), "checkpoint": steps[-1] if steps else None}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Remember where to go on from; the first step does it."""
        self._origin = Progress(**checkpoint) if checkpoint else None

    def cleanup(self) -> None:
        """Cancel the job unless it has ended: `Tuner.restore` has it go on from its last checkpoint."""
        self._let_go()
        if self._jobs is not None:
            self._jobs.close()

    def _train(self) -> dict[str, Any]:
        with self._busy:
            return dict(super().train())  # type: ignore[no-untyped-call]  # Ray's

    @contextmanager
    def _undisturbed(self, within_s: float) -> Iterator[None]:
        """Nothing waits for a report in the block, nor ever again where it did not stop within the bound."""
        self._is_unwanted = True
        is_free = self._busy.acquire(timeout=within_s)
        try:
            yield
        finally:
            if is_free:
                self._is_unwanted = False
                self._busy.release()

    @property
    def _client(self) -> RemoteJobs:
        assert self._jobs is not None, "Tune calls setup first"
        return self._jobs

    def _begin(self, config: dict[str, Any]) -> None:
        self._progress = self._origin = None
        self._is_over = False
        self._last_value: float | None = None
        spec = trial_job(self._setting.job, config, self.trial_id)
        resolved = self._client.resolved(spec, AWAY_S)
        self._global_size = int(resolved["batch"]["global_size"])
        if self._setting.report_samples is not None:
            spec["eval_every_steps"] = max(1, self._setting.report_samples // self._global_size)
        self._spec, self._digest = spec, digest_of(spec)

    def _attached(self) -> Progress:
        """The job of this trial, which goes on from now: found again, or submitted."""
        origin = self._origin
        if origin is not None and (origin.trial_id, origin.digest) == (self.trial_id, self._digest):
            found = origin
        elif origin is not None:
            found = self._begun_from(origin)
        else:
            found = self._submitted(self._spec)
        self._progress = found  # from here on there is something to cancel
        return self._revived(found)

    def _begun_from(self, origin: Progress) -> Progress:
        """As when a population's trial takes over another's state."""
        wanted = origin.samples if origin.checkpoint is None else origin.samples_at(origin.checkpoint)
        # Older ones go while the job trains on, and one may have come since.
        step = min(self._usable_steps(origin), key=lambda step: abs(origin.samples_at(step) - wanted))
        return self._begun_at(origin, step)

    def _begun_later(self, progress: Progress, job: Json) -> Progress:
        """Anew, as the checkpoint is gone that the job was to begin from: from the newest, which stays the longest."""
        source = self._client.job(job["spec"]["init_from"]["job"], AWAY_S)
        size = int(source["spec"]["batch"]["global_size"])
        origin = replace(progress, job_id=str(source["id"]), global_size=size)
        self._progress = begun = self._begun_at(origin, max(self._usable_steps(origin)))
        return self._revived(begun)

    def _usable_steps(self, origin: Progress) -> list[int]:
        """Of the checkpoints that the origin's job has; at its end there is nothing left to train."""
        end = self._client.job(origin.job_id, AWAY_S)["progress"]["steps"]
        known = self._client.checkpoint_steps(origin.job_id, AWAY_S)
        steps = [step for step in known if end is None or step < end]
        if not steps:
            raise ServiceError(
                f"job {origin.job_id} has no checkpoint to go on from (it has: {known or 'none'}); give its spec a "
                "checkpoint.every_steps below the interval at which Tune lets trials take over others' states"
            )
        return steps

    def _begun_at(self, origin: Progress, step: int) -> Progress:
        begun = self._submitted(
            applied(self._spec, {"init_from": {"job": origin.job_id, "step": step, "state": "all"}})
        )
        samples = origin.samples_at(step)
        return replace(begun, samples=samples, base_step=step, base_samples=samples)

    def _submitted(self, spec: Json) -> Progress:
        experiment = str(self._trial_info.experiment_name) if self._trial_info else ""
        run = digest_of([experiment, self.trial_id, spec])
        labels = {RUN_LABEL: run, TRIAL_LABEL: self.trial_id, EXPERIMENT_LABEL: experiment[:256]}
        # Keys are forgotten after a day, labels never; only a key holds two callers apart.
        job = self._client.labelled(f"{RUN_LABEL}={run}", AWAY_S) or self._client.submit(
            {**spec, "labels": {**spec.get("labels", {}), **labels}}, f"tune-{run}", AWAY_S
        )
        return Progress(
            trial_id=self.trial_id, digest=self._digest, job_id=str(job["id"]), global_size=self._global_size
        )

    def _revived(self, progress: Progress) -> Progress:
        """A job that an earlier process of this trial let go, or that failed, goes on from its last checkpoint."""
        job_id, deadline_s = progress.job_id, time.monotonic() + REVIVE_S
        while (job := self._client.job(job_id, AWAY_S))["state"] in ("CANCELLING", "CANCELLED", "FAILED"):
            if time.monotonic() > deadline_s:
                told = f"still {job['state']} after {REVIVE_S:.0f} s"
                raise ServiceError(f"job {job_id} is {told}; see `concertina explain`")
            if job["state"] == "CANCELLING":
                time.sleep(POLL_S)
            elif self._is_bereft(progress, job):
                return self._begun_later(progress, job)
            else:
                self._client.command(job_id, "retry", AWAY_S)
        return progress

    def _has_missed(self, progress: Progress, job: Json) -> bool:
        """Whether the job failed without a state: the other's checkpoint went before the job came to read it."""
        return job["state"] == "FAILED" and job["progress"]["samples"] == 0 and self._is_bereft(progress, job)

    def _is_bereft(self, progress: Progress, job: Json) -> bool:
        """Whether the job has nothing to go on from any more, neither of its own nor of its source, which is there."""
        if progress.base_step == 0 or self._client.checkpoint_steps(progress.job_id, AWAY_S):
            return False
        try:
            return progress.base_step not in self._client.checkpoint_steps(job["spec"]["init_from"]["job"], AWAY_S)
        except GoneError:
            return False  # nor is there a later one; why the job failed tells more

    def _news(self, progress: Progress, job: Json) -> dict[str, Any] | None:
        """A result, where the job has come to one. Raises ServiceError where it never will."""
        self._is_over = job["state"] in ENDED
        if self._is_over and job["state"] != SUCCEEDED:
            why = self._client.why(progress.job_id, AWAY_S)
            raise ServiceError(f"job {progress.job_id} of this trial is {job['state']}: {why}")
        points = self._client.points(progress.job_id, self._setting.metric, progress.next_step(), AWAY_S)
        point = self._chosen(points)
        if point is None:
            return self._ended(progress, job) if self._is_over else None
        if not self._is_over and progress.is_last(point.step, job["progress"]["steps"]):
            return None  # until its end has come too, so that one result tells both
        return self._reported(point, job, is_done=self._is_over and point is points[-1])

    def _chosen(self, points: list[ReportedPoint]) -> ReportedPoint | None:
        """The next one; of values that come at every step the newest, as Tune would fall behind the job."""
        is_rare = self._setting.metric.startswith("eval.")
        return (points[0] if is_rare else points[-1]) if points else None

    def _reported(self, point: ReportedPoint, job: Json, *, is_done: bool) -> dict[str, Any]:
        assert self._progress is not None
        samples = int(job["progress"]["samples"]) if is_done else self._progress.samples_at(point.step)
        self._progress = replace(self._progress, samples=samples)
        self._last_value = point.value
        return self._result(is_done)

    def _ended(self, progress: Progress, job: Json) -> dict[str, Any]:
        """The job is complete, and all that it reported was told before."""
        if self._last_value is None:
            told = self._client.points(progress.job_id, self._setting.metric, 0, AWAY_S)
            if not told:
                keys = ", ".join(self._client.keys(progress.job_id, AWAY_S)) or "nothing"
                raise ServiceError(
                    f"job {progress.job_id} has ended and never reported {self._setting.metric}; it reported: {keys}"
                )
            self._last_value = told[-1].value
        self._progress = replace(progress, samples=int(job["progress"]["samples"]))
        return self._result(is_done=True)

    def _result(self, is_done: bool) -> dict[str, Any]:
        assert self._progress is not None
        return {
            self._setting.metric: self._last_value,
            "samples": self._progress.samples,
            "job_id": self._progress.job_id,
            "done": is_done,
        }

    def _let_go(self) -> None:
        """Cancel the job. That the service is away must not hold up Tune: it is told, and the job goes on."""
        if self._progress is None or self._is_over:
            return
        job_id = self._progress.job_id
        try:
            self._client.command(job_id, "cancel", LET_GO_S)
        except ConflictError:
            pass  # it has ended meanwhile
        except ServiceError as error:
            log.warning("job %s could not be cancelled (%s); do so with `concertina cancel %s`", job_id, error, job_id)
