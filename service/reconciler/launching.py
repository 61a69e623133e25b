"""What an attempt needs, resolved from its row: secrets, bundle, where files lie, where it starts from."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import structlog

from service.folders import checkpoints_place, output_place
from service.patience import answered
from service.records import JobRow
from service.settings import Settings, secret_values
from service.states import ENDED_STATES
from service.store.port import ReconcilerStore
from workers.assignment import Storage
from workers.checkpoints import attempt_of, checkpoint_names
from workers.control.decisions import ControlSettings, phase_bounds_s
from workers.control.launch import Launch
from workers.errors import BundleError, UserCodeError
from workers.spec import JobSpec
from workers.spec_parts import InitFrom, Secret
from workers.storage_urls import join, open_storage

log = structlog.get_logger("concertina.reconciler")


class Launching:
    """Resolves rows. ``scratch`` is this installation's private folder on every node."""

    def __init__(self, settings: Settings, store: ReconcilerStore, scratch: Path) -> None:
        self._settings, self._store, self._scratch = settings, store, scratch

    async def launch(self, job: JobRow) -> Launch:
        """Everything that a controller of this job must know. Never log the result: it holds secrets.

        Raises JobError when something that the spec names is not there (any more).
        """
        spec, storage = job.spec, self._settings.storage_url
        bundle_file, bundle_sha256 = None, None
        if spec.bundle is not None:
            row = await self._store.bundle(spec.bundle)
            if row is None or await answered(partial(open_storage(storage, root=storage).size, row.key)) is None:
                raise BundleError(f"bundle {spec.bundle} is not in storage; upload it again and submit anew")
            bundle_file, bundle_sha256 = join(storage, row.key), row.sha256
        return Launch(
            spec=spec,
            storage=Storage(
                checkpoints=checkpoints_place(storage, job.id),
                output=output_place(storage, job.id),
                init_from=await self._init_from(job),
                options=self._settings.storage_options,
                root=storage,
            ),
            scratch=str(self._scratch),
            env=_filled(spec),
            bundle_file=bundle_file,
            bundle_sha256=bundle_sha256,
            lease_s=self._settings.lease_s,
            install_s=self._settings.install_s,
            bounds=self._settings.scratch_bounds,
            restart_after=job.restart_after,
            settings=_control_settings(self._settings),
        )

    async def _init_from(self, job: JobRow) -> str | None:
        """The checkpoint to start from; None where it is gone, but the job may have what it needed of it already.

        Whether it has, only a start shows: one from the beginning fails where this is None.
        """
        wish = job.spec.init_from
        if wish is None:
            return None
        try:
            return await self._source(wish)
        except UserCodeError as error:
            # A controller that succeeds another adopts workers which have read it.
            if job.term <= 1 and not await answered(lambda: self._has_own_checkpoint(job)):
                raise
            log.warning("init_from is gone", job=job.id, term=job.term, why=error.message)
            return None

    def _has_own_checkpoint(self, job: JobRow) -> bool:
        # Whether it can be read, the start shows.
        names = checkpoint_names(
            open_storage(checkpoints_place(self._settings.storage_url, job.id), root=self._settings.storage_url)
        )
        return any(attempt_of(name) > job.restart_after for name in names)

    async def _source(self, wish: InitFrom) -> str:
        found = await self._store.checkpoints(wish.job)
        chosen = [info for info in found if wish.step in ("latest", info.step)]
        if not found:
            raise UserCodeError(f"init_from: job {wish.job} has no checkpoint {await self._prospect(wish.job)}")
        if not chosen:
            has = ", ".join(str(info.step) for info in found)
            raise UserCodeError(
                f"init_from: job {wish.job} has no checkpoint of step {wish.step} (it has: {has}); choose one of these"
            )
        url, name = checkpoints_place(self._settings.storage_url, wish.job), chosen[-1].path
        if name not in await answered(lambda: checkpoint_names(open_storage(url, root=self._settings.storage_url))):
            raise UserCodeError(
                f"init_from: the checkpoint of step {chosen[-1].step} of job {wish.job} is not in storage ({url}); "
                "choose another step of it, or leave `init_from` out"
            )
        return join(url, name)

    async def _prospect(self, job_id: str) -> str:
        source = await self._store.job(job_id)
        if source is None or source.state in ENDED_STATES:
            return "and writes none any more; start from another job, or leave `init_from` out"
        return "yet; wait for its first (checkpoint.every_steps), then retry this job"


def _control_settings(settings: Settings) -> ControlSettings:
    return ControlSettings(
        liveness_s=settings.liveness_s,
        hold_s=settings.hold_s,
        place_s=settings.place_s,
        gather_s=settings.gather_s,
        evacuate_s=settings.evacuate_s,
        review_s=settings.review_s,
        phase_bounds_s=phase_bounds_s(
            install_s=settings.install_s,
            build_s=settings.build_s,
            data_s=settings.data_s,
            step_s=settings.step_s,
            eval_s=settings.eval_s,
        ),
    )


def _filled(spec: JobSpec) -> dict[str, str]:
    values = secret_values(spec.secret_names())
    filled = {}
    for name, value in spec.env.items():
        if isinstance(value, Secret) and value.secret not in values:
            raise UserCodeError(
                f"env.{name} asks for the secret {value.secret!r}, which is not in the service's environment; set a "
                f"variable of that name where `concertina serve` is started, at each replica, start it again, and "
                "retry the job"
            )
        filled[name] = values[value.secret] if isinstance(value, Secret) else value
    return filled
