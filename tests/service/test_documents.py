"""YAML as people mean it, and `--set`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.changing import parse_workers
from service.cli.documents import DocumentError, apply_settings, parse
from service.cli.failures import CommandError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("3.0e-3", 0.003),
        ("-.5", -0.5),
        ("12", 12),
        ("007", 7),
        ("1_000", 1000),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("", None),
        ("2026-11-21", "2026-11-21"),
        ("1:30", "1:30"),
        ("[1, two]", [1, "two"]),
        ("{min: 1, max: 4}", {"min": 1, "max": 4}),
        ('"5"', "5"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_a_value_is_what_it_looks_like(text: str, value: Any) -> None:
    found = parse(text, "test")
    assert found == value
    assert type(found) is type(value)


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_json_is_yaml(value: Any) -> None:
    assert parse(json.dumps(value), "test") == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\na: 2", r"line 2: the key 'a' stands twice"),
        ("a: [1", "line 1"),
        ("!!python/object:os.system {}", "line 1"),
        ("a: .nan", None),
        ("&a [*a]", "cannot be sent as JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' stands twice"),
        ("a: 1\nb: !!int abc", "^job.yaml, line 2: 'abc' is no int$"),
        ("b: !!float abc", "^job.yaml, line 1: 'abc' is no float$"),
        ("b: !!bool abc", "^job.yaml, line 1: 'abc' is no bool$"),
        ("b: !!timestamp abc", "^job.yaml, line 1: 'abc' is no timestamp$"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(text: str, complaint: str | None) -> None:
    if complaint is None:
        assert parse(text, "job.yaml") == {"a": ".nan"}
        return
    with pytest.raises(DocumentError, match=complaint):
        parse(text, "job.yaml")


@pytest.mark.parametrize("number", ["9" * 4301, "-" + "9" * 5000, "1_" * 5000 + "1", "0" * 5000])
def test_a_whole_number_that_is_too_long_to_read_is_refused_with_its_place_and_what_to_do(number: str) -> None:
    num_digits = len(number.replace("_", "").lstrip("-"))
    told = (
        f"a whole number has {num_digits} digits; at most 4300 are read: write a shorter one, or quotes around a text"
    )
    with pytest.raises(DocumentError) as refused:
        parse(f"name: a\nsteps: {number}\n", "job.yaml")
    assert str(refused.value) == f"job.yaml, line 2: {told}"
    with pytest.raises(DocumentError) as refused:
        apply_settings({}, [f"steps={number}"])
    assert str(refused.value).startswith("--set steps=")
    assert str(refused.value).endswith(f", line 1: {told}")
    assert len(str(refused.value)) < 300
    assert parse(f"a: '{number}'", "job.yaml") == {"a": number}
    assert parse(f"a: -{'9' * 4300}", "job.yaml") == {"a": -int("9" * 4300)}


def test_settings_reach_into_the_document_and_leave_the_original_alone() -> None:
    spec = {"name": "a", "optimizer": {"lr": 0.1}, "workers": None}
    changed = apply_settings(spec, ["optimizer.lr=3e-4", "workers.max=4", "config.layers=[1, 2]", "name=b=c"])
    assert changed == {
        "name": "b=c",
        "optimizer": {"lr": 3e-4},
        "workers": {"max": 4},
        "config": {"layers": [1, 2]},
    }
    assert spec["optimizer"] == {"lr": 0.1}


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("lr", "path=value"),
        ("=1", "path=value"),
        ("a..b=1", "path=value"),
        ("name.x=1", "name is 'a', which has no parts"),
    ],
)
def test_a_setting_that_has_no_place_is_refused(setting: str, complaint: str) -> None:
    with pytest.raises(DocumentError, match=complaint):
        apply_settings({"name": "a"}, [setting])


@pytest.mark.parametrize(
    ("text", "workers"), [("3", 3), ("auto", "auto"), ("1-4", {"min": 1, "max": 4}), ("1..4", {"min": 1, "max": 4})]
)
def test_a_number_of_workers_is_a_number_a_range_or_auto(text: str, workers: Any) -> None:
    assert parse_workers(text) == workers


@pytest.mark.parametrize("text", ["", "two", "-1", "1-", "1.5", "²"])
def test_anything_else_is_no_number_of_workers(text: str) -> None:
    with pytest.raises(CommandError, match="give 3, a range such as 1-4, or auto"):
        parse_workers(text)
