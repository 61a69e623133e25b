"""Peers that die or freeze in mid-exchange: survivors redo the round and end where an undisturbed run ends."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from tests.training import reference
from tests.training.group import ProcessGroup
from tests.training.rank import NUM_SAMPLES, await_true
from tests.training.tasks import Regression, mlp, mse
from workers.checkpoints import list_checkpoints
from workers.status import Phase, StopCause
from workers.storage_urls import open_storage
from workers.training.loading import load_checkpoint

BATCH, STEPS, LR = 12, 8, 0.05


def plain(steps: int = STEPS) -> reference.Reference:
    model = mlp(torch.float64)
    data = reference.batches(Regression(NUM_SAMPLES, torch.float64), BATCH, 0, steps)
    return reference.train(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), data, mse)


def job(steps: int = STEPS, gpus: int = 0) -> ProcessGroup:
    spec = {"steps": steps, "batch": {"global_size": BATCH}, "optimizer": {"lr": LR}, "resources": {"gpus": gpus}}
    return ProcessGroup(**spec)


def assert_as_undisturbed(group: ProcessGroup, steps: int = STEPS) -> None:
    expected = plain(steps)
    assert group.losses() == pytest.approx(expected.losses, abs=1e-10)
    final = list_checkpoints(open_storage(group.checkpoints))[-1]
    assert final.is_final
    saved = load_checkpoint(f"{group.checkpoints}/{final.path}").model
    assert all(torch.allclose(v, saved[k], atol=1e-10) for k, v in expected.model.state_dict().items())


def hold_in_exchange(group: ProcessGroup, victim: str, others: list[str], num_rounds: int) -> None:
    """Wait until the victim reads data of round ``num_rounds + 1`` and all others wait for its gradients."""
    await_true(group.gate(victim).waiting.exists, "the victim at its gate")
    statuses = group.await_all(lambda s: s.phase is Phase.EXCHANGE and s.round == num_rounds, others)
    assert all(s.stop is None for s in statuses.values())


def test_survivors_of_a_killed_peer_redo_the_round() -> None:
    with job() as group:
        workers = group.start(3)
        victim, others = workers[0], workers[1:]  # rank 0: nothing hangs on it
        group.gate(victim).close(3 * BATCH // 3)
        group.train(workers)
        hold_in_exchange(group, victim, others, num_rounds=3)
        os.kill(group.process_id(victim), signal.SIGKILL)
        group.forget(victim)
        statuses = group.await_break(others)
        assert StopCause.PEER in {s.stop.cause for s in statuses.values() if s.stop}
        assert {s.round for s in statuses.values()} == {3}
        group.train(others)
        group.await_done(others)
        assert_as_undisturbed(group)


def test_a_halt_frees_ranks_whose_peer_is_frozen() -> None:
    with job() as group:
        workers = group.start(3)
        victim, others = workers[1], [workers[0], workers[2]]
        group.gate(victim).close(2 * BATCH // 3)
        group.train(workers)
        hold_in_exchange(group, victim, others, num_rounds=2)
        os.kill(group.process_id(victim), signal.SIGSTOP)
        frozen = group.sessions.pop(victim)
        group.halt(others)
        statuses = group.await_all(lambda s: s.phase is Phase.STOPPED, others)
        assert {s.stop.cause for s in statuses.values() if s.stop} == {StopCause.ABORTED}
        group.train(others)
        group.await_done(others)
        group.sessions[victim] = frozen
        group.forget(victim)
        assert_as_undisturbed(group)
