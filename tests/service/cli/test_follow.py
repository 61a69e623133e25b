"""Following a job over a real API, while the test plays the reconciler: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import pytest

from service.cli.follow import follow_job
from service.cli.options import Form
from service.records import JobRow, Transition
from service.states import JobState
from service.store.opening import Store
from tests.service.cli.calls import Api, play, terminal
from tests.service.given import Clock, leader, record, row, snapshot, spec_document, view

TOLD = [
    "Queued",
    "Running",
    "  Grew from 1 to 2 workers by user: more speed; took 0.2 s; no step lost",
    "Succeeded",
    "digits: 3,200 samples, accuracy 75 %",
]


def follow(api: Api) -> int:
    """Follow a job that trains, then ends, whenever the command waits."""
    with api.client() as client:
        job_id = client.submit(spec_document())["id"]

        async def found(store: Store) -> JobRow:
            job = await store.reconciler.job(job_id)
            assert job is not None
            return job

        async def train(store: Store, _: Clock) -> None:
            fence = await leader(store)
            job = await store.reconciler.admit(await found(store), 2, fence)
            job = await store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
            half = record(50, samples_per_s=64.0)
            workers, resized = (view(), view("1.1", 1)), row("resize", cost_s=0.2)
            await store.reconciler.fold(
                snapshot(job, [half], num_current=2, workers=workers, timeline=(resized,)), fence
            )

        async def end(store: Store, _: Clock) -> None:
            fence = await leader(store)
            await store.reconciler.fold(snapshot(await found(store), [record(100, eval__accuracy=0.75)]), fence)
            await store.reconciler.transition(await found(store), JobState.SUCCEEDED, Transition(), fence)

        parts = iter((train, end))
        return follow_job(client, job_id, Form.TEXT, sleep=lambda _: play(api, next(parts)))


def test_in_a_terminal_a_bar_shows_how_far_the_job_is(api: Api) -> None:
    with terminal() as taking:
        assert follow(api) == 0
    for bar in (
        "  0 %  step 0  no worker",
        " 50 %  step 50  loss 0.02  64/s  2 workers  25 s left",
        "100 %  step 100  loss 0.01",
    ):
        assert bar in taking.shown
    assert [line for line in TOLD if line not in taking.shown] == []


def test_without_a_terminal_there_are_plain_lines_alone(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(api) == 0
    assert capsys.readouterr().out.splitlines() == TOLD
