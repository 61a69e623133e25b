"""The table of states and what commands do."""

from __future__ import annotations

import itertools

import pytest

from service.states import (
    ENDED_STATES,
    LIVE_STATES,
    PLACED_STATES,
    TRANSITIONS,
    Already,
    Illegal,
    JobState,
    Move,
    Verb,
    command,
    is_allowed,
)
from workers.errors import Reason
from workers.status import RunGoal

TABLE = """
QUEUED: STARTING PAUSED CANCELLED
STARTING: RUNNING FAILED QUEUED PAUSING CANCELLING
RUNNING: SUCCEEDED FAILED RECOVERING QUEUED PAUSING CANCELLING
RECOVERING: RUNNING FAILED QUEUED PAUSING CANCELLING
PAUSING: PAUSED SUCCEEDED FAILED CANCELLING
PAUSED: QUEUED CANCELLED
CANCELLING: CANCELLED SUCCEEDED
FAILED: QUEUED
CANCELLED: QUEUED
"""


def test_the_table_is_the_contracts() -> None:
    told = {
        (source, to)
        for line in TABLE.strip().splitlines()
        for source, targets in [line.split(": ")]
        for to in targets.split()
    }
    built = {(str(a), str(b)) for a, b in itertools.product(JobState, JobState) if is_allowed(a, b)}
    assert built == told


def test_every_state_is_in_the_table_and_in_at_most_one_group() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert not ENDED_STATES & LIVE_STATES
    assert PLACED_STATES < LIVE_STATES
    assert set(JobState) - ENDED_STATES - LIVE_STATES == {JobState.PAUSED}


@pytest.mark.parametrize("verb", list(Verb))
@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("attempt", [0, 1, 2])
def test_a_command_moves_along_the_table_and_repeating_it_changes_nothing(
    verb: Verb, state: JobState, attempt: int
) -> None:
    result = command(verb, state, attempt)
    if isinstance(result, Move):
        assert is_allowed(state, result.to)
        assert isinstance(command(verb, result.to, max(attempt, 1)), Already)


@pytest.mark.parametrize("state", [JobState.SUCCEEDED])
@pytest.mark.parametrize("verb", list(Verb))
def test_nothing_can_be_done_with_a_job_that_succeeded(verb: Verb, state: JobState) -> None:
    result = command(verb, state, 1)
    assert isinstance(result, Illegal)
    assert "SUCCEEDED" in result.detail


def test_cancelling_a_running_job_is_asked_for_and_a_queued_one_is_done_at_once() -> None:
    running, queued = command(Verb.CANCEL, JobState.RUNNING, 1), command(Verb.CANCEL, JobState.QUEUED, 0)
    assert running == Move(to=JobState.CANCELLING, goal=RunGoal.CANCEL, reason=Reason.CANCELLED_BY_USER)
    assert queued == Move(to=JobState.CANCELLED, goal=RunGoal.CANCEL, reason=Reason.CANCELLED_BY_USER)


def test_a_retry_counts_as_repeated_only_where_something_was_retried() -> None:
    assert isinstance(command(Verb.RETRY, JobState.QUEUED, 0), Illegal)
    assert isinstance(command(Verb.RETRY, JobState.RUNNING, 1), Illegal)
    assert isinstance(command(Verb.RETRY, JobState.QUEUED, 1), Already)
    assert isinstance(command(Verb.RETRY, JobState.RUNNING, 2), Already)
