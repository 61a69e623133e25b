"""The process of one sweep: a detached actor beside the service that is asked what to do next, and runs its trials.

Asks of a sampler take milliseconds to seconds, and load Optuna: neither belongs into the reconciler. The controllers
of the trials live here too, as a trial may be over sooner than a process of its own would have come up.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray

from tuning.orders import Answer, Question
from workers.assignment import JobKey
from workers.control.hosting import Hosting
from workers.control.launch import Launch


class SweepController:
    """Answers one question after another. What it decides has no effect by itself: the reconciler writes it.

    The actor's name is ``name``. All methods run on one event loop.
    """

    def __init__(self, namespace: str, name: str) -> None:
        # Loads Optuna; who only names this class, as the service does, has no use for it.
        from tuning.search import begun

        self._begun = begun
        self._search: Any = None
        # One thread, as questions are answered in their order; the controllers of trials go on meanwhile.
        self._thinking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._hosting = Hosting(namespace, name)

    async def ask(self, question: Question) -> Answer | None:
        """Decide; None where it has not been told how the sweep began."""
        return await asyncio.get_running_loop().run_in_executor(self._thinking, self._answer, question)

    async def host(self, key: JobKey, term: int, launch: Launch) -> None:
        """See ``Hosting.begin``."""
        await self._hosting.begin(key, term, launch)

    async def hosted(self, name: str, method: str, *args: object) -> Any:
        """See ``Hosting.call``."""
        return await self._hosting.call(name, method, *args)

    async def retire(self) -> bool:
        """End this process; False where a trial still has its controller here."""
        if self._hosting.is_empty:
            leave: Callable[[], None] = ray.actor.exit_actor
            leave()
        return False

    def _answer(self, question: Question) -> Answer | None:
        if question.beginning is not None:
            self._search = self._begun(question.beginning)
        if self._search is None:
            return None
        answer: Answer = self._search.answer(question.trials, question.standing)
        return answer


@functools.cache
def sweep_controller_actor() -> Any:
    """The actor class, one for the process as Ray forgets none; name, namespace and lifetime are the caller's."""
    options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "num_cpus": 0}
    decorate: Any = ray.remote(**options)
    return decorate(SweepController)
