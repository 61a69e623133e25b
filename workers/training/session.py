"""The face of training to the actor: start, poll, halt, stop. Loads torch in its own thread only."""

from __future__ import annotations

import functools
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from workers.assignment import Assignment
from workers.errors import failure_of
from workers.plan import Plan, PlanId
from workers.status import Acknowledged, LogChunk, WorkerStatus
from workers.training import log_limit
from workers.training.calls import StoreCalls
from workers.training.logs import LogReader
from workers.training.mailbox import Mailbox

__all__ = ["Session", "StoreCalls"]

MAX_LOG_BYTES = 128 * 1024


def load() -> None:
    """Load ahead what every training needs: torch, this package, and what torch puts off until a first step."""
    _load_libraries()
    import torch

    from workers.training.device import measure_formats

    measure_formats(torch.device("cpu"))
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter])
    torch.autograd.backward(parameter.sum())
    optimizer.step()


@functools.cache
def _load_libraries() -> None:
    """Torch, this package, and what torch puts off until a first optimizer; once in a process.

    It stays for good: to look for garbage in it while it grows took a sixth of the time, and later it is no quicker.
    """
    gc.disable()
    try:
        import torch

        import workers.training.worker  # noqa: F401  # loading it is what this is for

        torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
        gc.freeze()
    finally:
        gc.enable()


def log_path(assignment: Assignment) -> Path:
    """The file that takes this worker's output; the actor directs it there before user code runs."""
    return Path(assignment.log_file)


class Session:
    """One worker's training, in a thread of its own; every method returns at once, from any thread.

    ``on_rest``: see ``Mailbox``.
    """

    def __init__(
        self,
        assignment: Assignment,
        calls: StoreCalls,
        fetch_bundle: Callable[[], bytes] | None,
        on_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._assignment = assignment
        self._calls = calls
        self._fetch_bundle = fetch_bundle
        self._mailbox = Mailbox(assignment.worker_id, on_rest)
        self._secrets = assignment.secrets
        self._logs = LogReader(log_path(assignment), self._secrets)
        self._budget = log_limit.Budget()
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the training thread, which imports torch and the user's code; call it once."""
        self._thread.start()

    def poll(self, term: int, plan: Plan | None, acked: Acknowledged, wants_records: bool) -> WorkerStatus:
        """Hand over the pending plan and what is stored; take the worker's status.

        Raises StaleTermError for a term that was superseded.
        """
        self._mailbox.hear(term)
        if plan is not None:
            self._mailbox.offer(plan)
        offset = acked.log_offsets.get(self._assignment.worker_id, 0)
        status = self._mailbox.status(acked, self._log_after(offset), wants_records=wants_records)
        return self._without_secrets(status) if self._secrets.values else status

    def _log_after(self, offset: int) -> tuple[LogChunk, ...]:
        self._logs.free_delivered(offset)
        begin = log_limit.begin_at(self._logs, offset)
        if begin > offset:
            self._mailbox.cut("logs", log_limit.REASON)
        room = self._budget.take(MAX_LOG_BYTES, time.monotonic())
        found = self._logs.chunks(begin, self._mailbox.rank, self._assignment.worker_id, room)
        self._budget.put(room - sum(len(chunk.data) for chunk in found))
        return found

    def _without_secrets(self, status: WorkerStatus) -> WorkerStatus:
        """What errors said, wherever it is told; logs are without them already."""
        secrets, stop = self._secrets, status.stop
        if stop is not None:
            stop = replace(stop, failure=secrets.failure(stop.failure))
        return replace(
            status,
            stop=stop,
            failure=secrets.failure(status.failure),
            failed_saves=tuple(replace(save, message=secrets.text(save.message)) for save in status.failed_saves),
            micro_changes=tuple(replace(each, reason=secrets.text(each.reason)) for each in status.micro_changes),
            loader_changes=tuple(replace(each, reason=secrets.text(each.reason)) for each in status.loader_changes),
        )

    def halt(self, term: int, plan_id: PlanId) -> None:
        """Leave the group of any plan up to this id now, and never enter such a plan again.

        Raises StaleTermError for a term that was superseded.
        """
        self._mailbox.hear(term)
        self._mailbox.halt(plan_id)

    def stop(self, term: int, save: bool) -> None:
        """End the thread: leave the group, save the last commit if asked. May be called again.

        Raises StaleTermError for a term that was superseded.
        """
        self._mailbox.hear(term)
        self._mailbox.stop(should_save=save)
        if not self._thread.ident:
            self._ended.set()

    def wait_ended(self, timeout_s: float) -> bool:
        """Whether the training thread has ended, waited for at most ``timeout_s``."""
        return self._ended.wait(timeout_s)

    def _run(self) -> None:
        try:
            # Here and not above: the actor answers polls while torch is still being imported.
            _load_libraries()
            from workers.training.worker import work

            work(self._assignment, self._calls, self._fetch_bundle, self._mailbox)
        except BaseException as error:  # the one place of this thread: whatever it was, the controller learns of it
            self._mailbox.failed(failure_of(error, worker_id=self._assignment.worker_id, blot=self._secrets.text))
        finally:
            self._ended.set()
