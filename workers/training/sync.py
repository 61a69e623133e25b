"""How members of a new group come to hold one state: compare, then take it from the plan's source."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

from workers.errors import CheckpointError, DonorError, JobError, UnreadableError, UserCodeError
from workers.plan import CheckpointSource, MemberSource, Plan
from workers.run_settings import Donor
from workers.spec_parts import InitFrom
from workers.storage_urls import join
from workers.training import loading, replicas, transfer
from workers.training.records import Untold
from workers.training.setup import Setup
from workers.training.state import LoadedState, TrainingState
from workers.training.world import World, WorldError

_NO_LINEAGE = -1
_NOTHING_SEEN = [0, 0]


def synchronise(setup: Setup, world: World, plan: Plan, untold: Callable[[], Untold]) -> Untold | None:
    """Give every member of the world the state of the plan's source; all of them call it.

    Members that hold the same state already keep it, and nothing but a few numbers travels; in any case they
    keep what they left out of gradients, which whoever takes the state does not get. With a
    state goes what its holder has to tell, so that every member can tell all that the store has not;
    the answer is what came here, None where nothing did.

    Raises WorldError, also rather than lose a commit that a member has and the source has not;
    ReplicaError where this rank says that it holds the same and does not, or nobody knows who does;
    UnreadableError where a checkpoint cannot be read, CheckpointError where it does not fit, DonorError for another's;
    UserCodeError where members built different tasks.
    """
    state = setup.state
    may_keep = world.size > 1 and state.lineage == plan.lineage
    seen = replicas.look(state, world, is_held=may_keep) if world.size > 1 else _NOTHING_SEEN
    told = [int(state.is_eval_due), fingerprint(setup), int(not state.residual.is_empty), state.num_asked]
    rows = world.gather([*_standing(state), *told, *seen])
    world.is_mixed = len({row[-2] for row in rows}) > 1
    _check_tasks(rows)
    source = _source_rank(plan, rows)
    begins = not isinstance(plan.source, MemberSource) and any(row[0] != plan.lineage for row in rows)
    if begins and world.rank == source:
        _begin(setup, plan)
    origin = rows[source]
    if not begins:
        _check_order(rows, source, plan)
        alike = {rank: row[-2:] for rank, row in enumerate(rows) if row[:3] == origin[:3]}
        replicas.compare(state, world, plan, alike)
    came: Untold | None = None
    if begins or any(row[:3] != origin[:3] for row in rows):
        came = _take(state, world, source, untold, is_mine=not begins and rows[world.rank][:2] == origin[:2])
        state.is_eval_due |= any(row[3] for row in rows if row[:2] == origin[:2])
    else:
        state.is_eval_due = any(row[3] for row in rows)
    if not begins:
        holders = [row for row in rows if row[:2] == origin[:2]]
        state.residual.is_owed = any(row[5] for row in holders)
        state.num_asked = min(row[6] for row in holders)  # one may have left before a checkpoint that others saved
    state.generation = plan.generation
    return came


def _check_tasks(rows: list[list[int]]) -> None:
    if any(row[4] != rows[0][4] for row in rows):
        raise UserCodeError(
            "workers built different tasks from the same config: their parameters, their number of samples or "
            "their optimizers differ; let the entrypoint depend on nothing but its config"
        )


def fingerprint(setup: Setup) -> int:
    """A number that tells different tasks apart: names, shapes and formats, samples, optimizer."""
    model, optimizer = setup.state.model, setup.state.optimizer
    parts = [f"{n} {tuple(t.shape)} {t.dtype}" for n, t in [*model.named_parameters(), *model.named_buffers()]]
    groups = [len(group["params"]) for group in optimizer.param_groups]
    parts.append(f"{setup.order.num_samples} {setup.num_eval} {type(optimizer).__name__} {groups}")
    return zlib.crc32("\n".join(parts).encode())


def _standing(state: TrainingState) -> list[int]:
    lineage = _NO_LINEAGE if state.lineage is None else state.lineage
    return [lineage, state.round, state.num_redraws]


def _source_rank(plan: Plan, rows: list[list[int]]) -> int:
    """The rank whose state holds. A source that leaves by this very plan has told its state to all that stay."""
    if not isinstance(plan.source, MemberSource):
        return 0
    member = plan.member(plan.source.worker_id)
    if member is not None:
        return member.rank
    return max(range(len(rows)), key=lambda rank: (rows[rank][:3], -rank))


def _check_order(rows: list[list[int]], source: int, plan: Plan) -> None:
    lineage, round = rows[source][:2]
    if lineage == _NO_LINEAGE:
        raise WorldError(f"the source of plan {plan.id} holds no state")
    ahead = [rank for rank, row in enumerate(rows) if row[0] == lineage and row[1] > round]
    if ahead:
        raise WorldError(f"rank {ahead[0]} has committed rounds after {round}, which the source of {plan.id} has not")


def _take(
    state: TrainingState, world: World, source: int, untold: Callable[[], Untold], *, is_mine: bool
) -> Untold | None:
    """Take the state of rank ``source``; ``is_mine``: this rank holds it already, and all take it as others do not."""
    if world.size == 1:
        return None
    if world.rank == source:
        transfer.send(world, {"state": state.export(), "untold": untold()})
        return None
    received = transfer.receive(world, source)
    state.adopt(received["state"])
    if not is_mine:
        state.residual.load({}, is_owed=received["state"]["is_owed"])
    came: Untold = received["untold"]
    return came


def _begin(setup: Setup, plan: Plan) -> None:
    """Make the first state of a lineage."""
    state, storage = setup.state, setup.assignment.storage
    if isinstance(plan.source, CheckpointSource):
        place = join(storage.checkpoints, plan.source.path)
        _restore(state, _read(place), place, plan)
    elif isinstance(plan.source, Donor):
        _take_over(state, plan.source, plan)
    elif state.round > 0 and state.lineage is not None:
        raise JobError(f"plan {plan.id} starts afresh, but its first worker has trained; start another worker")
    elif setup.spec.init_from is not None:
        _initialise(state, setup.spec.init_from, storage.init_from, plan)
        _check_rest(state.cursor, setup.total_samples)
    state.lineage = plan.lineage
    state.num_redraws = state.num_skipped = 0
    state.num_asked, state.stands_at = plan.saves, None
    state.is_eval_due = setup.evaluation is not None and state.cursor >= setup.total_samples


def _take_over(state: TrainingState, donor: Donor, plan: Plan) -> None:
    """Raises DonorError, with the state as it was."""
    try:
        place = join(donor.url, donor.path)
        _restore(state, loading.load_checkpoint(place), place, plan)
    except CheckpointError as error:
        raise DonorError(f"the state of job {donor.job_id} cannot be taken over: {error.message}") from error
    state.metric = None


def _read(place: str) -> LoadedState:
    try:
        return loading.load_checkpoint(place)
    except CheckpointError as error:
        raise UnreadableError(error.message) from error


def _restore(state: TrainingState, loaded: LoadedState, place: str, plan: Plan) -> None:
    """What was left out of changes of parameters is dropped where gradients travel, and the other way round."""
    loading.check_fits(state.model.state_dict(), loaded.model, place)
    if loaded.is_of_changes != (plan.exchange.scheme == "local_steps"):
        loaded = replace(loaded, residual={}, outer={})
    state.restore(loaded)


def _check_rest(cursor: int, total_samples: int) -> None:
    if cursor >= total_samples:
        raise UserCodeError(
            f"init_from: the checkpoint is of sample {cursor}, and the job ends at {total_samples}: nothing is left to "
            "train on; give it more steps, epochs or samples, or `state: weights` to begin at sample 0"
        )


def _initialise(state: TrainingState, wish: InitFrom, place: str | None, plan: Plan) -> None:
    """Apply the job's ``init_from``; ``place`` is None where the service did not find it (any more).

    Raises UserCodeError: a job that begins without the weights that it was to begin with is no success.
    """
    if place is None:
        raise UserCodeError(
            f"init_from: the checkpoint {wish.step} of job {wish.job} is gone, and this job has none of its own to "
            "go on from; submit it anew with a checkpoint that is there, or without `init_from`"
        )
    try:
        if wish.state == "all":
            _restore(state, loading.load_checkpoint(place), place, plan)
            return
        weights = loading.load_weights(place)
        loading.check_fits(state.model.state_dict(), weights, place)
    except CheckpointError as error:
        raise UserCodeError(f"init_from: {error.message}") from error
    state.load_weights(weights)
