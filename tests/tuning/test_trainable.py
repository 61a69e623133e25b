"""A Concertina job as a trial of Ray Tune, over a service that only remembers jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tuning.fake_service import FakeJob, FakeService, fake_service
from tuning.remote_jobs import RemoteJobs, ServiceAddress, ServiceAwayError, ServiceError, service_address
from tuning.trainable import ConcertinaTrainable, TrialSetting, concertina_trainable
from tuning.tune_jobs import trial_job
from workers.errors import SpecError

METRIC = "eval.accuracy"
JOB = {"entrypoint": "workers.recipes.digits:build", "steps": 10, "batch": {"global_size": 8}}


@pytest.fixture
def service() -> Iterator[FakeService]:
    with fake_service(METRIC) as running:
        yield running


def trial(service: FakeService, config: dict[str, Any], trial_id: str = "a1_00000", **changed: Any) -> Any:
    """The object that Tune would make in a process of its own, without Tune's folders."""
    made: Any = ConcertinaTrainable.__new__(ConcertinaTrainable)
    made._trial_info = SimpleNamespace(trial_id=trial_id, experiment_name="night")
    made.setup(config, TrialSetting(**{"job": JOB, "metric": METRIC, "address": service.address, **changed}))
    return made


def test_each_report_of_the_job_is_a_result_and_the_last_one_says_so(service: FakeService) -> None:
    made = trial(service, {"optimizer.lr": 0.5})
    assert service.jobs == []  # what it goes on from is known at its first step
    service.reports = {5: 0.1}
    found = [made.step()]
    [job] = service.jobs
    job.reports, job.ends_at = {5: 0.1, 8: 0.2, 10: 0.3}, job.num_looks + 3
    found += [made.step(), made.step()]  # the job ends a little after its last report
    told = [(result["samples"], result[METRIC], result["done"]) for result in found]
    assert told == [(40, 0.1, False), (64, 0.2, False), (80, 0.3, True)]
    assert (job.spec["name"], job.spec["optimizer"]["lr"]) == ("tune-a1-00000", 0.5)
    made.cleanup()
    assert job.commands == []


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("was_killed", [True, False])
def test_a_trial_restored_in_another_process_goes_on_with_the_same_job(
    service: FakeService, has_checkpoint: bool, was_killed: bool
) -> None:
    service.reports = {3: 0.1, 6: 0.2}
    first = trial(service, {"optimizer.lr": 0.5})
    assert first.step()["samples"] == 24
    kept = first.save_checkpoint("") if has_checkpoint else None
    [job] = service.jobs
    if not was_killed:
        first.cleanup()
        assert job.state == "CANCELLED"
    second = trial(service, {"optimizer.lr": 0.5})
    if kept:
        second.load_checkpoint(kept)
    assert second.step()["samples"] == (48 if has_checkpoint else 24)
    assert service.jobs == [job]
    assert job.commands == ([] if was_killed else ["cancel", "retry"])


def test_another_trial_begins_from_the_checkpoint_that_was_named(service: FakeService) -> None:
    service.reports, service.checkpoints = {3: 0.1, 6: 0.2}, [2, 5]
    donor = trial(service, {"optimizer.lr": 0.5})
    assert [donor.step()["samples"], donor.step()["samples"]] == [24, 48]
    service.reports, service.checkpoints = {6: 0.3}, [5]
    config = {"optimizer.lr": 0.1, "batch.global_size": 16}
    taker = trial(service, config, "a1_00001")
    taker.load_checkpoint(donor.save_checkpoint(""))
    assert taker.step()["samples"] == 5 * 8 + 16
    assert service.jobs[1].spec["init_from"] == {"job": "job_0", "step": 5, "state": "all"}
    # Restored from a checkpoint of its own, it is the job that began so, and no third one.
    again = trial(service, config, "a1_00001")
    again.load_checkpoint(taker.save_checkpoint(""))
    service.jobs[1].reports = {6: 0.3, 7: 0.4}
    assert (again.step()["samples"], len(service.jobs)) == (5 * 8 + 32, 2)


