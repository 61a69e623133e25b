"""The session as the actor sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.group import TERM, Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.errors import Reason, StaleTermError
from workers.plan import PlanId
from workers.status import Acknowledged, FailedSave, Phase
from workers.task import TrainingTask
from workers.training.session import Session, log_path


def test_importing_the_session_loads_neither_torch_nor_ray() -> None:
    code = "import workers.training.session, sys; print(sorted({'torch', 'ray'} & set(sys.modules)))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert seen.stdout.strip() == "[]"


def test_what_is_loaded_ahead_is_none_of_the_garbage_collectors_and_what_comes_after_is() -> None:
    code = (
        "import gc; from workers.training.session import load; load(); "
        "print(gc.isenabled(), gc.get_freeze_count() > 20 * len(gc.get_objects()))"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert seen.stdout.strip() == "True True"


def gated(**more: Any) -> Script:
    script = Script(gate=Gate())
    script.task = lambda: TrainingTask(model=mlp(), train_data=Regression(20, torch.float32, script), loss=mse, **more)
    return script


def test_polls_are_answered_while_user_code_blocks() -> None:
    script = gated()
    assert script.gate is not None
    with Group(script, steps=3, batch={"global_size": 4}, resources={"gpus": 0}) as group:
        (worker,) = group.start(1)
        script.gate.close_at(6)
        group.train([worker])
        script.gate.await_waiting(1)
        status = group.poll()[worker]
        assert (status.phase, status.round, status.generation) == (Phase.DATA, 1, 1)
        assert status.build is not None
        assert status.build.total_samples == 12
        script.gate.open()
        status = group.await_done([worker])[worker]
        assert status.is_finished
        assert status.generation is None
        assert set(group.records[1, 3].values) == {
            "loss",
            "lr",
            "global_batch",
            "micro_batch",
            "workers",
            "samples_per_s",
            "grad_norm",
            "data_s",
            "compute_s",
            "exchange_s",
            "exposed_s",
            "hidden_s",
            "encode_s",
            "decode_s",
            "optimizer_s",
            "step_s",
            "wire_bytes",
            "memory_bytes",
        }


def test_a_superseded_controller_is_told_so_by_every_call() -> None:
    with Group(gated(), steps=3, batch={"global_size": 4}) as group:
        (worker,) = group.start(1)
        session = group.sessions[worker]
        session.poll(TERM + 1, None, Acknowledged(), False)
        with pytest.raises(StaleTermError):
            session.poll(TERM, None, Acknowledged(), False)
        with pytest.raises(StaleTermError):
            session.halt(TERM, PlanId(1, 1))
        with pytest.raises(StaleTermError):
            session.stop(TERM, save=False)
        session.stop(TERM + 1, save=False)
        assert session.wait_ended(20)
        group.sessions.clear()


def test_a_stop_may_come_before_the_start_and_more_than_once() -> None:
    with Group(gated(), steps=3, batch={"global_size": 4}) as group:
        (worker,) = group.start(1)
        session = group.sessions[worker]
        session.stop(TERM, save=False)
        session.stop(TERM, save=True)
        assert session.wait_ended(20)


def test_an_entrypoint_that_fails_is_told_as_data() -> None:
    script = Script()

    def broken() -> TrainingTask:
        raise RuntimeError("no such folder: /data")

    script.task = broken
    with Group(script, steps=3, batch={"global_size": 4}) as group:
        (worker,) = group.start(1)
        status = group.await_all(lambda s: s.phase is Phase.FAILED, [worker])[worker]
    assert status.failure is not None
    assert status.failure.reason is Reason.USER_ERROR
    assert "no such folder: /data" in status.failure.message
    assert 'raise RuntimeError("no such folder' in status.failure.traceback


def test_a_newcomer_waits_in_the_rendezvous_until_the_others_reach_their_boundary() -> None:
    script = gated()
    assert script.gate is not None
    with Group(script, steps=6, batch={"global_size": 4}) as group:
        first, newcomer = group.start(2)
        script.gate.close_at(6)
        group.train([first])
        script.gate.await_waiting(1)
        group.agree([first, newcomer])
        statuses = group.await_all(lambda s: s.phase is Phase.RENDEZVOUS, [newcomer])
        assert statuses[first].generation == 1
        assert statuses[newcomer].generation == 2
        assert statuses[newcomer].round is None
        script.gate.open()
        statuses = group.await_done([first, newcomer])
        assert {s.round for s in statuses.values()} == {6}


def test_a_newcomer_can_tell_of_the_rounds_before_it() -> None:
    script = gated(eval_data=Regression(20, torch.float32), evaluate=lambda model, batch: {"mse": mse(model, batch)})
    assert script.gate is not None
    with Group(script, steps=6, batch={"global_size": 4}, eval_every_steps=2) as group:
        first, newcomer = group.start(2)
        script.gate.close_at(6)  # in round 2, after which an evaluation is due
        group.train([first])
        script.gate.await_waiting(1)
        group.agree([first, newcomer])
        script.gate.open()
        statuses = group.await_done([first, newcomer])
    told = {i: [(r.round, "eval.mse" in r.values) for r in s.records] for i, s in statuses.items()}
    assert told[newcomer] == [(1, False), (2, True), (3, False), (4, True), (5, False), (6, True)]
    assert told[newcomer] == told[first]


def test_a_newcomer_leaves_a_rendezvous_that_is_halted() -> None:
    script = gated()
    assert script.gate is not None
    with Group(script, steps=6, batch={"global_size": 4}) as group:
        first, newcomer = group.start(2)
        script.gate.close_at(6)
        group.train([first])
        script.gate.await_waiting(1)
        group.agree([first, newcomer])
        group.await_all(lambda s: s.phase is Phase.RENDEZVOUS, [newcomer])
        group.halt([newcomer])
        script.gate.open()
        group.await_all(lambda s: s.phase is Phase.RENDEZVOUS or s.phase is Phase.STOPPED, [first])
        group.halt([first])
        group.train([first, newcomer])
        group.await_done([first, newcomer])
        losses = group.losses()
    assert len(losses) == 6


def test_nothing_that_a_worker_tells_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hunter2-hunter2"

    def loss(model: Any, batch: Any) -> torch.Tensor:
        raise ValueError(f"refused: {secret}")

    script = Script(task=lambda: TrainingTask(model=mlp(), train_data=Regression(20, torch.float32), loss=loss))
    with Group(script, steps=3, batch={"global_size": 4}, env={"TOKEN": {"secret": "X"}}) as group:
        group.env = {"TOKEN": secret}
        (worker,) = group.start(1)
        session = group.sessions[worker]
        assert isinstance(session, Session)
        group.train([worker])
        group.await_all(lambda s: s.phase is Phase.STOPPED, [worker])
        log = Path(log_path(group.assignment(worker)))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"token {secret}\n")
        session._mailbox.micro_changed(before=8, after=4, reason=f"out of memory at {secret}")
        failed = FailedSave(path="p", step=1, time=0.0, message=f"no access with {secret}")
        monkeypatch.setattr(session._mailbox, "_failed_saves", lambda: (failed,))
        status = group.poll()[worker]
    assert status.stop is not None
    assert status.stop.failure is not None
    told = [status.stop.failure.message, status.stop.failure.traceback, status.logs[0].data.decode()]
    told += [status.failed_saves[0].message, status.micro_changes[0].reason]
    assert [text for text in told if secret in text] == []
    assert all("***" in text for text in told)
