"""What is no number and no choice is refused with what is wrong, the value seen, and what to write."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.tuning.given import refused
from tuning.written_values import MAX_CHARACTERS, MAX_CHOICES

BOUND = "write the farthest value that is worth a trial, such as"
APART = "write how far values lie apart, or leave step out"
PLAIN = "must be a number, a text, true, false or null"
BEYOND = "lies beyond 2^53, where samplers cannot tell whole numbers apart"
LOOKED_UP = "search its parts by their paths, or choose among names that your code looks up"


@pytest.mark.parametrize(
    ("distribution", "where", "detail"),
    [
        ({"uniform": [0, math.nan]}, "/uniform/1", f"must be a finite number; {BOUND} 0.1 (seen: nan)"),
        ({"log_uniform": [1, math.inf]}, "/log_uniform/1", f"must be a finite number; {BOUND} 0.1 (seen: inf)"),
        ({"int": [-math.inf, 2]}, "/int/0", f"must be a whole number, and finite; {BOUND} 8 (seen: -inf)"),
        ({"uniform": [0, 1], "step": math.nan}, "/step", f"must be a finite number; {APART} (seen: nan)"),
        ({"uniform": [0, True]}, "/uniform/1", f"must be a number, neither true nor false; {BOUND} 0.1 (seen: True)"),
        ({"uniform": [0, 9], "step": True}, "/step", f"must be a number, neither true nor false; {APART} (seen: True)"),
        ({"int": [False, 2]}, "/int/0", f"must be a whole number, neither true nor false; {BOUND} 8 (seen: False)"),
        ({"int": [1.5, 8]}, "/int/0", "must be a whole number; round it, or search uniform (seen: 1.5)"),
        ({"int": ["8", 9]}, "/int/0", "must be a whole number; a number is written without quotes (seen: '8')"),
        ({"int": [[8], 9]}, "/int/0", f"must be a whole number; {BOUND} 8 (seen: [8])"),
        (
            {"int": [0, 2**53 + 2]},
            "/int/1",
            f"{BEYOND}; take a bound nearer to 0, or search log_uniform (seen: 9007199254740994)",
        ),
        (
            {"uniform": [1]},
            "/uniform",
            "must be a list of two bounds, and this one has 1; write [low, high] (seen: [1])",
        ),
        ({"uniform": 3}, "/uniform", "must be a list of two bounds; write [low, high] (seen: 3)"),
        ({"choice": []}, "/choice", "lists nothing to choose from; give at least one value, as in [32, 64] (seen: [])"),
        ({"choice": "abc"}, "/choice", "must be a list; write its values as in [32, 64] (seen: 'abc')"),
        (
            {"choice": [math.nan]},
            "/choice/0",
            "must be a finite number; leave it out, or write it as a text (seen: nan)",
        ),
        ({"choice": [1, [1]]}, "/choice/1", f"{PLAIN}, not a list; {LOOKED_UP} (seen: [1])"),
        ({"choice": [{"a": 1}]}, "/choice/0", f"{PLAIN}, not a mapping; {LOOKED_UP} (seen: {{'a': 1}})"),
        ({"choice": [2**53 + 2]}, "/choice/0", f"{BEYOND}; write it as a text (seen: 9007199254740994)"),
        (
            {"int": [1, 2], "when": {"config.y": [1]}},
            "/when/config.y",
            f"{PLAIN}, not a list; write the one value for which this is searched (seen: [1])",
        ),
        (
            {},
            "",
            "exactly one of uniform, log_uniform, int and choice says what is searched; given: none of them; "
            "write one, as in uniform: [0, 1]",
        ),
    ],
)
def test_a_refusal_tells_what_is_wrong_the_value_and_the_remedy(distribution: Any, where: str, detail: str) -> None:
    assert refused(space={"config.x": distribution}) == {f"/space/config.x{where}": detail}


@pytest.mark.parametrize(
    ("choice", "where", "told"),
    [
        (list(range(MAX_CHOICES + 1)), "", "lists 1,001 values, more than 1,000; leave some out, or search a range"),
        (["x" * (MAX_CHARACTERS + 1)], "/0", "has 1,001 characters, more than 1,000; choose among short names"),
        ([10**400], "/0", f"{BEYOND}; write it as a text (seen: 1000"),
        ([[list(range(10_000))] * 10_000], "/0", f"{LOOKED_UP} (seen: [[0, 1, 2, 3, 4, 5, ...], "),
    ],
    ids=["values", "characters", "digits", "items"],
)
def test_what_is_much_too_long_is_told_in_brief(choice: list[Any], where: str, told: str) -> None:
    found = refused(space={"config.x": {"choice": choice}})[f"/space/config.x/choice{where}"]
    assert told in found
    assert len(found) < 500


@pytest.mark.parametrize("value", [["s3cret"], {"token": "s3cret"}, "s3cret" * MAX_CHARACTERS])
def test_the_value_of_a_variable_is_not_shown(value: Any) -> None:
    told = refused(space={"env.TOKEN": {"choice": [value]}})["/space/env.TOKEN/choice/0"]
    assert told.endswith(" (seen: ...)")
    assert "s3cret" not in told


@pytest.mark.parametrize(
    ("kind", "bounds"), [("int", [48151, 2]), ("uniform", [48151.0, 48151.1]), ("log_uniform", [-48151, 48151])]
)
def test_no_bound_of_a_variable_is_shown_either(kind: str, bounds: list[float]) -> None:
    found = refused(space={"env.PIN": {kind: bounds, "step": 481516}})
    assert found == {f"/space/env.PIN/{kind}": "the value of a variable is a text; list a choice of texts"}
    assert "4815" not in repr(refused(space={"env.PIN": {"int": [48151.5, 48152]}}))


TWO = {"choice": ["s3cret", "other"]}


@pytest.mark.parametrize(
    ("space", "where", "detail"),
    [
        (
            {"env.TOKEN": {"choice": ["s3cret", "s3cret"]}},
            "env.TOKEN/choice",
            "one of the values is listed twice; keep one",
        ),
        (
            {"env": {"choice": [{"TOKEN": "s3cret"}]}},
            "env/choice/0",
            f"{PLAIN}, not a mapping; {LOOKED_UP} (seen: ...)",
        ),
        (
            {"config.x": {"int": [1, 2], "when": {"env.TOKEN": ["s3cret"]}}},
            "config.x/when/env.TOKEN",
            f"{PLAIN}, not a list; write the one value for which this is searched (seen: ...)",
        ),
        (
            {"env.TOKEN": TWO, "config.x": {"int": [1, 2], "when": {"env.TOKEN": "s3cre"}}},
            "config.x/when/env.TOKEN",
            "env.TOKEN cannot be what is written here; give one of its values",
        ),
        (
            {
                "env.TOKEN": TWO,
                "config.x": {"int": [1, 2], "when": {"env.TOKEN": "s3cret"}},
                "config.y": {"int": [1, 2], "when": {"env.TOKEN": "other", "config.x": 1}},
            },
            "config.y/when",
            "never met: env.TOKEN would be of two values; change one of them",
        ),
    ],
)
def test_no_refusal_names_the_value_of_a_variable(space: dict[str, Any], where: str, detail: str) -> None:
    found = refused(space=space)
    assert found[f"/space/{where}"] == detail
    assert "s3cre" not in repr(found)


@pytest.mark.parametrize("space", [{"env": "s3cret"}, {"env.TOKEN": "s3cret"}, {"env": {"choice": ["s3cret"]}}])
def test_no_refusal_of_what_is_no_distribution_names_it_either(space: dict[str, Any]) -> None:
    assert "s3cret" not in repr(refused(space=space))
