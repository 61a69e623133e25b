"""What jobs told, over HTTP: metrics, timeline, logs, explain, compare, cluster, files, checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import httpx2
import pytest
import safetensors.numpy

from service.api.cluster_shapes import Cluster
from service.api.shapes import (
    Checkpoints,
    ExplanationShape,
    Metrics,
    OutputFiles,
    Timeline,
)
from service.folders import checkpoints_place, output_place
from service.records import Autoscaling, ClusterView, Explanation, JobRow, NodeView, Transition
from service.services import Services
from service.settings import Settings
from service.states import JobState
from tests.service.given import Clock, checkpoint, leader, log, placed, record, row, snapshot, spec, view
from tests.service.test_api_jobs import assert_problem
from tests.stored_checkpoint import store_checkpoint
from workers.errors import Failure, Reason
from workers.storage_urls import open_storage

pytestmark = pytest.mark.anyio

API = "/api/v1"


@pytest.fixture
async def fence(services: Services, client: httpx2.AsyncClient) -> int:
    return await leader(services.store)


@pytest.fixture
async def job(services: Services, fence: int) -> JobRow:
    """A job that is STARTING, on up to 4 workers."""
    return await placed(services.store, fence)


def path_of(job: JobRow, rest: str) -> str:
    return f"{API}/jobs/{job.id}/{rest}"


async def test_a_key_that_nothing_can_be_reported_under_is_refused_and_one_that_may_come_is_not(
    client: httpx2.AsyncClient, job: JobRow
) -> None:
    for path in (path_of(job, "metrics"), f"{API}/compare?jobs={job.id}"):
        query = {"keys": "loss,los,eval."} if "?" not in path else None
        answer = await client.get(path if query else f"{path}&keys=loss,los,eval.", params=query)
        first, second = assert_problem(answer, 422, "INVALID")["errors"]
        assert first["pointer"] == "/query/keys"
        assert first["detail"].startswith("'los' is not a telemetry key; did you mean 'loss'?")
        assert "write 'eval.NAME'" in second["detail"]
    found = await client.get(path_of(job, "metrics"), params={"keys": "eval.accuracy,user.margin,noise_scale"})
    assert found.json() == {"keys": [], "points": []}


async def test_metrics_are_chosen_by_key_and_step(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    records = [record(r, lr=0.1, **({"eval__accuracy": r / 10} if r % 5 == 0 else {})) for r in range(1, 11)]
    await services.store.reconciler.fold(snapshot(job, records), fence)
    found = (await client.get(path_of(job, "metrics"))).json()
    Metrics.model_validate(found)
    assert found["keys"] == ["eval.accuracy", "loss", "lr"]
    assert [point["step"] for point in found["points"]] == list(range(1, 11))
    assert found["points"][0]["values"] == {"loss": 1.0, "lr": 0.1}
    chosen = await client.get(path_of(job, "metrics"), params={"keys": "eval.accuracy,eval.none", "since_step": 6})
    assert chosen.json()["keys"] == ["eval.accuracy"]
    assert [(p["step"], p["values"]) for p in chosen.json()["points"]] == [(10, {"eval.accuracy": 1.0})]


async def test_long_metrics_are_thinned_and_their_peak_stays(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    records = [record(r, grad_norm=99.0 if r == 777 else 1.0) for r in range(1, 1501)]
    await services.store.reconciler.fold(snapshot(job, records), fence)
    points = (await client.get(path_of(job, "metrics"), params={"max_points": 50})).json()["points"]
    assert len(points) <= 50
    assert (points[0]["step"], points[-1]["step"]) == (1, 1500)
    assert max(point["values"]["grad_norm"] for point in points) == 99.0


BAD_BOUNDS = [{"max_points": 1}, {"since_step": -1}, {"since_step": 2**60}, {"max_points": "x"}]


async def test_bad_bounds_are_refused(subtests: pytest.Subtests, client: httpx2.AsyncClient, job: JobRow) -> None:
    for params in BAD_BOUNDS:
        with subtests.test(params=repr(params)[:80]):
            assert_problem(await client.get(path_of(job, "metrics"), params=params), 422, "INVALID")


async def test_the_timeline_is_the_contracts(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    await services.store.reconciler.fold(snapshot(job, timeline=(row("a", cost_s=0.18), row("b"))), fence)
    found = (await client.get(path_of(job, "timeline"))).json()
    Timeline.model_validate(found)
    first = found["timeline"][0]
    assert " ".join(first) == "seq step time kind actor reason before after cost_s steps_lost"
    assert (first["kind"], first["before"], first["cost_s"]) == ("resize", {"workers": 1}, 0.18)
    after = (await client.get(path_of(job, "timeline"), params={"after": 1})).json()["timeline"]
    assert [entry["seq"] for entry in after] == [2]


async def test_logs_can_be_followed_from_where_one_left_off(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    workers = (view("1.0", 0), view("1.1", 1))
    told = snapshot(job, logs=(log(b"zero\n"), log(b"one\nuno\n", worker="1.1", rank=1)), workers=workers)
    await services.store.reconciler.fold(told, fence)
    first = await client.get(path_of(job, "logs"))
    assert first.headers["content-type"] == "text/plain; charset=utf-8"
    assert first.text == "[rank 0] zero\n[rank 1] one\n[rank 1] uno\n"
    more = snapshot(job, logs=(log(b"more \xff\n", offset=5),), workers=workers)
    await services.store.reconciler.fold(more, fence)
    offset = first.headers["x-next-offset"]
    second = await client.get(path_of(job, "logs"), params={"offset": offset, "rank": 0})
    assert second.text == "more \ufffd\n"
    assert (await client.get(path_of(job, "logs"), params={"rank": 1})).text == "one\nuno\n"
    tail = await client.get(path_of(job, "logs"), params={"tail": 2})
    assert tail.text == "[rank 1] uno\n[rank 0] more \ufffd\n"
    assert tail.headers["x-next-offset"] == second.headers["x-next-offset"]
    at_end = await client.get(path_of(job, "logs"), params={"offset": second.headers["x-next-offset"]})
    assert (at_end.text, at_end.headers["x-next-offset"]) == ("", second.headers["x-next-offset"])
    assert (await client.get(path_of(job, "logs"), params={"tail": 0})).text == ""
    assert_problem(await client.get(path_of(job, "logs"), params={"tail": 1, "offset": 1}), 400, "BAD_REQUEST")
    assert_problem(await client.get(path_of(job, "logs"), params={"rank": -1}), 422, "INVALID")


async def test_a_worker_that_falls_silent_before_it_has_a_rank_is_found_by_it(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    early = snapshot(job, logs=(log(b"built\n", rank=None),), workers=(view("1.0", None),))
    await services.store.reconciler.fold(early, fence)
    assert (await client.get(path_of(job, "logs"), params={"rank": 0})).text == ""
    await services.store.reconciler.fold(snapshot(job, workers=(view("1.0", 0),)), fence)
    assert (await client.get(path_of(job, "logs"), params={"rank": 0})).text == "built\n"


async def test_a_long_log_comes_in_parts_that_join(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    whole = b"".join(b"line %d\n" % n for n in range(200_000))
    size = 60_000
    chunks = tuple(log(whole[at : at + size], offset=at) for at in range(0, len(whole), size))
    await services.store.reconciler.fold(snapshot(job, logs=chunks, workers=()), fence)
    text, offset = "", "0"
    while part := (answer := await client.get(path_of(job, "logs"), params={"offset": offset, "rank": 0})).text:
        text, offset = text + part, answer.headers["x-next-offset"]
    assert text.encode() == whole
    assert (await client.get(path_of(job, "logs"), params={"tail": 1, "rank": 0})).text == "line 199999\n"
    saved = await client.get(f"/jobs/{job.id}/log", params={"rank": 0})
    assert saved.text == "".join(f"line {n}\n" for n in range(200000))
    assert saved.headers["content-disposition"] == f'attachment; filename="{job.name}-{job.id}.log"'


async def test_a_waiting_job_is_explained(
    client: httpx2.AsyncClient, services: Services, fence: int, clock: Clock
) -> None:
    first = (await services.store.jobs.submit(spec(name="first"))).job
    clock.advance(1)
    second = (await services.store.jobs.submit(spec(name="second", workers={"min": 2, "max": 4}))).job
    unseen = (await client.get(path_of(second, "explain"))).json()
    ExplanationShape.model_validate(unseen)
    assert "not been seen" in unseen["summary"]
    node = NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 2.0}, free={"cpus": 1.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(node,)), fence)
    waiting = (await client.get(path_of(second, "explain"))).json()
    assert "1 job has waited longer" in waiting["summary"]
    text = "\n".join(waiting["details"])
    assert first.id in text
    assert "needs 2 workers with 1 CPU" in text
    assert "Free now: 1 CPU" in text
    told = Explanation(summary="It needs 2 CPU and 1 is free.", remedy="Add a machine.")
    await services.store.reconciler.set_explanations([(second, told)], fence)
    now = (await client.get(path_of(second, "explain"))).json()
    assert (now["summary"], now["remedy"]) == ("It needs 2 CPU and 1 is free.", "Add a machine.")
    await services.store.reconciler.put_cluster(ClusterView(is_up=False, error="no route"), fence)
    assert "no route" in (await client.get(path_of(first, "explain"))).json()["summary"]


async def test_an_elastic_job_is_told_why_it_does_not_grow(
    client: httpx2.AsyncClient, services: Services, fence: int
) -> None:
    job = await placed(services.store, fence)
    why = "It does not grow to 2: measured to be 1.01 times as fast as 1, and 1.05 is the least worth a change."
    await services.store.reconciler.fold(snapshot(job, size_reason=why), fence)
    await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    found = (await client.get(path_of(job, "explain"))).json()
    assert (found["summary"], found["details"]) == ("It runs with 1 of at most 4 workers.", [why])


async def test_a_failed_job_is_explained_by_its_last_frames(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    trace = 'Traceback (most recent call last):\n  File "train.py", line 7, in loss\nKeyError: "x"\n'
    trace += "\nThe above exception was the direct cause of the following exception:\n" + "  File ours.py\n" * 20
    failure = Failure(reason=Reason.USER_ERROR, type="KeyError", message='"x"', traceback=trace, rank=1, round=7)
    told = Transition(reason=Reason.USER_ERROR, failure=failure)
    await services.store.reconciler.transition(job, JobState.FAILED, told, fence)
    found = (await client.get(path_of(job, "explain"))).json()
    text = "\n".join(found["details"])
    assert "KeyError on rank 1 in round 7" in text
    assert 'File "train.py", line 7, in loss' in text
    assert "ours.py" not in text
    assert "Correct the code" in found["remedy"]


async def test_a_job_that_wants_more_than_it_has_says_so(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    running = await services.store.reconciler.transition(job, JobState.RUNNING, Transition(), fence)
    await services.store.reconciler.fold(snapshot(running), fence)
    await client.put(path_of(job, "scale"), json={"workers": 3})
    found = (await client.get(path_of(job, "explain"))).json()
    assert found["summary"] == "It runs with 1 worker and wants 3."
    assert "no room" in " ".join(found["details"])
    roomy = NodeView(node_id="n", name="n", is_alive=True, total={"cpus": 2.0}, free={"cpus": 1.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(roomy,)), fence)
    found = (await client.get(path_of(job, "explain"))).json()
    assert "no room" not in " ".join(found["details"])


async def test_the_cluster_is_shown_with_what_runs_and_what_is_wanted(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int, clock: Clock
) -> None:
    before = (await client.get(f"{API}/cluster")).json()
    assert (before["is_up"], before["observed_at"]) == (False, None)
    node = NodeView(node_id="n1", name="host", is_alive=True, total={"cpus": 2.0}, free={"cpus": 1.0})
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, nodes=(node,)), fence)
    await services.store.reconciler.fold(snapshot(job), fence)
    await client.put(path_of(job, "scale"), json={"workers": 3})
    found = (await client.get(f"{API}/cluster")).json()
    Cluster.model_validate(found)
    assert found["is_up"]
    assert found["resources"]["cpus"] == {"total": 2.0, "free": 1.0}
    (worker,) = found["nodes"][0]["workers"]
    assert (worker["job_id"], worker["worker_id"], worker["rank"]) == (job.id, "1.0", 0)
    assert [(d["job_id"], d["workers"], d["cpus"]) for d in found["demand"]] == [(job.id, 2, 2.0)]
    clock.advance(60)
    stale = (await client.get(f"{API}/cluster")).json()
    assert (stale["is_up"], stale["is_stale"]) == (False, True)


async def test_the_cluster_tells_what_its_autoscaler_does_and_for_whom(
    client: httpx2.AsyncClient, services: Services, job: JobRow, fence: int
) -> None:
    await services.store.reconciler.put_cluster(ClusterView(is_up=True), fence)
    assert (await client.get(f"{API}/cluster")).json()["autoscaling"] is None
    seen = Autoscaling(num_coming=2, failures=("gpu: no quota",), wanted_by=(job.id,))
    await services.store.reconciler.put_cluster(ClusterView(is_up=True, autoscaling=seen), fence)
    found = (await client.get(f"{API}/cluster")).json()
    Cluster.model_validate(found)
    assert (found["autoscaling"]["nodes_coming"], found["autoscaling"]["wanted_by"]) == (2, [job.id])
    page = (await client.get("/cluster")).text
    for sentence in ("2 nodes are being started for digits.", "A node could not be started: gpu: no quota."):
        assert sentence in found["autoscaling"]["told"]
        assert sentence in page


async def test_checkpoints_are_listed_and_their_weights_downloaded(
    client: httpx2.AsyncClient, services: Services, settings: Settings, job: JobRow, fence: int
) -> None:
    weights = {"a": os.urandom(600_000), "b": os.urandom(7)}
    store_checkpoint(open_storage(checkpoints_place(settings.storage_url, job.id)), checkpoint(20), weights)
    found = (checkpoint(10), checkpoint(20, final=True))
    await services.store.reconciler.fold(snapshot(job, checkpoints=found), fence)
    listed = (await client.get(path_of(job, "checkpoints"))).json()
    Checkpoints.model_validate(listed)
    # The workers removed that of step 10 meanwhile.
    assert [(c["step"], c["final"]) for c in listed["checkpoints"]] == [(20, True)]
    answer = await client.get(path_of(job, "checkpoints/20"))
    assert {name: tensor.tobytes() for name, tensor in safetensors.numpy.load(answer.content).items()} == weights
    assert answer.headers["content-type"] == "application/octet-stream"
    assert 'filename="digits-20.safetensors"' in answer.headers["content-disposition"]
    assert_problem(await client.get(path_of(job, "checkpoints/10")), 404, "NOT_FOUND")
    assert_problem(await client.get(path_of(job, "checkpoints/x")), 422, "INVALID")


@pytest.fixture
def output(settings: Settings, job: JobRow) -> Path:
    """The folder of a job's own files, with what is outside it within reach of a link."""
    folder = Path(output_place(settings.storage_url, job.id))
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a.txt").write_text("hello")
    (folder / "deep" / "two\nlines\n").write_text("of a name")
    (folder / "deep" / "er" / "b \u00e4.html").write_text("<script>alert(1)</script>")
    (settings.home / "secret").write_text("not for you")
    (folder / "link").symlink_to(settings.home / "secret")
    (folder / "linked").symlink_to(settings.home)
    os.mkfifo(folder / "pipe")
    return folder


