"""What an installation brings, by the metadata of what is installed here: nobody else's test dependencies help it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]


def brought(wanted: Iterable[str]) -> set[str]:
    """Distributions that installing these requirements brings."""
    todo = [Requirement(text) for text in wanted]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            further = [Requirement(text) for text in requires(requirement.name) or ()]
        except PackageNotFoundError:
            continue
        extras = requirement.extras or {""}
        todo += [r for r in further if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return {name for name, _ in seen}


@pytest.mark.parametrize(("extra", "needed"), [("postgres", {"asyncpg", "greenlet"}), ("s3", {"s3fs"})])
def test_an_extra_brings_all_that_its_part_loads(extra: str, needed: set[str]) -> None:
    assert needed <= brought([*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]])
    assert not needed <= brought(PROJECT["dependencies"])
