"""A job that tells too much of itself: what leaves its worker stays bounded, and the cut is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.group import TERM, Group
from tests.training.tasks import Regression, Script, mlp, mse
from workers.errors import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS, failure_of
from workers.plan import PlanId
from workers.secrets import Secrets
from workers.status import Acknowledged, Phase, RoundRecord
from workers.task import TrainingTask
from workers.training import evaluate as evaluation
from workers.training.exchange.vector import MAX_USER_VALUES
from workers.training.log_limit import BURST_BYTES, MAX_BEHIND_BYTES, RATE_BYTES_S, Budget, begin_at
from workers.training.logs import KEPT_BYTES, LEAST_FREED_BYTES, LogReader
from workers.training.mailbox import Mailbox
from workers.training.records import MAX_NAMES

LINE = b"a line of sixty-four bytes, as a progress bar would write it...\n"


def record(round: int, **values: float) -> RoundRecord:
    return RoundRecord(
        lineage=1, round=round, generation=1, plan_id=PlanId(1, 1), cursor=round, samples=1, time=0.0, values=values
    )


def log_of(path: Path, num_bytes: int, begin: int = 0) -> LogReader:
    """A log with so many bytes, of which those before ``begin`` take no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(begin)
        file.seek(begin)
        file.write(LINE * ((num_bytes - begin) // len(LINE)))
    return LogReader(path)


def test_a_log_in_a_hurry_is_delivered_at_its_rate() -> None:
    budget = Budget()
    assert budget.take(10**9, 0.0) == BURST_BYTES
    assert budget.take(10**9, 0.0) == 0
    taken = sum(budget.take(128 * 2**10, n / 10) for n in range(1, 601))
    assert taken == pytest.approx(60 * RATE_BYTES_S, rel=0.01)
    budget.put(5)
    assert budget.take(10**9, 60.0) == pytest.approx(5, abs=1)


def test_a_log_that_is_too_far_ahead_goes_on_with_its_newest_lines(tmp_path: Path) -> None:
    logs = log_of(tmp_path / "w.log", MAX_BEHIND_BYTES + 64 * 100)
    assert begin_at(logs, 64 * 100) == 64 * 100
    begin = begin_at(logs, 0)
    assert logs.size() - MAX_BEHIND_BYTES // 2 <= begin < logs.size()
    (chunk,) = logs.chunks(begin, 0, "1.1", 1000)
    assert (chunk.offset, chunk.data) == (begin, LINE * (1000 // len(LINE)))


def test_a_skip_never_begins_within_a_secret(tmp_path: Path) -> None:
    key = "BEGIN KEY\nfirst part\nsecond part\nEND KEY"
    path = tmp_path / "w.log"
    path.write_bytes(b"x" * 100 + key.encode() + b" was used\nnext\n")
    logs = LogReader(path, Secrets((key,)))
    for offset in range(100 + len(key)):
        assert path.read_bytes()[logs.line_after(offset) :] == b"next\n"


def test_what_was_delivered_gives_its_room_on_the_disk_back(tmp_path: Path) -> None:
    end = KEPT_BYTES + LEAST_FREED_BYTES
    logs = log_of(tmp_path / "w.log", end)
    before = os.stat(logs.path).st_blocks
    logs.free_delivered(end)
    if os.stat(logs.path).st_blocks == before:
        pytest.skip("this file system has no holes")
    assert os.stat(logs.path).st_blocks * 512 <= KEPT_BYTES + 2**16
    assert logs.path.stat().st_size == end
    (chunk,) = logs.chunks(end - KEPT_BYTES, 0, "1.1", 10)
    assert chunk.data.strip(LINE) == b""


def test_a_huge_error_is_told_by_its_ends() -> None:
    failure = failure_of(ValueError("begin" + "x" * 10_000_000 + "end"))
    assert len(failure.message) < MAX_MESSAGE_CHARS + 100
    assert len(failure.traceback) < MAX_TRACEBACK_CHARS + 100
    assert failure.message.startswith("begin")
    assert failure.message.endswith("end")
    assert failure.num_cut > 19_000_000
    mailbox = Mailbox("1.1")
    mailbox.failed(failure)
    assert [cut.what for cut in mailbox.status(Acknowledged(), (), wants_records=False).cuts] == ["error"]


def test_names_that_change_with_every_step_stay_few() -> None:
    mailbox = Mailbox("1.1")
    for n in range(1, 1001):
        mailbox.publish(record(n, loss=1.0, **{f"user.step_{n}": 1.0, "user.margin": 2.0}))
    told = mailbox.untold()
    assert len({name for r in told for name in r.values if name.startswith("user.")}) == MAX_NAMES
    assert told[-1].values == {"loss": 1.0, "user.margin": 2.0}
    assert [cut.what for cut in mailbox.status(Acknowledged(), (), wants_records=False).cuts] == ["names"]


def test_thousands_of_values_are_cut_to_the_first_and_training_goes_on() -> None:
    def loss(model: Any, batch: Any) -> Any:
        return mse(model, batch), {f"v{n:05}": float(n) for n in range(10_000)} | {"n" * 200: 1.0}

    script = Script()
    script.task = lambda: TrainingTask(
        model=mlp(),
        train_data=Regression(8, torch.float32, script),
        eval_data=Regression(4, torch.float32, script),
        loss=loss,
        evaluate=lambda model, batch: {f"e{n:05}": float(n) for n in range(10_000)},
    )
    with Group(script, steps=2, batch={"global_size": 4}) as group:
        workers = group.start(2)
        group.train(workers)
        statuses = group.await_done(workers)
        values = group.records[1, 2].values
    assert [name for name in values if name.startswith("user.")] == [f"user.v{n:05}" for n in range(MAX_USER_VALUES)]
    assert len([name for name in values if name.startswith("eval.")]) == evaluation.MAX_VALUES
    assert values["user.v00003"] == pytest.approx(3.0)
    for status in statuses.values():
        assert {cut.what for cut in status.cuts} == {"values", "evaluation"}
        assert status.phase is Phase.DONE


def test_a_worker_whose_log_runs_away_answers_polls_with_little_of_it_and_says_so() -> None:
    script = Script()
    script.task = lambda: TrainingTask(model=mlp(), train_data=Regression(8, torch.float32, script), loss=mse)
    with Group(script, steps=2, batch={"global_size": 4}) as group:
        (worker,) = group.start(1)
        log_of(Path(group.assignment(worker).log_file), 4 * MAX_BEHIND_BYTES)
        polled = [group.sessions[worker].poll(TERM, None, Acknowledged(), False) for _ in range(30)]
    assert sum(len(chunk.data) for status in polled for chunk in status.logs) < 2 * BURST_BYTES
    assert polled[0].logs[0].offset >= 3 * MAX_BEHIND_BYTES
    assert [cut.what for cut in polled[-1].cuts] == ["logs"]


def test_an_error_of_megabytes_is_cut_in_the_log_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    def loss(model: Any, batch: Any) -> Any:
        raise ValueError("begin" + "x" * 10_000_000 + "end")

    script = Script()
    script.task = lambda: TrainingTask(model=mlp(), train_data=Regression(8, torch.float32, script), loss=loss)
    with Group(script, steps=2, batch={"global_size": 4}) as group:
        workers = group.start(1)
        group.train(workers)
        statuses = group.await_break(workers)
    told = capsys.readouterr().err
    assert "ValueError: begin" in told
    assert told.rstrip().endswith("end")
    assert len(told) < MAX_TRACEBACK_CHARS + 1000
    assert {cut.what for status in statuses.values() for cut in status.cuts} == {"error"}
