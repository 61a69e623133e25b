"""Conditions over an exchange and its parts, however job, space and condition spell them, and what else hangs so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuning.given import JOB, accepted, refused
from tuning.parsing import parse_sweep_spec

LR = {"optimizer.lr": {"uniform": [0.1, 0.2]}}
NAMES = {"choice": ["int8", "topk", "powersgd"]}
WHOLE, SCHEME = {"communication": NAMES}, {"communication.scheme": NAMES}


def document(when: dict[str, Any], job: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    return {"job": {**JOB, **job}, "space": {**LR, **space, "config.a": {"int": [1, 2], "when": when}}}


def when_left(when: dict[str, Any], job: dict[str, Any], space: dict[str, Any]) -> dict[str, Any] | None:
    """What ``config.a`` still hangs on, once the job has its say; None where it is not searched."""
    spec = accepted(**document(when, job, space))
    assert parse_sweep_spec(spec.model_dump(mode="json")) == spec
    return spec.space["config.a"].when if "config.a" in spec.space else None


@pytest.mark.parametrize("path", ["communication", "communication.scheme"])
@pytest.mark.parametrize("given", ["int4", {"scheme": "int4"}, {"scheme": "int4", "bucket_mib": 4}])
def test_a_scheme_counts_however_job_and_condition_spell_it(path: str, given: Any) -> None:
    assert when_left({path: "int4"}, {"communication": given}, {}) == {}
    assert when_left({path: "int8"}, {"communication": given}, {}) is None


@pytest.mark.parametrize("path", ["communication", "communication.scheme"])
def test_a_job_that_says_nothing_has_the_scheme_auto(path: str) -> None:
    assert when_left({path: "auto"}, {}, {}) == {}


@pytest.mark.parametrize(("path", "value"), [("fraction", 0.01), ("options.fraction", 0.01), ("loss_class", "lossy")])
def test_a_plain_name_has_the_defaults_of_its_scheme(path: str, value: object) -> None:
    assert when_left({f"communication.{path}": value}, {"communication": "topk"}, {}) == {}
    assert when_left({f"communication.{path}": value}, {"communication": "int8"}, {}) is None


@pytest.mark.parametrize(("path", "value"), [("bucket_mib", 25), ("dense_first", 0)])
def test_what_an_exchange_does_untold_is_met_too(path: str, value: int) -> None:
    assert when_left({f"communication.{path}": value}, {"communication": "int8"}, {}) == {}
    assert when_left({f"communication.{path}": value}, {"communication": "local_steps"}, {}) is None


@pytest.mark.parametrize("part", ["workers.min", "workers.max"])
def test_a_condition_on_workers_is_refused_where_a_part_of_them_is_searched(part: str) -> None:
    faults = refused(**document({"workers": 1}, {"workers": {}}, {part: {"int": [1, 3]}}))
    assert f"hang it on {part}" in faults["/space/config.a/when/workers"]


@pytest.mark.parametrize("given", [3, {"min": 3}, {"min": 3, "max": 3}])
def test_a_number_of_workers_counts_however_the_job_spells_it(given: object) -> None:
    assert when_left({"workers": 3}, {"workers": given}, {}) == {}
    assert when_left({"workers": 2}, {"workers": given}, {}) is None


@pytest.mark.parametrize(
    ("space", "when", "left"),
    [
        (WHOLE, {"communication.scheme": "topk"}, {"communication": "topk"}),
        (WHOLE, {"communication.options.fraction": 0.01}, {"communication": "topk"}),
        (WHOLE, {"communication.loss_class": "near_lossless"}, {"communication": "int8"}),
        (WHOLE, {"communication": "topk", "communication.scheme": "topk"}, {"communication": "topk"}),
        (SCHEME, {"communication": "topk"}, {"communication.scheme": "topk"}),
        (SCHEME, {"communication.fraction": 0.01}, {"communication.scheme": "topk"}),
        (SCHEME, {"communication.loss_class": "near_lossless"}, {"communication.scheme": "int8"}),
        ({"workers": {"int": [1, 3]}}, {"workers.max": 2}, {"workers": 2}),
    ],
)
@pytest.mark.parametrize("scheme", [None, "int8", "topk"])
def test_a_condition_looks_at_the_trials_value_and_not_at_the_jobs(
    space: dict[str, Any], when: dict[str, Any], left: dict[str, Any], scheme: str | None
) -> None:
    job = {} if scheme is None else {"communication": {"scheme": scheme}}
    assert when_left(when, job, space) == left


def test_the_most_workers_hang_on_the_least_unless_the_job_gives_them() -> None:
    searched = {"workers.min": {"int": [1, 3]}}
    assert when_left({"workers.max": 2}, {"workers": {}}, searched) == {"workers.min": 2}
    assert when_left({"workers.max": 3}, {"workers": {"max": 3}}, searched) == {}


@pytest.mark.parametrize(
    ("space", "when", "told"),
    [
        (WHOLE, {"communication.scheme": "topkk"}, "gives communication.scheme=topkk; hang it on one, such as comm"),
        (WHOLE, {"communication.schem": "topk"}, "did you mean communication.scheme?"),
        (WHOLE, {"communication.loss_class": "lossy"}, "several values of communication (topk, powersgd); write comm"),
        (WHOLE, {"communication": "topk", "communication.scheme": "int8"}, "would be both 'topk' and 'int8'"),
        (SCHEME, {"communication.loss_class": "lossy"}, "several values of communication.scheme (topk, powersgd)"),
        ({"workers": {"int": [1, 3]}}, {"workers.min": 5}, "gives workers.min=5; hang it on one, such as workers: 1"),
    ],
)
def test_a_condition_that_no_one_searched_value_meets_is_refused(
    space: dict[str, Any], when: dict[str, Any], told: str
) -> None:
    found = refused(**document(when, {}, space))
    assert list(found) == [f"/space/config.a/when/{[*when][-1]}"]
    assert told in found[f"/space/config.a/when/{[*when][-1]}"]


def test_a_ring_of_conditions_is_found_through_what_they_hang_on() -> None:
    ring = {"communication": {**NAMES, "when": {"config.a": 1}}}
    found = refused(**document({"communication.scheme": "topk"}, {}, ring))
    assert "wait for one another: communication -> config.a -> communication" in found["/space/communication/when"]


def test_what_no_one_value_meets_is_told_beside_a_field_that_is_no_value_at_all() -> None:
    found = refused(**document({"communication.scheme": "topkk"}, {}, WHOLE), trials="many")
    assert {"/trials", "/space/config.a/when/communication.scheme"} == set(found)