def test_a_donor_whose_first_checkpoint_was_on_its_way_is_gone_on_from_but_not_at_its_end(service: FakeService) -> None:
    service.reports = {3: 0.1}
    donor = trial(service, {"optimizer.lr": 0.5})
    donor.step()
    kept = donor.save_checkpoint("")
    assert kept["checkpoint"] is None
    taker = trial(service, {"optimizer.lr": 0.1}, "a1_00001")
    taker.load_checkpoint(kept)
    with pytest.raises(ServiceError, match=r"no checkpoint to go on from \(it has: none\)"):
        taker.step()
    end = service.jobs[0].document()["progress"]["steps"]
    service.jobs[0].checkpoints, service.reports = [2, 5, end], {6: 0.3}
    taker.step()
    assert service.jobs[1].spec["init_from"]["step"] == 2
    service.jobs[0].checkpoints = [end]
    late = trial(service, {"optimizer.lr": 0.2}, "a1_00002")
    late.load_checkpoint(kept)
    with pytest.raises(ServiceError, match="no checkpoint to go on from"):
        late.step()


def taken_over(service: FakeService) -> tuple[FakeJob, Any]:
    """A job at step 6 with the checkpoints 2 and 5, and another trial, of twice its batch, that is to begin from it."""
    service.reports, service.checkpoints = {3: 0.1, 6: 0.2}, [2, 5]
    donor = trial(service, {"optimizer.lr": 0.5})
    assert [donor.step()["samples"], donor.step()["samples"]] == [24, 48]
    taker = trial(service, {"optimizer.lr": 0.1, "batch.global_size": 16}, "a1_00001")
    taker.load_checkpoint(donor.save_checkpoint(""))
    service.reports, service.checkpoints = {}, []
    return service.jobs[0], taker


def begun_at(job: FakeJob) -> int:
    return int(job.spec["init_from"]["step"])


@pytest.mark.parametrize("starts_at", [1, 3])
def test_where_the_checkpoint_goes_before_the_job_has_read_it_the_trial_begins_from_a_later_one(
    service: FakeService, starts_at: int
) -> None:
    donor, taker = taken_over(service)
    service.starts_at = starts_at

    def train_on(job: FakeJob) -> None:
        if begun_at(job) == 5:
            donor.checkpoints = [7, 8]
            service.reports = {9: 0.3}

    service.meanwhile = train_on
    assert taker.step()["samples"] == 8 * 8 + 16
    assert [(job.state, begun_at(job)) for job in service.jobs[1:]] == [("FAILED", 5), ("RUNNING", 8)]
    assert [job.commands for job in service.jobs] == [[], [], []]
    taker.cleanup()
    assert service.jobs[2].state == "CANCELLED"


def test_a_trial_that_was_let_go_before_it_saved_begins_from_a_later_one_where_its_own_beginning_is_gone(
    service: FakeService,
) -> None:
    donor, taker = taken_over(service)
    service.reports = {6: 0.3}
    assert taker.step()["samples"] == 5 * 8 + 16
    kept = taker.save_checkpoint("")
    taker.cleanup()
    for _ in range(2):  # the second time it is the same job again, which is tried again
        donor.checkpoints, service.reports = [8, 9], {10: 0.4}
        again = trial(service, {"optimizer.lr": 0.1, "batch.global_size": 16}, "a1_00001")
        again.load_checkpoint(kept)
        assert again.step()["samples"] == 9 * 8 + 16
        again.cleanup()
    assert [begun_at(job) for job in service.jobs[1:]] == [5, 9]
    assert [job.commands for job in service.jobs[1:]] == [["cancel"], ["cancel", "retry", "cancel"]]


def test_a_job_that_fails_for_another_reason_fails_its_trial(service: FakeService) -> None:
    donor, taker = taken_over(service)
    service.reports = {6: 0.3}
    taker.step()
    donor.checkpoints, service.jobs[1].state = [7, 8], "FAILED"  # it had read its state, and trained
    with pytest.raises(ServiceError, match="is FAILED"):
        taker.step()
    assert len(service.jobs) == 2


