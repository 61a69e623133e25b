"""The spine's promises under random kills, delays, lost and reordered calls, and dead controllers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control import simulation
from tests.control.simulated_faults import TARGETED, Fault
from tests.control.simulation import World
from workers.advisors import judging, scaling, shares
from workers.control import balance, compressing, relieve, sharing
from workers.control.regroup import MAX_LAUNCHES
from workers.status import Outcome

NUM_ROUNDS = 40
DEADLY = {Fault.KILL_ALL, Fault.KILL, Fault.KILL_TWO, Fault.STOP_PROCESS, Fault.KILL_ALL_BUT_ONE} | {
    *TARGETED,
    Fault.KILL_WITH_CONTROLLER,
    Fault.RAISE_AND_KILL,
    Fault.DAMAGE,
}
WISHES = {Fault.PAUSE, Fault.CANCEL}
FAULTS = [f for f in Fault if f not in WISHES]


@st.composite
def worlds(draw: st.DrawFn, faults: st.SearchStrategy[Fault]) -> World:
    low = draw(st.integers(1, 2))
    high = draw(st.integers(low, 4))
    return World(
        rng=random.Random(draw(st.integers(0, 2**32))),
        num_rounds=NUM_ROUNDS,
        workers_range=(low, high),
        want=draw(st.integers(low, high)),
        faults=bearable(draw(st.lists(faults, max_size=10))),
    )


def bearable(faults: list[Fault]) -> list[Fault]:
    """Without the losses that would be more than a job bears: it gives up where all its workers go again and again."""
    deadly = [n for n, fault in enumerate(faults) if fault in DEADLY]
    return [fault for n, fault in enumerate(faults) if n not in deadly[MAX_LAUNCHES:]]


def assert_whole(world: World) -> None:
    """The surviving state holds every round once, each as one generation committed it."""
    finals = [history for info, history in world.storage if info.is_final]
    assert finals, "the run ended without a final checkpoint"
    for history in finals:
        assert len(history) == NUM_ROUNDS
        assert len(set(history)) == NUM_ROUNDS
        rounds = {token: round for (_, round), token in world.tokens.items()}
        rounds |= {token: -token % 1000 for donated in world.donors.values() for token in donated}
        assert [rounds[token] for token in history] == list(range(1, NUM_ROUNDS + 1))


@pytest.mark.parametrize("fault", sorted(DEADLY | {Fault.KILL_CONTROLLER, Fault.CUT_OFF}))
def test_every_loss_is_survived_and_costs_no_step_while_one_worker_lives(fault: Fault) -> None:
    struck = 0
    for seed in range(12):
        rng = random.Random(seed)
        faults = [Fault.SCALE, fault] * 3
        world = World(rng=rng, num_rounds=NUM_ROUNDS, workers_range=(1, 4), want=1 + seed % 4, faults=faults)
        world.run(max_ticks=20_000)
        assert world.outcome is Outcome.SUCCEEDED
        assert_whole(world)
        # What the dead alone had committed is done again, and nothing else.
        assert world.was_empty or len(world.tokens) <= NUM_ROUNDS + world.num_deaths
        struck += world.struck.count(fault)
    assert struck > 0


@pytest.fixture
def often_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Controllers that look at the parts all the time."""
    monkeypatch.setattr(balance, "LEAST_STEPS", 1)
    monkeypatch.setattr(sharing, "MIN_LOADS", 1)
    monkeypatch.setattr(simulation, "SETTINGS", replace(simulation.SETTINGS, review_s=1.0))
    monkeypatch.setattr(compressing, "MIN_RUNS", 1)
    monkeypatch.setattr(compressing, "REVIEW_S", 1.0)
    monkeypatch.setattr(scaling, "MIN_STEPS", 1)
    monkeypatch.setattr(judging, "JUDGE_STEPS", 2)


