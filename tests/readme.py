"""README's own lines, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
GRADIENTS = (ROOT / "workers/training/exchange/README.md").read_text()


def block(after: str) -> str:
    """The first block of code behind these words."""
    assert README.count(after) == 1, f"README has {after!r} {README.count(after)} times"
    found = re.search(r"```\w*\n(.*?)```", README.partition(after)[2], re.DOTALL)
    assert found is not None
    return found[1]


def file_name() -> str:
    (name,) = set(re.findall(r"first-\d+\.safetensors", README))
    return str(name)
