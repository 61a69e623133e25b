"""Workers that do not answer, or cannot be called: who is taken for lost, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control.desk import Desk
from workers.control.decisions import AskHead, AskNode, KillWorker
from workers.control.membership import LATE_TURN_S
from workers.control.pace import TURN_S
from workers.control.reach import MARGIN_S
from workers.status import Phase, StopCause


@pytest.mark.parametrize(
    ("num_workers", "num_silent", "sees_nodes", "waited_s", "is_killed"),
    [
        (2, 1, False, 12, True),
        (2, 2, False, 12, False),
        (2, 2, False, 32, True),
        (2, 2, True, 12, True),
        (1, 1, False, 12, False),
        (1, 1, False, 32, True),
        (1, 1, True, 12, True),
    ],
)
def test_silence_is_judged_by_whether_another_worker_or_the_node_answers(
    num_workers: int, num_silent: int, sees_nodes: bool, waited_s: int, is_killed: bool
) -> None:
    desk = Desk()
    silent = tuple(desk.started(num_workers)[-num_silent:])
    desk.sees_nodes = sees_nodes
    for _ in range(waited_s):
        desk.turn(after_s=1.0, silent=silent)
        if desk.of(KillWorker):
            break
    assert len(desk.of(KillWorker)) == (num_silent if is_killed else 0)


def test_a_node_is_not_asked_while_another_worker_answers() -> None:
    desk = Desk()
    desk.started(2)
    while not desk.of(KillWorker):
        desk.turn(silent=("1.2",))
        assert desk.of(AskNode) == []


@pytest.mark.parametrize(("sees_nodes", "is_killed"), [(True, True), (False, False)])
def test_who_never_answered_its_new_controller_is_given_up_as_soon_where_its_node_answers(
    sees_nodes: bool, is_killed: bool
) -> None:
    desk = Desk(term=2)
    desk.listed, desk.nodes, desk.sees_nodes = ("1.1",), {"1.1": "n"}, sees_nodes
    for _ in range(12):
        desk.turn(after_s=1.0)
        if desk.of(KillWorker):
            break
    assert bool(desk.of(KillWorker)) == is_killed


def test_a_node_that_answered_before_the_silence_proves_nothing() -> None:
    desk = Desk()
    desk.started(1)
    desk.nodes_seen_s = {"n": desk.now + 1.0}
    for _ in range(20):
        desk.turn(after_s=1.0, silent=("1.1",))
        assert desk.of(KillWorker) == []


def test_when_the_network_to_a_node_is_back_its_worker_has_time_to_answer_too() -> None:
    desk = Desk()
    desk.started(1)
    for _ in range(20):
        desk.turn(after_s=1.0, silent=("1.1",))
    desk.sees_nodes = True
    for _ in range(3):
        desk.turn(after_s=1.0, silent=("1.1",))
        assert desk.of(KillWorker) == []
    desk.turn(after_s=1.0)
    assert desk.state.workers["1.1"].kill is None
    desk.sees_nodes = False
    for _ in range(20):
        desk.turn(after_s=1.0, silent=("1.1",))
        assert desk.of(KillWorker) == []


@pytest.mark.parametrize(("turn_s", "late_s"), [(TURN_S, 0.0), (0.5, 1.0), (1.0, 2.0), (LATE_TURN_S, 4.0)])
def test_who_falls_silent_is_given_up_within_liveness_s_or_two_turns_later_where_they_are_slow(
    turn_s: float, late_s: float
) -> None:
    """One turn in which Ray's head is asked, one that has its answer."""
    desk = Desk()
    desk.started(2)
    silent_since_s, limit_s = desk.now, desk.state.settings.liveness_s
    while not desk.of(KillWorker):
        desk.turn(after_s=turn_s, silent=("1.2",))
    assert limit_s - MARGIN_S < desk.now - silent_since_s <= limit_s + late_s + 1e-6


@pytest.mark.parametrize(("silent", "waited_s", "is_killed"), [(("1.2",), 4, True), (("1.1", "1.2"), 9, False)])
def test_whoever_refuses_calls_is_gone_soon_unless_all_do(
    silent: tuple[str, ...], waited_s: int, is_killed: bool
) -> None:
    desk = Desk()
    desk.started(2)
    for _ in range(waited_s):
        desk.turn(after_s=1.0, silent=silent, is_refusing=True)
    assert [kill.worker_id for kill in desk.of(KillWorker) if isinstance(kill, KillWorker)] == ["1.2"] * is_killed