@pytest.mark.usefixtures("often_shared")
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_ALL_BUT_ONE, Fault.KILL_CONTROLLER, Fault.USER_ERROR])
@pytest.mark.parametrize("is_relieved", [False, True])
def test_parts_that_change_again_and_again_cost_no_step(
    fault: Fault, is_relieved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_relieved:
        monkeypatch.setattr(shares, "STRAGGLES", 0.0)  # everybody holds the others up
        monkeypatch.setattr(relieve, "MOST", NUM_ROUNDS)
    num_shared = num_relieved = 0
    for seed in range(12):
        world = World(
            rng=random.Random(seed),
            num_rounds=NUM_ROUNDS,
            workers_range=(1, 4),
            want=1 + seed % 4,
            faults=[Fault.SCALE, fault] * 3,
            is_uneven=True,
        )
        world.run(max_ticks=20_000)
        assert world.outcome is Outcome.SUCCEEDED
        assert_whole(world)
        assert world.was_empty or len(world.tokens) <= NUM_ROUNDS + world.num_deaths
        num_shared += len(world.shared)
        num_relieved += len(world.relieved)
    assert num_shared >= 5
    assert (num_relieved >= 5) is is_relieved


@pytest.mark.usefixtures("often_shared")
@pytest.mark.parametrize("fault", sorted(DEADLY | {Fault.KILL_CONTROLLER, Fault.USER_ERROR}))
def test_schemes_that_change_again_and_again_cost_no_step(fault: Fault) -> None:
    num_compressed = 0
    for seed in range(12):
        world = World(
            rng=random.Random(seed),
            num_rounds=NUM_ROUNDS,
            workers_range=(2, 4),
            want=2 + seed % 3,
            faults=[Fault.SCALE, fault] * 3,
            has_slow_link=True,
        )
        world.run(max_ticks=20_000)
        assert world.outcome is Outcome.SUCCEEDED
        assert_whole(world)
        assert world.was_empty or len(world.tokens) <= NUM_ROUNDS + world.num_deaths
        num_compressed += len(world.compressed)
    assert num_compressed >= 5


@pytest.mark.parametrize("fault", [Fault.SCALE, Fault.CUT_RENDEZVOUS, Fault.CUT_OFF, Fault.KILL_ALL])
def test_a_controller_that_was_replaced_and_acts_on_does_nothing_to_the_run(fault: Fault) -> None:
    worlds = list(succeeded([Fault.REPLACE_CONTROLLER, fault] * 3))
    assert all(len(world.tokens) == NUM_ROUNDS for world in worlds if not world.num_deaths)
    assert sum(world.num_refused for world in worlds) > 100
    assert sum(world.num_withheld for world in worlds) > 0


def test_damage_that_only_a_worker_finds_costs_the_steps_since_the_checkpoint_before_and_is_nobodys_failure() -> None:
    worlds = list(succeeded([Fault.SCALE, Fault.DAMAGE] * 2))
    assert sum(len(world.passed_over) for world in worlds) >= 10
    for world in worlds:
        assert world.controller is not None
        assert world.controller.state.failures.num == 0


@settings(max_examples=100, deadline=None)
@given(worlds(st.sampled_from(FAULTS)))
def test_every_run_ends_with_every_round_committed_once(world: World) -> None:
    world.run(max_ticks=20_000)
    assert world.outcome is Outcome.SUCCEEDED
    assert_whole(world)


@settings(max_examples=50, deadline=None)
@given(worlds(st.sampled_from([f for f in FAULTS if f not in DEADLY | {Fault.EXPLOIT}])))
def test_no_round_is_committed_twice_while_no_worker_dies(world: World) -> None:
    world.run(max_ticks=20_000)
    assert world.outcome is Outcome.SUCCEEDED
    assert len(world.tokens) == NUM_ROUNDS
    assert_whole(world)


@settings(max_examples=50, deadline=None)
@given(worlds(st.sampled_from([f for f in Fault if f not in DEADLY])))
def test_a_pause_saves_every_committed_round(world: World) -> None:
    world.faults.append(Fault.PAUSE)
    world.run(max_ticks=20_000)
    assert world.outcome in (Outcome.PAUSED, Outcome.SUCCEEDED, Outcome.CANCELLED)
    assert not world.workers, "everything is released"
    if world.outcome is Outcome.PAUSED and world.tokens and not world.donors:
        saved = max(len(history) for _, history in world.storage)
        assert saved == len(world.tokens)


@settings(max_examples=50, deadline=None)
@given(worlds(st.sampled_from(list(Fault))))
def test_every_wish_is_met_under_any_fault(world: World) -> None:
    world.faults.append(Fault.CANCEL)
    world.run(max_ticks=20_000)
    assert world.outcome in (Outcome.PAUSED, Outcome.SUCCEEDED, Outcome.CANCELLED)
    assert not world.workers


def succeeded(faults: Sequence[Fault]) -> Iterator[World]:
    """Worlds of other chances and sizes, each after a whole run to its end through these faults."""
    for seed in range(12):
        world = World(
            rng=random.Random(seed), num_rounds=NUM_ROUNDS, workers_range=(1, 4), want=1 + seed % 4, faults=list(faults)
        )
        world.run(max_ticks=20_000)
        assert world.outcome is Outcome.SUCCEEDED
        assert_whole(world)
        yield world


@pytest.mark.parametrize(
    "fault", sorted(DEADLY | {Fault.KILL_CONTROLLER, Fault.REPLACE_CONTROLLER, Fault.SCALE, Fault.CUT_RENDEZVOUS})
)
def test_who_stands_at_a_line_goes_on_whatever_happens_there(fault: Fault) -> None:
    assert sum(world.num_stood for world in succeeded([Fault.LINE, fault, Fault.LINE] * 3)) > 5


@pytest.mark.parametrize("fault", sorted(DEADLY | {Fault.KILL_CONTROLLER, Fault.USER_ERROR, Fault.CUT_RENDEZVOUS}))
def test_a_state_taken_over_from_another_job_is_never_lost_for_the_one_given_up(fault: Fault) -> None:
    num_taken = 0
    for world in succeeded([Fault.EXPLOIT, fault, Fault.SCALE] * 2):
        final, history = next(saved for saved in reversed(world.storage) if saved[0].is_final)
        taken = world.donors.get(f"donated/{final.settings}", ())
        assert history[: len(taken)] == taken
        assert all(token > 0 for token in history[len(taken) :])
        num_taken += bool(taken)
    assert num_taken > 0
