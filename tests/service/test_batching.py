"""Why a batch is what it is: the sentence, the facts, and where they are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from service import batching
from service.records import Transition
from service.services import Services
from service.states import JobState
from tests.service.given import leader, placed, plan, record, row, snapshot, view
from workers.plan import TimelineKind


def worker(rank: int | None, part: int | None, micro_size: int | None) -> dict[str, Any]:
    return {"rank": rank, "part": part, "micro_size": micro_size, "worker_id": f"1.{rank}"}


def told(batch: int = 32, *workers: dict[str, Any], **wanted: Any) -> str | None:
    document = {"batch": {"global_size": 32, "max_tokens": None, **wanted}}
    return batching.in_words(document, {"plan": {"global_batch": batch}, "workers": list(workers)})


def test_the_sentence_names_batch_parts_and_passes() -> None:
    assert told(32, worker(0, 32, 16)) == "A step has 32 samples, as asked for, on 1 worker, in forward passes of 16."
    assert told(64, worker(1, 16, 8), worker(0, 48, 16), worker(None, None, None)) == (
        "A step has 64 samples, where 32 were asked for, on 2 workers (48, 16), in forward passes of 8 and 16."
    )
    assert told(32, worker(0, 32, 900), max_tokens=4096) == "A step has 32 samples, as asked for, on 1 worker."
    assert told(32) is None
    assert batching.in_words({"batch": {"global_size": 32}}, {}) is None
    by_length = [{**worker(rank, 16, 4), "footprint": {"tokens": tokens}} for rank, tokens in enumerate((900, 2560))]
    assert told(32, *by_length).endswith("(16, 16), in forward passes by length, of up to 2,560 tokens as seen lately.")


def test_a_batch_that_counts_as_less_is_told() -> None:
    document = {"batch": {"global_size": 256, "max_tokens": None, "lr_rule": "adascale"}}
    observed = {"plan": {"global_batch": 256}, "workers": [worker(0, 256, 128)], "counted": 0.25}
    told = batching.in_words(document, observed) or ""
    assert told.endswith("in forward passes of 128, and counts as 64 by adascale.")


def test_passes_are_what_a_part_takes() -> None:
    sizes = ((32, 16), (33, 16), (None, 16), (32, None))
    assert [batching.passes(worker(0, *each)) for each in sizes] == [2, 3, None, None]


def test_much_waiting_for_data_is_told_with_what_helps() -> None:
    def waiting(*shares: float | None) -> str | None:
        workers = [{**worker(rank, 16, 16), "data_share": share} for rank, share in enumerate(shares)]
        return batching.waiting_in_words({"workers": workers})

    assert waiting() is waiting(None) is waiting(0.19, 0.0) is None
    told = waiting(0.1, 0.64) or ""
    assert told.startswith("Waiting for data takes 64 % of a step (worker 1.1); it helps to")


def test_the_worth_of_a_sample_follows_the_noise_scale() -> None:
    points = [{"values": {"noise_scale": 96.0, "samples_per_s": 1000.0}}, {"values": {"useful_tokens": 0.93}}]
    document = {"batch": {"global_size": 32, "adapt": "goodput", "max_global_size": 512}}
    facts = dict(batching.facts(document, {"plan": {"global_batch": 160}}, points))
    assert facts["Asked for"] == "32, adapting by goodput, up to 512"
    assert facts["A sample is worth"] == "50 % of one at 32 a step"
    assert facts["Useful tokens"] == "93 %"


@pytest.mark.anyio
async def test_explain_and_the_page_of_a_running_job_tell_of_its_batch(
    client: httpx2.AsyncClient, services: Services
) -> None:
    fence = await leader(services.store)
    job = await placed(services.store, fence, workers=2, batch={"global_size": 32, "adapt": "goodput"})
    members = [
        replace(view(f"1.{rank}", rank), part=part, micro_size=16, busy_share=0.5, data_share=0.25)
        for rank, part in enumerate((48, 16))
    ]
    change = replace(
        row("plan/1/2", cost_s=0.0, kind=TimelineKind.BATCH),
        actor="goodput",
        reason="64 samples a step pay",
        before={"global_batch": 32},
        after={"global_batch": 64},
    )
    seen = snapshot(
        job,
        [record(1, noise_scale=96.0)],
        workers=tuple(members),
        plan=plan(64),
        timeline=(change,),
        has_trained=True,
        batch_reasons=("The parts stay 48 and 16.",),
    )
    await services.store.reconciler.fold(replace(seen, num_current=2), fence)
    await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    sentence = "A step has 64 samples, where 32 were asked for, on 2 workers (48, 16), in forward passes of 16."
    details = (await client.get(f"/api/v1/jobs/{job.id}/explain")).json()["details"]
    assert any("Waiting for data takes 25 % of a step" in detail for detail in details)
    assert sentence in details
    assert "The parts stay 48 and 16." in details
    assert "Global batch 32 → 64 by goodput: 64 samples a step pay." in details
    page = (await client.get(f"/jobs/{job.id}?tab=batch")).text
    for text in (
        sentence,
        "The parts stay 48 and 16.",
        "64 samples a step pay",
        "96 samples",
        "80 % of one at 32 a step",
        "?tab=metrics&amp;key=n",
    ):
        assert text in page, text
