"""Paths into the options of an exchange, which stand beside its scheme or in ``options``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuning.given import JOB, accepted, refused
from tuning.inheritance import point_of
from tuning.parsing import parse_sweep_spec
from tuning.space import space_of
from tuning.spec import trial_spec
from tuning.spec_parts import DistributionSpec
from workers.spec import parse_job_spec

FRACTION = {"log_uniform": [0.001, 0.1]}
TOPK = {"scheme": "topk"}


def job(communication: Any) -> dict[str, Any]:
    return {**JOB, "communication": communication}


@pytest.mark.parametrize("path", ["communication.fraction", "communication.options.fraction"])
@pytest.mark.parametrize(
    "communication",
    [
        {**TOPK, "quantise": "none"},
        {**TOPK, "quantise": "none", "fraction": 0.05},
        {**TOPK, "options": {"quantise": "none", "fraction": 0.05}},
    ],
    ids=["no value in the job", "one beside the scheme", "one among the options"],
)
def test_an_option_is_searched_however_job_and_path_spell_it(path: str, communication: dict[str, Any]) -> None:
    spec = accepted(job=job(communication), space={path: FRACTION})
    assert parse_sweep_spec(spec.model_dump(mode="json")) == spec
    for number, value in enumerate((0.001, 0.02)):
        asked = trial_spec(spec, number, {path: value}).exchange
        assert (asked.scheme, asked.loss_class) == ("topk", "lossy")
        assert asked.options == {"quantise": "none", "fraction": value}


@pytest.mark.parametrize(
    ("communication", "path", "distribution"),
    [
        ({"scheme": "powersgd"}, "communication.rank", {"int": [1, 8]}),
        ({"scheme": "int8"}, "communication.options.bucket_mib", {"choice": [4, 25]}),
        ({"scheme": "int8"}, "communication.across", {"choice": ["int8", "int4"]}),
        ({"scheme": "local_steps"}, "communication.steps", {"int": [5, 50]}),
    ],
)
def test_a_trial_gets_the_value_of_its_schemes_option(
    communication: dict[str, Any], path: str, distribution: dict[str, Any]
) -> None:
    spec = accepted(job=job(communication), space={path: distribution})
    for number, point in enumerate(space_of(spec.space).corners()):
        assert trial_spec(spec, number, point).exchange.options == {path.rpartition(".")[2]: point[path]}


def test_an_option_may_hang_on_a_scheme_that_is_searched_too() -> None:
    space = {
        "communication.scheme": {"choice": ["topk", "int8"]},
        "communication.fraction": {**FRACTION, "when": {"communication.scheme": "topk"}},
    }
    assert set(accepted(space=space).space) == set(space)
    always = {**space, "communication.fraction": FRACTION}
    told = refused(space=always)["/space/communication.fraction"]
    assert "communication.fraction=0.001: is an option of topk, and the scheme is int8" in told


@pytest.mark.parametrize(
    ("communication", "path", "told"),
    [
        ("topk", "fraction", "'topk' in the job, a plain name that takes no options; write communication: {scheme: t"),
        ("auto", "rank", "write communication: {scheme: powersgd} there"),
        ("int8", "options.bucket_mib", "write communication: {scheme: int8} there, or another of none, bf16"),
        (
            "auto",
            "across",
            "write communication: {scheme: none} there, or another of none, bf16, fp16, int8, int4, topk",
        ),
        ("auto", "bucket_mib", "write communication: {scheme: none} there"),
        ("auto", "dense_first", "write communication: {scheme: bf16} there"),
        ({"scheme": "powersgd"}, "fraction", "=1: is an option of topk, and the scheme is powersgd; leave it out"),
        ({"scheme": "powersgd"}, "rank", "with communication.rank=800: must be less than or equal to 64 (seen: 800)"),
        ({"scheme": "auto"}, "bucket_mib", "with communication.bucket_mib=1: auto takes no options; leave it out"),
        (TOPK, "fractio", "did you mean communication.fraction?"),
        (TOPK, "fraction.low", "has nothing inside it that could be called 'low'; search communication.fraction"),
    ],
)
def test_an_option_that_no_trial_could_have_is_refused(communication: Any, path: str, told: str) -> None:
    found = refused(job=job(communication), space={f"communication.{path}": {"int": [1, 800]}})
    assert list(found) == [f"/space/communication.{path}"]
    assert told in found[f"/space/communication.{path}"]


def test_a_job_that_says_nothing_of_its_exchange_has_a_plain_name_too() -> None:
    found = refused(space={"communication.fraction": FRACTION})
    told = (
        "communication is 'auto' by default, a plain name that takes no options; write communication: {scheme: topk} "
    )
    assert found == {"/space/communication.fraction": told + "in the job"}


@pytest.mark.parametrize(
    ("given", "meant", "option", "instead"),
    [("INT4", "int4", "fraction", "topk"), ("INT4", "int4", "across", "int4"), ("fp32", "none", "across", "none")],
)
def test_a_slip_in_the_plain_name_is_told_beside_what_takes_options(
    given: str, meant: str, option: str, instead: str
) -> None:
    found = refused(job=job(given), space={f"communication.{option}": {"choice": [0.1]}})
    assert found["/job/communication"].endswith(f"(seen: {given!r}); did you mean {meant!r}?")
    assert f"write communication: {{scheme: {instead}}} there" in found[f"/space/communication.{option}"]
    assert len(found) == 2


def test_both_spellings_of_one_option_are_two_paths_to_one_value() -> None:
    both = {"communication.fraction": FRACTION, "communication.options.fraction": FRACTION}
    told = "communication.fraction and communication.options.fraction set the same value; keep one of them"
    assert refused(job=job(TOPK), space=both) == {"/space/communication.fraction": told}


@pytest.mark.parametrize(("value", "is_met"), [(0.01, True), (0.02, False)])
def test_a_condition_is_met_by_the_default_of_an_option(value: float, is_met: bool) -> None:
    hanging = {"int": [1, 2], "when": {"communication.fraction": value}}
    spec = accepted(job=job(TOPK), space={"optimizer.lr": {"uniform": [0.1, 0.2]}, "config.a": hanging})
    assert ("config.a" in spec.space) == is_met


@pytest.mark.parametrize("value", ["none", "int8"])
@pytest.mark.parametrize("is_beside", [True, False], ids=["searched beside the scheme", "searched among the options"])
def test_a_condition_over_a_searched_option_spells_it_as_the_space_does(value: str, is_beside: bool) -> None:
    above, other = "communication.quantise", "communication.options.quantise"
    searched, hung_on = (above, other) if is_beside else (other, above)
    choice = {searched: {"choice": ["none", "int8"]}}
    hanging = {"config.a": {"int": [1, 2], "when": {hung_on: value}}}
    told = f"{hung_on} is searched here as {searched}; write {searched}"
    assert refused(job=job(TOPK), space={**choice, **hanging}) == {f"/space/config.a/when/{hung_on}": told}
    spelled = {"config.a": {"int": [1, 2], "when": {searched: value}}}
    assert set(accepted(job=job(TOPK), space={**choice, **spelled}).space) == {searched, "config.a"}


def test_a_configuration_lies_at_the_point_of_its_option() -> None:
    spec = accepted(job=job(TOPK), space={"communication.fraction": FRACTION})
    in_use = trial_spec(spec, 0, {"communication.fraction": 0.05}).model_dump(mode="json")
    assert point_of(in_use, space_of(spec.space)) == {"communication.fraction": 0.05}


def test_a_configuration_lies_at_the_point_of_the_scheme_that_it_names_plainly() -> None:
    spec = accepted(space={"communication.scheme": {"choice": ["int8", "topk"]}})
    assert point_of({"communication": "int8"}, space_of(spec.space)) == {"communication.scheme": "int8"}


@pytest.mark.parametrize("plain", ["auto", "int8", "topk"])
def test_a_plain_name_in_the_job_is_its_scheme_where_schemes_are_searched(plain: str) -> None:
    choice = {"communication.scheme": {"choice": ["topk", "int8"], "when": {"config.deep": True}}}
    space = {
        "config.deep": {"choice": [True, False]},
        **choice,
        "communication.fraction": {**FRACTION, "when": {"communication.scheme": "topk"}},
    }
    spec = accepted(job=job(plain), space=space)
    assert spec == accepted(job=job({"scheme": plain}), space=space)
    assert trial_spec(spec, 0, {"config.deep": False}).exchange.scheme == plain
    deep = {"config.deep": True, "communication.scheme": "topk", "communication.fraction": 0.05}
    asked = trial_spec(spec, 1, deep).exchange
    assert (asked.scheme, asked.options, asked.loss_class) == ("topk", {"fraction": 0.05}, "lossy")


def test_an_option_beside_a_plain_name_has_its_scheme_also_where_another_is_searched_only_at_times() -> None:
    space = {
        "config.deep": {"choice": [True, False]},
        "communication.scheme": {"choice": ["none", "int8"], "when": {"config.deep": True}},
        "communication.bucket_mib": {"choice": [4, 25]},
    }
    spec = accepted(job=job("int4"), space=space)
    asked = trial_spec(spec, 0, {"config.deep": False, "communication.bucket_mib": 4}).exchange
    assert (asked.scheme, asked.options["bucket_mib"]) == ("int4", 4)


def test_a_class_of_loss_is_searched_beside_a_plain_name() -> None:
    space = {"communication.loss_class": {"choice": ["lossless", "lossy"]}}
    spec = accepted(job=job("auto"), space=space)
    asked = trial_spec(spec, 0, {"communication.loss_class": "lossy"}).exchange
    assert (asked.scheme, asked.loss_class) == ("auto", "lossy")


@pytest.mark.parametrize(
    ("communication", "path", "values", "value"),
    [
        (TOPK, "communication.fraction", [0.01, 0.1], 0.01),
        ("topk", "communication.options.fraction", [0.01, 0.1], 0.01),
        ({"scheme": "int8"}, "communication.bucket_mib", [4, 25], 25),
        ("int8", "communication.fraction", [0.01, 0.1], None),
        ({"scheme": "int8"}, "communication", ["none", "int8"], "int8"),
        ({"scheme": "int8", "bucket_mib": 4}, "communication", ["none", "int8"], None),
        ("auto", "workers", [1, 2], 1),
    ],
)
def test_a_configuration_that_leaves_a_searched_option_to_its_default_lies_there(
    communication: Any, path: str, values: list[Any], value: Any
) -> None:
    in_use = parse_job_spec({**job(communication), "workers": 1, "name": "in-use"}).model_dump(mode="json")
    choice = {path: DistributionSpec.model_validate({"choice": values})}
    assert point_of(in_use, space_of(choice)) == (None if value is None else {path: value})
