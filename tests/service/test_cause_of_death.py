from __future__ import annotations

import pytest
from ray.exceptions import RayError

from service.cluster import MAX_CAUSE_CHARS, cause_of_death

IN_ITS_CONSTRUCTOR = """The actor died because of an error raised in its creation task, ray::JobController.__init__()
  File "controller.py", line 7, in __init__
    raise ValueError("cannot load libfoo.so")
ValueError: cannot load libfoo.so"""

KILLED = """The actor died unexpectedly before finishing this task.
\tclass_name: JobController
\tpid: 8145
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR
The actor never ran - it was cancelled before it started running."""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (IN_ITS_CONSTRUCTOR, "RayError: ValueError: cannot load libfoo.so"),
        (
            KILLED,
            "RayError: The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        ),
        ("", "RayError"),
        ("x" * 9_000, f"RayError: {'x' * MAX_CAUSE_CHARS}"),
    ],
)
def test_of_what_ray_tells_of_a_dead_actor_its_owner_gets_the_line_with_the_cause(text: str, cause: str) -> None:
    assert cause_of_death(RayError(text)) == cause
