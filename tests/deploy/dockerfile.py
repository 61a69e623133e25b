"""Reads a Dockerfile: its instructions in order, in the stages that they build."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One instruction; ``stage`` is the name of its FROM, empty for the last one."""

    stage: str
    verb: str
    text: str

    @property
    def words(self) -> list[str]:
        """Its words, of either form in which commands are written."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)


def read_steps(file: Path) -> list[Step]:
    """All instructions, without comments and with continued lines joined."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    steps: list[Step] = []
    stage = ""
    for line in filter(None, map(str.strip, joined.splitlines())):
        verb, _, text = line.partition(" ")
        if verb == "FROM":
            stage = text.partition(" AS ")[2]
        steps.append(Step(stage=stage, verb=verb, text=text.strip()))
    return steps
