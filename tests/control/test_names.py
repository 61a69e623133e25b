from __future__ import annotations

import pytest

from workers.assignment import JobKey
from workers.control.names import (
    ControllerName,
    SpareName,
    WorkerName,
    controller_name,
    highest_term,
    parse_name,
    parse_spare,
    spare_name,
    worker_ids,
    worker_name,
)

KEY = JobKey(job_id="job_1", attempt=2)


def test_names_tell_what_they_were_made_of() -> None:
    assert parse_name(controller_name(KEY, 3)) == ControllerName(key=KEY, term=3)
    assert parse_name(worker_name(KEY, "3.1")) == WorkerName(key=KEY, worker_id="3.1")
    assert parse_spare(spare_name("n", "a1")) == SpareName(node_id="n", tag="a1")


def test_a_spare_is_nobodys_worker() -> None:
    assert parse_name(spare_name("n", "a1")) is None
    assert parse_spare(worker_name(KEY, "3.1")) is None


@pytest.mark.parametrize("name", ["", "x", "controller/j/1", "controller/j/x/1", "controller/j/1/x", "other/j/1/1"])
def test_other_peoples_names_tell_nothing(name: str) -> None:
    assert parse_name(name) is None


def test_an_attempt_finds_its_own() -> None:
    other = JobKey(job_id="job_1", attempt=1)
    names = [controller_name(KEY, 1), controller_name(KEY, 2), controller_name(other, 9), worker_name(KEY, "1.1"), "x"]
    assert highest_term(names, KEY) == 2
    assert highest_term(["x"], KEY) == 0
    assert worker_ids(names, KEY) == ("1.1",)
