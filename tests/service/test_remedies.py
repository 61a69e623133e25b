"""Which remedies have a button, and that it does what it says."""

from __future__ import annotations

from typing import Any

import pytest

from service.pages.remedies import could_fit, may_hold, remedies_view
from service.pages.render import with_code
from service.records import NodeView


def job(**values: Any) -> dict[str, Any]:
    return {
        "id": "job_1",
        "name": "digits",
        "state": "QUEUED",
        "reason": None,
        "attempt": 1,
        "spec": {"workers": {"min": 1, "max": 4}, "resources": {"cpus": 1.0, "gpus": 0, "memory_bytes": None}},
        "progress": {"samples": 0},
        "workers": {"min": 1, "max": 4, "current": 0, "desired": 1},
        "observed": {"pinned": None},
        **values,
    }


def told(found: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {button["word"]: (button["action"], *button["fields"]) for button in found}


REASON = ("reason", "the remedy that its page offered")


@pytest.mark.parametrize(("reason", "helps"), [("NODE_LOST", True), ("DIVERGED", False), ("BUNDLE_INVALID", False)])
def test_a_retry_is_offered_where_it_can_help(reason: str, helps: bool) -> None:
    failed = job(state="FAILED", reason=reason, progress={"samples": 64})
    expected = {
        "Go on from the last checkpoint": ("/jobs/job_1/actions/retry",),
        "Begin anew": ("/jobs/job_1/actions/retry", ("from", "start")),
    }
    assert told(remedies_view(failed, [])) == (expected if helps else {})


def test_a_waiting_job_may_start_smaller() -> None:
    pinned = job(observed={"pinned": 3})
    assert told(remedies_view(pinned, [])) == {
        "Start with 1 worker": ("/jobs/job_1/scale", REASON, ("workers", "1")),
        "Let the service choose the size": ("/jobs/job_1/scale", REASON, ("auto", "yes")),
    }
    narrowed = job(workers={"min": 2, "max": 4, "current": 0, "desired": 2})
    assert list(told(remedies_view(narrowed, []))) == ["Let the service choose the size"]
    assert remedies_view(job(), []) == []


def test_others_may_give_it_room_and_lead_back() -> None:
    holder = job(id="job_2", name="big", state="RUNNING", workers={"min": 1, "max": 4, "current": 3, "desired": 3})
    assert may_hold(holder)
    assert not may_hold({**holder, "state": "PAUSING"})
    assert told(remedies_view(job(), [holder])) == {
        "Pause big, which holds 3 workers": ("/jobs/job_2/actions/pause", ("back", "job_1"))
    }


def test_a_job_that_runs_with_less_than_its_number_may_be_content() -> None:
    small = job(state="RUNNING", observed={"pinned": 4}, workers={"min": 1, "max": 4, "current": 2, "desired": 4})
    assert told(remedies_view(small, []))["Stay with 2 workers"] == ("/jobs/job_1/scale", REASON, ("workers", "2"))
    assert remedies_view({**small, "observed": {"pinned": None}}, []) == []


def test_nobody_is_paused_for_a_job_that_could_not_fit_even_then() -> None:
    node = NodeView(node_id="n1", name="a", is_alive=True, total={"cpus": 3.5, "gpus": 0.0}, free={})
    needy = job(workers={"min": 4, "max": 4, "current": 0, "desired": 4})
    assert could_fit(job(), [node])
    assert not could_fit(job(), [])
    assert not could_fit(needy, [node])


def test_a_job_that_may_do_without_gpus_could_fit_where_there_are_none() -> None:
    node = NodeView(node_id="n1", name="a", is_alive=True, total={"cpus": 4.0, "gpus": 0.0}, free={})
    resources = {"cpus": 1.0, "gpus": 1, "memory_bytes": None}
    for instead, fits in ((None, False), (4.0, True), (5.0, False)):
        spec = {"workers": {"min": 1, "max": 4}, "resources": {**resources, "cpus_instead": instead}}
        assert could_fit(job(spec=spec), [node]) is fits


def test_code_in_a_sentence_is_marked_and_nothing_else_is_markup() -> None:
    assert with_code("lower `a.b` <b>") == "lower <code>a.b</code> &lt;b&gt;"
