"""Reads ``requirements.txt`` into the dependencies of a job spec (PEP 508)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

FILE_NAME = "requirements.txt"
MAX_NESTING = 5


class RequirementsError(Exception):
    """A line of ``requirements.txt`` cannot become a job's dependency; the message names it."""


def read_requirements(folder: Path) -> tuple[str, ...]:
    """The requirements of ``folder/requirements.txt`` in their order, each once; none without the file.

    ``-r other.txt`` within the folder is followed. Other options of pip, such as an index, belong to
    the machine that installs and not to the job: they are refused.

    Raises RequirementsError.
    """
    file = folder / FILE_NAME
    if not file.is_file():
        return ()
    return tuple(dict.fromkeys(_read(file, folder.resolve(), depth=0)))


def _read(file: Path, root: Path, depth: int) -> Iterator[str]:
    if depth > MAX_NESTING:
        raise RequirementsError(f"{file.name} is included more than {MAX_NESTING} levels deep; remove the circle of -r")
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        requirement = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not requirement:
            continue
        included = re.match(r"(?:-r|--requirement)[\s=]*(\S+)$", requirement)
        if included:
            yield from _read(_inside(file.parent / included[1], root, file.name, requirement), root, depth + 1)
            continue
        yield _checked(requirement, file.name)


def _inside(path: Path, root: Path, name: str, line: str) -> Path:
    resolved = path.resolve()
    if not resolved.is_relative_to(root) or not resolved.is_file():
        raise RequirementsError(f"{name}: {line!r} names no file inside the code folder; move it there")
    return resolved


def _checked(requirement: str, name: str) -> str:
    if requirement.startswith("-"):
        raise RequirementsError(
            f"{name}: the option {requirement!r} cannot travel with a job; "
            "remove it, or list `dependencies:` in the job file"
        )
    bare = re.split(r"\s--hash[= ]", requirement)[0].strip()
    try:
        Requirement(bare)
    except InvalidRequirement as error:
        raise RequirementsError(
            f"{name}: {requirement!r} is not a PEP 508 requirement ({str(error).splitlines()[0]}); "
            "write for example 'einops>=0.8', or 'name @ file:///path/to.whl' for a wheel"
        ) from None
    return bare
