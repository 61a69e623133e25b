"""What bounds a phase of reading is some samples, also where a whole batch is read to learn how long they are."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tests.training import ragged
from tests.training.group import Group
from tests.training.ragged import Sample, Sequences, sequence_task
from tests.training.tasks import Script
from workers.status import Phase
from workers.task import TrainingTask
from workers.training import mailbox
from workers.training.lengths import _NUM_BETWEEN_CHECKS

NUM_SAMPLES, SAMPLE_S = 300, 10.0


def test_a_batch_that_is_read_for_lengths_is_many_times_a_micro_batch_and_not_ended_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, ages = [0.0], []
    monkeypatch.setattr(mailbox, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))

    def length(sample: Sample) -> int:
        now[0] += SAMPLE_S
        ages.extend(status.phase_age_s for status in group.poll().values() if status.phase is Phase.DATA)
        return ragged.length(sample)

    def task() -> TrainingTask:
        return sequence_task(train_data=Sequences(NUM_SAMPLES), length=length)

    batch = {"global_size": NUM_SAMPLES, "max_tokens": 10 * ragged.LONGEST}
    with Group(Script(task=task), samples=NUM_SAMPLES, batch=batch) as group:
        workers = group.start(1)
        group.train(workers)
        group.await_done(workers)
    assert len(ages) == NUM_SAMPLES
    assert max(ages) <= _NUM_BETWEEN_CHECKS * SAMPLE_S