def test_whoever_refuses_calls_is_gone_at_once_where_the_group_broke_too() -> None:
    desk = Desk()
    desk.started(2)
    desk.stop("1.1", StopCause.PEER)
    for _ in range(4):
        desk.turn(after_s=0.3, silent=("1.2",), is_refusing=True)
    assert desk.state.workers["1.2"].kill == "refused to be called for 0.9 s"


@pytest.mark.parametrize(("has_parted", "is_stuck"), [(False, False), (True, True)])
def test_a_newcomer_waits_as_long_as_the_others_hand_over_in_their_old_group(has_parted: bool, is_stuck: bool) -> None:
    desk = Desk()
    old = desk.started(2)
    generation = desk.plan.generation
    desk.direction = replace(desk.direction, num_workers=3)
    desk.turn()
    desk.say("1.3", Phase.READY)
    desk.turn()
    assert desk.plan.worker_ids == (*old, "1.3")
    long_s = desk.state.settings.phase_bounds_s[Phase.RENDEZVOUS] + 1.0
    desk.say("1.3", Phase.RENDEZVOUS, plan=desk.plan, generation=desk.plan.generation, phase_age_s=long_s)
    for worker_id in old:
        held_in = desk.plan.generation if has_parted else generation
        desk.say(worker_id, Phase.EXCHANGE, plan=desk.plan, generation=held_in, phase_age_s=long_s)
    desk.turn()
    assert desk.state.is_broken is is_stuck


def test_whoever_can_be_called_again_in_time_stays() -> None:
    desk = Desk()
    desk.started(2)
    for is_refusing in [True, False] * 4:
        desk.turn(after_s=1.5, silent=("1.2",) if is_refusing else (), is_refusing=is_refusing)
        assert desk.of(KillWorker) == []


def test_a_late_turn_excuses_silence() -> None:
    desk = Desk()
    desk.started(2)
    desk.turn(after_s=40.0, silent=("1.1", "1.2"))
    assert desk.of(KillWorker) == []


@pytest.mark.parametrize("is_refusing", [False, True])
def test_nobody_is_left_behind_before_rays_head_has_answered(is_refusing: bool) -> None:
    desk = Desk()
    desk.started(3)
    desk.sees_head = False
    for _ in range(30):
        desk.turn(after_s=1.0, silent=("1.2", "1.3"), is_refusing=is_refusing)
        assert desk.of(KillWorker) == []
    assert desk.of(AskHead)
    desk.sees_head = True
    desk.turn(after_s=0.1, silent=("1.2", "1.3"), is_refusing=is_refusing)
    desk.turn(after_s=0.1, silent=("1.2", "1.3"), is_refusing=is_refusing)
    assert {kill.worker_id for kill in desk.of(KillWorker) if isinstance(kill, KillWorker)} == {"1.2", "1.3"}


def test_an_answer_from_before_the_silence_proves_nothing() -> None:
    desk = Desk()
    desk.started(2)
    desk.head_seen_s, desk.sees_head = desk.now + 9.0, False
    for _ in range(20):
        desk.turn(after_s=1.0, silent=("1.2",))
        assert desk.of(KillWorker) == []


@pytest.mark.parametrize("is_refusing", [False, True])
def test_a_controller_that_was_cut_off_itself_gives_the_others_time_to_answer(is_refusing: bool) -> None:
    desk = Desk()
    desk.started(2)
    desk.sees_head = False
    for _ in range(30):
        desk.turn(after_s=1.0, silent=("1.2",), is_refusing=is_refusing)
    desk.sees_head = True
    desk.turn(after_s=0.1, silent=("1.2",), was_cut_off=True)
    for _ in range(9):
        desk.turn(after_s=1.0, silent=("1.2",))
        assert desk.of(KillWorker) == []
    for _ in range(3):
        desk.turn(after_s=1.0, silent=("1.2",))
    assert desk.state.workers["1.2"].kill


def test_after_a_cut_of_its_own_the_first_answer_of_a_newcomer_condemns_nobody() -> None:
    desk = Desk(want=2)
    desk.turn()
    desk.turn()
    desk.say("1.1", Phase.READY)
    desk.turn()
    desk.sees_head, has_asked = False, False
    for _ in range(int(desk.state.settings.liveness_s) + 1):
        desk.turn(after_s=1.0, silent=("1.1",))
        has_asked |= bool(desk.of(AskHead))
    desk.sees_head = True
    desk.say("1.2", Phase.READY)
    desk.turn(after_s=0.1, silent=("1.1",), was_cut_off=has_asked)
    for _ in range(3):
        desk.turn(after_s=0.1, silent=("1.1",))
        assert desk.of(KillWorker) == []
