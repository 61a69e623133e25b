"""What goes wrong in the simulated world: each kind of fault, whom it waits for, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from tests.control.simulated_worker import SimWorker
from workers.run_settings import Donor, RunSettings
from workers.status import Phase, RunGoal

if TYPE_CHECKING:
    from tests.control.simulation import World

Strike: TypeAlias = "Callable[[World], None]"


class Fault(StrEnum):
    KILL = "kill"
    KILL_TWO = "kill_two"
    KILL_ALL = "kill_all"
    DAMAGE = "damage"
    STOP_PROCESS = "stop_process"
    SLOW = "slow"
    USER_ERROR = "user_error"
    KILL_CONTROLLER = "kill_controller"
    SLOW_CONTROLLER = "slow_controller"
    REPLACE_CONTROLLER = "replace_controller"
    SCALE = "scale"
    CUT_RENDEZVOUS = "cut_rendezvous"
    PAUSE = "pause"
    CANCEL = "cancel"
    KILL_RANK_0 = "kill_rank_0"
    KILL_RECEIVER = "kill_receiver"
    KILL_IN_RESIZE = "kill_in_resize"
    STOP_IN_RESIZE = "stop_in_resize"
    KILL_AT_FIRST_STEP = "kill_at_first_step"
    KILL_AT_LAST_STEP = "kill_at_last_step"
    KILL_ALL_BUT_ONE = "kill_all_but_one"
    KILL_WITH_CONTROLLER = "kill_with_controller"
    RAISE_AND_KILL = "raise_and_kill"
    CUT_OFF = "cut_off"
    RETUNE = "retune"
    EXPLOIT = "exploit"
    LINE = "line"


TARGETED: Mapping[Fault, Callable[[SimWorker], bool]] = {
    Fault.KILL_RANK_0: lambda w: w.group is not None and w.group.plan.members[0].worker_id == w.id,
    Fault.KILL_RECEIVER: lambda w: w.phase is Phase.SYNC and w.round is None,
    Fault.KILL_IN_RESIZE: lambda w: w.group is not None and w.held.pending is not None,
    Fault.STOP_IN_RESIZE: lambda w: w.group is not None and w.held.pending is not None,
    Fault.KILL_AT_FIRST_STEP: lambda w: w.phase is Phase.EXCHANGE and w.round == 0,
    Fault.KILL_AT_LAST_STEP: lambda w: w.round is not None and w.round >= w.world.num_rounds - 1,
}
"""Faults that wait for a worker of whom this holds, and strike it."""


def is_moment(world: World, fault: Fault) -> bool:
    """Whether there is somebody, or something, that the fault is meant for."""
    return fault not in TARGETED or bool(_targets(world, fault))


def strike(world: World, fault: Fault) -> None:
    """Let it happen; nothing does where there is nobody whom it could strike."""
    if fault not in TARGETED:
        _STRIKES[fault](world)
        return
    worker_id = world.rng.choice(_targets(world, fault))
    if fault is Fault.STOP_IN_RESIZE:
        world.workers[worker_id].is_frozen = True
    else:
        world.kill(worker_id)


def _targets(world: World, fault: Fault) -> list[str]:
    return [i for i, w in sorted(world.workers.items()) if not w.is_frozen and TARGETED[fault](w)]


def _some(world: World, num: int) -> list[SimWorker]:
    """That many workers, or as many as there are."""
    chosen = world.rng.sample(sorted(world.workers), min(num, len(world.workers)))
    return [world.workers[worker_id] for worker_id in chosen]


def _killing(how_many: Callable[[int], int]) -> Strike:
    def kill(world: World) -> None:
        for worker in _some(world, max(0, how_many(len(world.workers)))):
            world.kill(worker.id)

    return kill


def _damage(world: World) -> None:
    """Nobody is left, and the newest checkpoint, which was found whole, cannot be read any more."""
    if world.storage:
        world.damaged.add(max(world.storage, key=lambda stored: stored[0].order)[0].path)
    _killing(lambda num: num)(world)


def _stop_process(world: World) -> None:
    if heard := [worker for _, worker in sorted(world.workers.items()) if worker.seq]:
        world.rng.choice(heard).is_frozen = True


def _slow(world: World) -> None:
    for worker in _some(world, 1):
        worker.slow_until = world.now + world.rng.uniform(0.5, 4)


def _raise(world: World) -> None:
    for worker in _some(world, 1):
        world.num_user_errors += 1
        worker.user_error_next = True


def _raise_and_kill(world: World) -> None:
    if len(world.workers) > 1:
        raiser, victim = _some(world, 2)
        world.num_user_errors += 1
        raiser.user_error_next = True
        world.kill(victim.id)


def _kill_controller(world: World) -> None:
    world.controller = None


def _replace_controller(world: World) -> None:
    """It is taken for dead and lives: after a while it wakes, and acts on by what it knew then."""
    if (old := world.controller) is not None:
        old.resumes_s = world.now + world.rng.uniform(0.0, 3.0)
        old.ends_s = old.resumes_s + world.rng.uniform(1.0, 8.0)
        world.past.append(old)
        world.controller = None


def _kill_with_controller(world: World) -> None:
    _killing(lambda num: 1)(world)
    _kill_controller(world)


def _slow_controller(world: World) -> None:
    world.controller_resumes = world.now + world.rng.uniform(1, 6)


def _cut_off(world: World) -> None:
    """The controller's node loses Ray's head and some of the workers for longer than its patience with one."""
    world.out_of_reach = {worker.id for worker in _some(world, world.rng.randint(1, 3))}
    world.cut_until = world.now + world.rng.uniform(4, 8)


def _scale(world: World) -> None:
    world.want = world.rng.randint(*world.workers_range)


def _retune(world: World, donor: Donor | None = None) -> None:
    n = world.settings.n + 1 if world.settings else 1
    lr = world.rng.random() + 0.1
    world.settings = RunSettings(n=n, lr=lr, global_batch=8, actor="pbt", reason="planted", donor=donor)


def _exploit(world: World) -> None:
    """Another job offers a state of so many rounds; its rounds have negative tokens."""
    n = len(world.donors) + 1
    num_rounds = world.rng.randint(1, world.num_rounds - 1)
    donor = Donor(job_id="donor", path=f"donated/{n}", cursor=num_rounds * 8)
    world.donors[donor.path] = tuple(-(n * 1000 + round) for round in range(1, num_rounds + 1))
    _retune(world, donor)


def _draw_line(world: World) -> None:
    """A line ahead of most, or behind them; whoever drew it decides when all stand there, sooner or later."""
    furthest = max((w.round or 0 for w in world.workers.values()), default=0)
    world.until = max(1, (furthest + world.rng.randint(-1, 8)) * 8 - world.rng.randint(0, 7))


def _cut_rendezvous(world: World) -> None:
    for group in world.groups.values():
        group.is_broken = group.is_broken or world.rng.random() < 0.5


def _pause(world: World) -> None:
    if world.goal is RunGoal.RUN:
        world.goal = RunGoal.PAUSE


def _cancel(world: World) -> None:
    world.goal = RunGoal.CANCEL


_STRIKES: Mapping[Fault, Strike] = {
    Fault.KILL: _killing(lambda num: 1),
    Fault.KILL_TWO: _killing(lambda num: 2),
    Fault.KILL_ALL: _killing(lambda num: num),
    Fault.DAMAGE: _damage,
    Fault.KILL_ALL_BUT_ONE: _killing(lambda num: num - 1),
    Fault.STOP_PROCESS: _stop_process,
    Fault.SLOW: _slow,
    Fault.USER_ERROR: _raise,
    Fault.RAISE_AND_KILL: _raise_and_kill,
    Fault.KILL_CONTROLLER: _kill_controller,
    Fault.KILL_WITH_CONTROLLER: _kill_with_controller,
    Fault.SLOW_CONTROLLER: _slow_controller,
    Fault.REPLACE_CONTROLLER: _replace_controller,
    Fault.CUT_OFF: _cut_off,
    Fault.SCALE: _scale,
    Fault.RETUNE: _retune,
    Fault.EXPLOIT: _exploit,
    Fault.LINE: _draw_line,
    Fault.CUT_RENDEZVOUS: _cut_rendezvous,
    Fault.PAUSE: _pause,
    Fault.CANCEL: _cancel,
}
