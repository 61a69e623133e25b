"""What is worth an answer at once."""

from __future__ import annotations

import pytest

from workers.control.answers import Answers
from workers.status import JobSnapshot, Outcome, Phase, RunPhase, WorkerView


def snapshot(run: RunPhase, phase: Phase = Phase.COMPUTE, outcome: Outcome | None = None) -> JobSnapshot:
    has_begun = run is not RunPhase.STARTING
    worker = WorkerView(worker_id="1.1", rank=0, node_id="n", pid=1, phase=phase, phase_age_s=0.0, memory_bytes=0)
    return JobSnapshot(
        job_id="j", attempt=1, term=1, phase=run, outcome=outcome, has_trained=has_begun, workers=(worker,)
    )


@pytest.mark.parametrize("is_short", [False, True])
def test_that_it_has_begun_is_worth_an_answer_unless_there_may_soon_be_more_to_tell(is_short: bool) -> None:
    answers = Answers(is_short=is_short)
    answers.told(snapshot(RunPhase.STARTING), 0)
    assert answers.is_news(snapshot(RunPhase.RUNNING), 5, has_all=False) is not is_short
    assert answers.is_news(snapshot(RunPhase.RUNNING, Phase.HELD), 5, has_all=False)


def test_records_are_news_at_a_line_and_while_training_goes_on_they_are_none() -> None:
    answers = Answers(is_short=True)
    answers.told(snapshot(RunPhase.RUNNING), 5)
    assert not answers.is_news(snapshot(RunPhase.RUNNING), 6, has_all=False)
    answers.told(snapshot(RunPhase.RUNNING, Phase.HELD), 6)
    assert not answers.is_news(snapshot(RunPhase.RUNNING, Phase.HELD), 6, has_all=False)
    assert answers.is_news(snapshot(RunPhase.RUNNING, Phase.HELD), 7, has_all=False)


def test_stopping_is_no_news_before_nothing_will_come_any_more() -> None:
    answers = Answers(is_short=False)
    answers.told(snapshot(RunPhase.RUNNING), 5)
    assert not answers.is_news(snapshot(RunPhase.STOPPING), 9, has_all=False)
    assert answers.is_news(snapshot(RunPhase.STOPPING), 9, has_all=True)
    assert answers.is_news(snapshot(RunPhase.ENDED, outcome=Outcome.SUCCEEDED), 9, has_all=True)
