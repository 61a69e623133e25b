"""What the service and its API import of ``workers`` is light: no module of the top level is forgotten."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_module_beside_the_subpackages_is_held_to_be_light() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (light,) = [c for c in contracts if c["name"] == "The contract is light to import"]
    found = {f"workers.{file.stem}" for file in (ROOT / "workers").glob("*.py") if file.stem != "__init__"}
    assert set(light["source_modules"]) == found
    assert {"ray", "torch"} <= set(light["forbidden_modules"])