async def test_files_are_listed_without_links_and_downloaded(
    client: httpx2.AsyncClient, job: JobRow, output: Path
) -> None:
    listed = (await client.get(path_of(job, "files"))).json()
    OutputFiles.model_validate(listed)
    assert [(f["path"], f["size_bytes"]) for f in listed["files"]] == [
        ("a.txt", 5),
        ("deep/er/b \u00e4.html", 25),
        ("deep/two\nlines\n", 9),
    ]
    assert (await client.get(path_of(job, "files/deep/two%0Alines%0A"))).text == "of a name"
    assert (await client.get(path_of(job, "files/a.txt"))).text == "hello"
    page = await client.get(path_of(job, "files/deep/er/b%20%C3%A4.html"))
    assert page.text.startswith("<script>")
    assert page.headers["content-type"] == "application/octet-stream"
    assert page.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in page.headers["content-security-policy"]


OUTSIDE = [
    "link",
    "linked/secret",
    "linked",
    "pipe",
    "deep",
    "deep/",
    "none",
    "a.txt/x",
    "%2e%2e/%2e%2e/%2e%2e/secret",
    "..%2f..%2f..%2fsecret",
    "deep/%2e%2e/a.txt",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "a.txt%00",
    "%2e",
    "x" * 5000,
    "a/" * 200 + "a",
]


async def test_nothing_outside_the_folder_can_be_read(
    subtests: pytest.Subtests, client: httpx2.AsyncClient, job: JobRow, output: Path
) -> None:
    for path in OUTSIDE:
        with subtests.test(path=repr(path)[:80]):
            answer = await client.get(path_of(job, f"files/{path}"))
            assert "not for you" not in answer.text
            assert_problem(answer, 404, "NOT_FOUND")


async def test_a_job_without_files_has_an_empty_list(client: httpx2.AsyncClient, job: JobRow) -> None:
    assert (await client.get(path_of(job, "files"))).json() == {"files": []}
    assert (await client.get(path_of(job, "checkpoints"))).json() == {"checkpoints": []}
    assert (await client.get(path_of(job, "metrics"))).json() == {"keys": [], "points": []}
    assert (await client.get(path_of(job, "timeline"))).json() == {"timeline": []}
    assert (await client.get(path_of(job, "logs"))).text == ""