def test_a_job_that_fails_where_the_one_that_it_began_from_was_deleted_tells_its_own_failure(
    service: FakeService,
) -> None:
    donor, taker = taken_over(service)

    service.starts_at = 3
    service.meanwhile = lambda _: service.jobs.remove(donor)
    with pytest.raises(ServiceError, match="job_1 of this trial is FAILED"):
        taker.step()


def test_where_no_later_checkpoint_leaves_anything_to_train_that_is_told(service: FakeService) -> None:
    donor, taker = taken_over(service)
    service.meanwhile = lambda _: donor.checkpoints.__setitem__(slice(None), [donor.steps])
    with pytest.raises(ServiceError, match=r"job_0 has no checkpoint to go on from \(it has: \[10\]\)"):
        taker.step()


def test_an_actor_that_serves_the_next_trial_cancels_the_job_of_the_last(service: FakeService) -> None:
    service.reports = {3: 0.1}
    made = trial(service, {"optimizer.lr": 0.5}, report_samples=24)
    made.step()
    made._trial_info.trial_id = "a1_00001"
    assert made.reset_config({"optimizer.lr": 0.1})
    made.step()
    assert [job.state for job in service.jobs] == ["CANCELLED", "RUNNING"]
    assert [job.spec["optimizer"]["lr"] for job in service.jobs] == [0.5, 0.1]
    assert service.jobs[1].spec["eval_every_steps"] == 3


def test_what_goes_wrong_is_told_in_words_and_within_its_bound(service: FakeService) -> None:
    with pytest.raises(SpecError, match=r"/param_space/optimiser.lr: .*did you mean optimizer"):
        trial_job(JOB, {"optimiser.lr": 0.1}, "t")
    with pytest.raises(SpecError, match="plain values"):
        trial_job(JOB, {"config.model": object()}, "t")
    with pytest.raises(ServiceError, match=r"(?s)refuses \(422\).*/optimizer/lr: .*-1"):
        trial(service, {"optimizer.lr": -1.0})
    with pytest.raises(SpecError, match="acuracy"):
        concertina_trainable(JOB, metric="acuracy", url=service.address.url, token="t")
    silent = trial(service, {}, patience_s=0.0)
    with pytest.raises(ServiceError, match=r"is RUNNING and has not reported eval.accuracy .*two CPUs"):
        silent.step()
    service.jobs[0].state = "SUCCEEDED"
    with pytest.raises(ServiceError, match=r"never reported eval\.accuracy; it reported: nothing"):
        silent.step()
    service.jobs[0].state = "FAILED"
    with pytest.raises(ServiceError, match="is FAILED: it waits for two CPUs"):
        silent.step()


def test_nobody_at_the_address_is_told_within_the_bound() -> None:
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    address = ServiceAddress(url="http://127.0.0.1:9", token="t")
    jobs = RemoteJobs(address, sleep=sleep, clock=lambda: now_s[0])
    with pytest.raises(ServiceAwayError, match=r"no answer from http://127.0.0.1:9 for 10 s .*concertina serve"):
        jobs.check(10.0)
    assert 5.0 < now_s[0] <= 10.0


@pytest.mark.parametrize("token", ["ctn_secret\nmore", "ctn_s\u00fc"])
def test_what_is_no_token_is_told_without_showing_it(token: str) -> None:
    assert service_address("http://a", environ={"CONCERTINA_TOKEN": "ctn_secret\r\n"}).token == "ctn_secret"
    with pytest.raises(ServiceError, match="characters that no token has") as caught:
        service_address("http://a", environ={"CONCERTINA_TOKEN": token})
    assert token not in str(caught.value)


def test_the_token_of_this_machine_goes_to_no_other(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("own\n")
    home = {"CONCERTINA_HOME": str(tmp_path)}
    assert service_address(environ=home).token == "own"
    with pytest.raises(ServiceError, match="CONCERTINA_TOKEN"):
        service_address("https://elsewhere.example", environ=home)
    assert "given" not in repr(service_address("https://elsewhere.example", "given", home))
