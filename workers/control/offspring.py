"""Processes that a job's code has started end with their worker, however that ends: nobody else knows of them.

Ray ends those that it finds when it ends a worker itself, and none of a worker that was killed or left by itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess

_GUARD = 'read -r nothing; kill -KILL "-$1"'


@functools.cache
def guard() -> None:
    """From now on what this process starts ends with it; call it before there are such processes, and again at will.

    A shell waits for the end of this process and kills its process group. Who wants to outlive it has to leave the
    group on purpose.
    """
    # A leader of a session, which may not do this, leads a group of its own already.
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    reading, writing = os.pipe()
    subprocess.Popen(
        ["sh", "-c", _GUARD, "sh", str(os.getpgid(0))],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(reading)
    held = [writing]

    def let_go() -> None:
        # Once: in a child of the child the number may be another file's.
        if held:
            os.close(held.pop())

    # A child that lives on would keep the pipe open; where another program takes its place it is closed anyway.
    os.register_at_fork(after_in_child=let_go)
