"""The search space: what is refused, which points there are, and that all their jobs are valid."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning.given import JOB, accepted, refused
from tuning.distributions import Choice, Uniform, Whole
from tuning.parsing import parse_sweep_spec
from tuning.space import Space, space_of
from tuning.spec import trial_spec
from workers.errors import SpecError


def space(**specs: Any) -> Space:
    return space_of(accepted(space={f"config.{name}": spec for name, spec in specs.items()}).space)


@pytest.mark.parametrize(
    ("distribution", "where", "told"),
    [
        ({}, "", "given: none of them"),
        ({"uniform": [0, 1], "int": [0, 1]}, "", "given: uniform and int"),
        ({"log_uniform": [0, 1]}, "/log_uniform", "a logarithm needs bounds above 0 (seen: low=0.0)"),
        ({"int": [0, 8], "log": True}, "/int", "must be at least 1 (seen: 0)"),
        ({"uniform": [2, 1]}, "/uniform", "low=2.0 is above high=1.0; swap them"),
        ({"int": [2, 1]}, "/int", "low=2 is above high=1; swap them"),
        ({"int": [1, 8], "log": True, "step": 2}, "/step", "step and log exclude each other"),
        ({"log_uniform": [1, 8], "step": 2}, "/step", "leave it out, or list a choice"),
        ({"uniform": [1, 8], "log": True}, "/log", "use log_uniform"),
        ({"uniform": [0, 1], "step": 0}, "/step", "must be above 0 (seen: 0.0)"),
        ({"uniform": [0, 1], "step": -1}, "/step", "must be above 0 (seen: -1.0)"),
        ({"uniform": [0, 1], "step": math.nan}, "/step", "must be a finite number"),
        ({"uniform": [0, math.nan]}, "/uniform/1", "must be a finite number"),
        ({"log_uniform": [1, math.inf]}, "/log_uniform/1", "must be a finite number"),
        ({"uniform": [-1.7e308, 1.7e308]}, "/uniform", "too wide for a number"),
        ({"uniform": [0, 1], "step": 0.3}, "/step", "do not meet high=1; set high to 0.9"),
        ({"uniform": [0, 5e-324]}, "/uniform", "too narrow for a sampler"),
        ({"log_uniform": [1, 1 + 1e-15]}, "/log_uniform", "too narrow for a sampler"),
        ({"uniform": [0, 1], "step": 1e-300}, "/step", "too many to tell apart; leave step out"),
        ({"uniform": [0, 1], "step": 5}, "/step", "use a step of at most 1"),
        ({"int": [1, 8], "step": 3}, "/step", "do not meet high=8; set high to 7"),
        ({"int": [1, 8], "step": 0.5}, "/step", "is whole too (seen: 0.5)"),
        ({"int": [1.5, 8]}, "/int/0", "must be a whole number; round it, or search uniform"),
        ({"uniform": ["1e-4", 1]}, "/uniform/0", "a number is written without quotes"),
        ({"uniform": [True, 2]}, "/uniform/0", "must be a number, neither true nor false"),
        ({"int": [False, 2]}, "/int/0", "must be a whole number, neither true nor false"),
        ({"int": [0, 2**53 + 2]}, "/int/1", "lies beyond 2^53"),
        ({"uniform": [1]}, "/uniform", "this one has 1; write [low, high]"),
        ({"choice": []}, "/choice", "give at least one value"),
        ({"choice": "abc"}, "/choice", "must be a list; write its values as in [32, 64] (seen: 'abc')"),
        ({"choice": ["a", "a"]}, "/choice", "'a' is listed twice"),
        ({"choice": [True, 1]}, "/choice", "True and 1 are equal to a sampler"),
        ({"choice": [1, 1.0]}, "/choice", "1 and 1.0 are equal to a sampler"),
        ({"choice": [[1], 2]}, "/choice/0", "not a list"),
        ({"choice": [{"a": 1}]}, "/choice/0", "not a mapping"),
        ({"choice": [2**53 + 2]}, "/choice/0", "lies beyond 2^53"),
        ({"choice": [10**400]}, "/choice/0", "lies beyond 2^53"),
        ({"choice": [math.nan]}, "/choice/0", "must be a finite number"),
        ({"unifrom": [0, 1]}, "/unifrom", "did you mean 'uniform'?"),
        (3, "", "must be a distribution: {uniform: [low, high]}"),
    ],
)
def test_a_distribution_that_a_sampler_would_trip_over_is_refused(distribution: Any, where: str, told: str) -> None:
    assert told in refused(space={"config.x": distribution})[f"/space/config.x{where}"]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("optimzer.lr", "did you mean optimizer?"),
        ("optimizer.momentum", "known here: base_batch, clip_norm, lr"),
        ("optimizer", "search what is in it: optimizer.base_batch"),
        ("optimizer.lr.x", "nothing inside it that could be called 'x'; search optimizer.lr"),
        ("config", "search a key of it, such as config.KEY"),
        ("env.A.b", "search env.A"),
        ("dependencies", "is a list"),
        ("name", "a sweep names its trials itself"),
        ("config..x", "is not a path"),
        ("config." + "x" * 200, "at most 128 characters"),
        ("", "is not a path"),
    ],
)
def test_a_path_that_the_job_spec_does_not_have_is_refused(path: str, told: str) -> None:
    assert told in refused(space={path: {"int": [1, 2]}})[f"/space/{path}"]


def test_an_empty_space_is_refused_and_so_is_a_crowded_one() -> None:
    assert "nothing is searched" in refused(space={})["/space"]
    assert "65 parameters" in refused(space={f"config.x{i}": {"int": [1, 2]} for i in range(65)})["/space"]


def test_two_paths_to_one_value_are_refused() -> None:
    found = refused(space={"config.a": {"int": [1, 2]}, "config.a.b": {"int": [1, 2]}})
    assert found == {"/space/config.a": "config.a and config.a.b set the same value; keep one of them"}


def test_a_path_through_a_plain_value_of_the_job_is_refused() -> None:
    found = refused(space={"workers.max": {"int": [2, 4]}}, job={**JOB, "workers": 2})
    assert found["/space/workers.max"].endswith("write that as a mapping in the job")


@pytest.mark.parametrize(
    ("specs", "pointer", "told"),
    [
        (
            {"a": {"int": [1, 2], "when": {"config.b": 7}}, "b": {"int": [1, 3]}},
            "/config.a/when/config.b",
            "config.b cannot be 7; give one of its values, such as 1",
        ),
        (
            {"a": {"int": [1, 2], "when": {"config.b": 1}}, "b": {"choice": [True, False]}},
            "/config.a/when/config.b",
            "config.b cannot be 1",
        ),
        (
            {"a": {"int": [1, 2], "when": {"config.b": 0.5}}, "b": {"uniform": [0, 1]}},
            "/config.a/when/config.b",
            "is continuous and as good as never 0.5",
        ),
        (
            {"a": {"int": [1, 2], "when": {"config.b": 1}}, "b": {"int": [1, 3], "when": {"config.a": 1}}},
            "/config.a/when",
            "wait for one another: config.a -> config.b -> config.a",
        ),
        ({"a": {"int": [1, 2], "when": {"config.a": 1}}}, "/config.a/when", "config.a -> config.a"),
        (
            {
                "a": {"int": [1, 2]},
                "b": {"int": [1, 2], "when": {"config.a": 1}},
                "c": {"int": [1, 2], "when": {"config.b": 1, "config.a": 2}},
            },
            "/config.c/when",
            "never met: config.a would be both 1 and 2",
        ),
    ],
)
def test_a_condition_that_cannot_hold_is_refused(specs: dict[str, Any], pointer: str, told: str) -> None:
    found = refused(space={f"config.{name}": spec for name, spec in specs.items()})
    assert told in found[f"/space{pointer}"]


FIXED = {**JOB, "config": {"kind": "rich", "depth": 2}, "workers": 2}
LR = {"optimizer.lr": {"uniform": [0.1, 0.2]}}


def searched(when: dict[str, Any], job: dict[str, Any] = FIXED) -> set[str]:
    """What is searched besides ``optimizer.lr`` of a parameter with these conditions, and one that hangs on it."""
    below = {"config.b": {"int": [1, 2], "when": {"config.a": 1}}}
    spec = accepted(job=job, space={**LR, "config.a": {"int": [1, 2], "when": when}, **below})
    assert not spec.space["config.a"].when if "config.a" in spec.space else True
    return set(spec.space) - set(LR)


@pytest.mark.parametrize(
    "when",
    [
        {"config.kind": "rich"},
        {"config.depth": 2.0},
        {"lr_schedule.decay": "cosine"},
        {"workers.max": 2},
        {"optimizer.clip_norm": None},
        {"samples": None},
        {"config.none": None},
        {"config.kind": "rich", "epochs": 15},
    ],
)
def test_a_condition_over_a_value_that_the_job_fixes_is_settled_by_it_where_it_holds(when: dict[str, Any]) -> None:
    assert searched(when) == {"config.a", "config.b"}


@pytest.mark.parametrize(
    "when",
    [
        {"config.kind": "plain"},
        {"config.depth": True},
        {"lr_schedule.decay": "linear"},
        {"workers.max": 3},
        {"config.regularise": True},
        {"config.kind": "rich", "epochs": 14},
    ],
)
def test_what_hangs_on_a_value_that_the_job_does_not_have_is_not_searched(when: dict[str, Any]) -> None:
    assert searched(when) == set()


def test_the_sweep_of_the_contract_is_accepted_as_it_stands() -> None:
    conditional = {"config.dropout": {"uniform": [0.0, 0.5], "when": {"config.regularise": True}}}
    assert set(accepted(space={**LR, **conditional}).space) == {"optimizer.lr"}
    spec = accepted(job={**JOB, "config": {"regularise": True}}, space={**LR, **conditional})
    assert set(spec.space) == {"optimizer.lr", "config.dropout"}
    assert parse_sweep_spec(spec.model_dump(mode="json")) == spec


def test_one_condition_may_hang_on_the_job_and_another_on_the_space() -> None:
    both = {"int": [1, 2], "when": {"config.kind": "rich", "config.b": 2}}
    spec = accepted(job=FIXED, space={"config.b": {"choice": [1, 2]}, "config.a": both})
    assert spec.space["config.a"].when == {"config.b": 2}
    assert space_of(spec.space).count() == 3


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ({"optimzer.lr": 1}, "did you mean optimizer?"),
        ({"lr_schedule.decay": "cosin"}, "did you mean 'cosine'?"),
        ({"config.knd": "rich"}, "did you mean config.kind?"),
        ({"config.optimised.lr": 1}, ""),
    ],
)
def test_a_condition_over_something_that_no_job_has_is_refused(when: dict[str, Any], told: str) -> None:
    specs = {**LR, "config.a": {"int": [1, 2], "when": when}}
    if told:
        assert told in refused(job=FIXED, space=specs)[f"/space/config.a/when/{next(iter(when))}"]
    else:
        assert accepted(job=FIXED, space=specs)


def test_a_space_of_which_the_job_leaves_nothing_is_refused() -> None:
    found = refused(job=FIXED, space={"config.a": {"int": [1, 2], "when": {"config.kind": "plain"}}})
    assert found == {
        "/space/config.a/when/config.kind": "nothing is searched: config.kind is 'rich' in the job, never 'plain'; "
        "set it there, search it too, or take the condition out"
    }
    broken = {**LR, "config.a": {"int": [2, 1], "when": {"config.kind": "plain"}}}
    assert "swap them" in refused(job=FIXED, space=broken)["/space/config.a/int"], "though it would not be searched"


def test_a_grid_of_a_million_points_is_refused_with_its_count() -> None:
    specs = {"config.a": {"int": [1, 1000]}, "config.b": {"uniform": [0, 0.999], "step": 0.001}}
    assert "the grid has 1,000,000 points" in refused(space=specs, sampler="grid")["/sampler"]


def test_a_grid_counts_only_the_points_that_there_are() -> None:
    conditional = space(
        a={"choice": ["x", "y", "z"]},
        b={"uniform": [0, 0.3], "step": 0.1, "when": {"config.a": "x"}},
        c={"int": [1, 2], "when": {"config.a": "y"}},
    )
    points = list(conditional.grid())
    assert conditional.count() == len(points) == 4 + 2 + 1
    assert [p["config.b"] for p in points if "config.b" in p] == [0, 0.1, 0.2, 0.3]
    assert all(conditional.contains(p) for p in points)


def test_a_space_contains_its_points_and_nothing_else() -> None:
    some = space(a={"choice": [True, False]}, b={"uniform": [0, 1], "step": 0.1, "when": {"config.a": True}})
    assert some.contains({"config.a": True, "config.b": 0.30000000000000004})
    assert some.contains({"config.a": False})
    for params in (
        {"config.a": True},
        {"config.a": False, "config.b": 0.3},
        {"config.a": True, "config.b": 0.35},
        {"config.a": 1, "config.b": 0.3},
        {"config.a": True, "config.b": 0.3, "config.c": 1},
    ):
        assert not some.contains(params)


def test_a_parameter_is_asked_for_only_where_its_conditions_hold() -> None:
    some = space(a={"choice": ["x", "y"]}, b={"int": [1, 2], "when": {"config.a": "x"}})
    asked = [some.point(lambda path, _, a=a: a if path == "config.a" else 1) for a in ("x", "y")]
    assert asked == [{"config.a": "x", "config.b": 1}, {"config.a": "y"}]


def test_a_step_is_met_however_a_sampler_adds_it_up() -> None:
    tenths = Uniform(low=0, high=1, step=0.1)
    assert [tenths.snapped(0 + 0.1 * i) for i in range(11)] == [i / 10 for i in range(11)]
    assert (tenths.snapped(1.04), tenths.snapped(-0.2), tenths.count()) == (1.0, 0.0, 11)


@pytest.mark.parametrize(
    ("specs", "pointer", "told"),
    [
        ({"optimizer.lr": {"uniform": [0, 1]}}, "/space/optimizer.lr", "with optimizer.lr=0.0: must be greater than 0"),
        ({"batch.global_size": {"uniform": [2, 4]}}, "/space/batch.global_size", "must be a whole number (seen: 2.7"),
        ({"resources.gpus": {"uniform": [0, 4]}}, "/space/resources.gpus", "=1.527864: 1.52786 is not built yet"),
        (
            {"lr_schedule.decay": {"choice": ["cosine", "cubic"]}},
            "/space/lr_schedule.decay",
            "with lr_schedule.decay=cubic",
        ),
        (
            {"batch.global_size": {"int": [16, 64]}, "batch.micro_size": {"int": [4, 32]}},
            "/space/batch.micro_size",
            "with batch.global_size=16, batch.micro_size=32: 32 is above batch.global_size=16",
        ),
        ({"workers.min": {"int": [1, 3]}}, "/space/workers.min", "with workers.min=3: min=3 is above max=2"),
        ({"samples": {"int": [10, 90]}}, "/space/samples", "given: epochs and samples; keep one"),
        (
            {"config.a": {"int": [1, 9]}, "priority": {"int": [0, 3], "when": {"config.a": 5}}},
            "/space/priority",
            "3 is not built yet; use 0",
        ),
    ],
)
def test_a_value_that_makes_an_invalid_job_is_refused(specs: dict[str, Any], pointer: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        accepted(space=specs)
    assert told in {p.pointer: p.detail for p in caught.value.problems}[pointer]


def test_two_values_that_exclude_each_other_are_found_among_many_parameters() -> None:
    many = {f"config.c{i}": {"choice": list(range(9))} for i in range(8)}
    others = {"seed": {"int": [0, 9]}, "eval_every_steps": {"int": [1, 9]}, "checkpoint.keep": {"int": [1, 9]}}
    more = {"retry.max_failures": {"int": [0, 9]}, "lr_schedule.decay": {"choice": ["cosine", "linear", "constant"]}}
    pair = {"batch.global_size": {"choice": [32, 8, 64, 128]}, "batch.micro_size": {"choice": ["auto", 4, 16]}}
    length = {"checkpoint.every_steps": {"int": [1, 9]}, "optimizer.clip_norm": {"choice": [None, 1.0, 0.5]}}
    specs = {**many, **others, **more, **pair, **length}
    assert "16 is above batch.global_size=8" in refused(space=specs)["/space/batch.micro_size"]
    assert accepted(space={**specs, "batch.global_size": {"choice": [32, 64]}})


def test_the_value_of_a_variable_is_never_shown() -> None:
    found = refused(space={"env.A": {"choice": ["hunter2", "b"]}, "optimizer.lr": {"uniform": [0, 1]}})
    assert "hunter2" not in str(found)


WORDS = st.sampled_from(["auto", "cosine", "fixed", "x", ""])
NUMBERS = st.sampled_from([0, 1, 2, 3, 8, 16, 100, 128, -1, 0.5, 0.1, 1e-3])
SCALARS = st.one_of(NUMBERS, WORDS, st.booleans(), st.none())
DISTRIBUTIONS = st.one_of(
    st.fixed_dictionaries({"uniform": st.lists(NUMBERS, min_size=2, max_size=2)}, optional={"step": NUMBERS}),
    st.fixed_dictionaries({"log_uniform": st.lists(NUMBERS, min_size=2, max_size=2)}),
    st.fixed_dictionaries({"int": st.lists(NUMBERS, min_size=2, max_size=2)}, optional={"log": st.booleans()}),
    st.fixed_dictionaries({"choice": st.lists(SCALARS, min_size=1, max_size=3)}),
)
PATHS = st.sampled_from(
    [
        *("optimizer.lr", "batch.global_size", "batch.micro_size", "workers.min", "workers.max", "resources.gpus"),
        *(
            "config.a",
            "config.b",
            "samples",
            "lr_schedule.decay",
            "optimizer.base_batch",
            "seed",
            "optimizer.clip_norm",
        ),
    ]
)


@st.composite
def spaces(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = draw(st.dictionaries(PATHS, DISTRIBUTIONS, min_size=1, max_size=4))
    paths = list(found)
    if len(paths) > 1 and draw(st.booleans()):
        found[paths[1]] = {**found[paths[1]], "when": {paths[0]: draw(SCALARS)}}
    return found


@settings(max_examples=300)
@given(spaces(), st.data())
def test_whatever_is_accepted_makes_valid_jobs_only_and_whatever_is_refused_says_where(
    specs: dict[str, Any], data: st.DataObject
) -> None:
    document = {"name": "s", "job": {**JOB, "samples": None}, "space": specs, "metric": "loss", "mode": "min"}
    if "samples" in specs:
        document["job"] = {k: v for k, v in JOB.items() if k != "epochs"}
    try:
        spec = parse_sweep_spec(document)
    except SpecError as error:
        told = error.problems
    else:
        told = ()
    assert all(p.pointer.startswith(("/space", "/job/")) and len(p.detail) > 10 for p in told)
    if told:
        return

    def choose(path: str, distribution: Uniform | Whole | Choice) -> Any:
        match distribution:
            case Choice(options=options):
                return data.draw(st.sampled_from(options), path)
            case Whole():
                return distribution.at(data.draw(st.integers(0, distribution.count() - 1), path))
            case Uniform():
                return distribution.snapped(data.draw(st.floats(distribution.low, distribution.high), path))

    some = space_of(spec.space)
    point = some.point(choose)
    assert some.contains(point)
    trial_spec(spec, 0, point)
