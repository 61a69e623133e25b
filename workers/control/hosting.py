"""Controllers of attempts within another actor's process: a short job has no time to wait for one of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from workers.assignment import JobKey
from workers.control.controller import JobController
from workers.control.hosted import NotHostedError
from workers.control.launch import Launch
from workers.control.names import controller_name
from workers.control.roster import Roster


class Hosting:
    """The controllers in this process, which is the actor called ``host``. All methods run on one event loop.

    What a predecessor of that name had in it died with it.
    """

    def __init__(self, namespace: str, host: str) -> None:
        self._namespace, self._host = namespace, host
        self._controllers: dict[str, JobController] = {}
        Roster(namespace).forget_hosted(host)

    @property
    def is_empty(self) -> bool:
        """Whether this process serves no job."""
        return not self._controllers

    async def begin(self, key: JobKey, term: int, launch: Launch) -> None:
        """Have the controller of a term here, prepared, to be found by its name from now on.

        Repeating it changes nothing.
        """
        name = controller_name(key, term)
        controller = self._controllers.get(name)
        if controller is None:
            controller = JobController(key, term, self._namespace, leave=lambda: self._forget(name))
            self._controllers[name] = controller
            await asyncio.to_thread(Roster(self._namespace).host, name, self._host)
        await controller.prepare(term, launch)

    async def call(self, name: str, method: str, *args: object) -> Any:
        """Call one of them. Raises NotHostedError."""
        if name not in self._controllers:
            raise NotHostedError(f"{name} is not in this process; ask for the controller of its job's term")
        return await getattr(self._controllers[name], method)(*args)

    def _forget(self, name: str) -> None:
        if self._controllers.pop(name, None) is not None:
            asyncio.get_running_loop().run_in_executor(None, Roster(self._namespace).unhost, name)
