"""The one server from which tests fork processes that have everything imported already.

multiprocessing has one fork server a process, and what it has imported when it starts is what it will ever have:
a list of each module's own would hold for whoever came last. So the lists are put together here.
"""

from __future__ import annotations

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
SPAWNS = multiprocessing.get_context("spawn")
"""For processes that use a GPU: none that was forked can once anything has asked whether there is one."""

_wanted: list[str] = []


def import_before_forking(*modules: str) -> None:
    """Let forked processes begin with these modules; call it before the first fork, while tests are collected."""
    _wanted.extend(name for name in modules if name not in _wanted)
    FORKS.set_forkserver_preload(list(_wanted))
