"""The training thread's work from start to end: build, tell what was built, train."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from workers.assignment import Assignment
from workers.errors import JobError, OutOfMemoryError, failure_of
from workers.measures import BuildInfo
from workers.scratch import tidy
from workers.storage_urls import provide
from workers.training import memory, pass_note
from workers.training.calls import StoreCalls
from workers.training.device import measure_formats
from workers.training.exchange.buckets import cuts
from workers.training.exchange.costs import measure_schemes
from workers.training.exchange.reals import real_shape
from workers.training.logs import log_failure
from workers.training.mailbox import Mailbox
from workers.training.output import bring_home
from workers.training.setup import Setup, prepare
from workers.training.trainer import Trainer

NICENESS = 10


def work(assignment: Assignment, calls: StoreCalls, fetch_bundle: Callable[[], bytes] | None, mailbox: Mailbox) -> None:
    """Build the task and train until stopped; failing to build ends it, with the failure in the mailbox."""
    provide(assignment.storage.checkpoints, assignment.storage.options)
    try:
        setup = prepare(assignment, fetch_bundle, mailbox.set_phase)
        info = _describe(setup)
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        lack = _lack(error, assignment)
        failure = failure_of(lack or error, worker_id=assignment.worker_id, blot=assignment.secrets.text)
        log_failure(failure)
        mailbox.failed(failure)
        return
    mailbox.built(info)
    threading.Thread(target=_tidy, args=(assignment,), name="tidy", daemon=True).start()
    try:
        Trainer(setup, calls, mailbox).run()
    finally:
        try:
            setup.feed.end()
        finally:
            _bring_home(assignment)


def _lack(error: BaseException, assignment: Assignment) -> OutOfMemoryError | None:
    """What to tell where memory ran out for what is built around the task: for its model on a GPU, say."""
    if isinstance(error, JobError) or not memory.is_out_of_memory(error):
        return None
    lack = OutOfMemoryError(
        "what a worker holds before its first step (the model on its device, the optimizer) does not fit into its "
        f"memory ({memory.told_limit(assignment.spec.resources)}): {memory.told_lack(error)}; give workers more "
        "memory, or make the model smaller"
    )
    lack.__cause__ = error
    return lack


def _bring_home(assignment: Assignment) -> None:
    try:
        bring_home(assignment)
    except OSError as error:
        print(f"output files cannot be stored in {assignment.storage.output}: {error}", file=sys.stderr, flush=True)


def _tidy(assignment: Assignment) -> None:
    """What workers before this one left on the node; training has the processors first."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    tidy(Path(assignment.scratch), assignment.bounds)


def _describe(setup: Setup) -> BuildInfo:
    exchange, trained = setup.spec.exchange, [*setup.state.trained.values()]
    chooses = exchange.scheme == "auto" and setup.spec.workers.max > 1
    may_lose = exchange.loss_class == "lossy" and not setup.spec.follows_noise and setup.spec.resources.are_cpus_alone
    lossy = [real_shape(p) for p in trained] if may_lose else ()
    num_trained = sum(real_shape(p).numel() for p in trained)
    return BuildInfo(
        num_train=setup.order.num_samples,
        num_eval=setup.num_eval,
        num_parameters=sum(p.numel() for p in setup.state.model.parameters()),
        num_trained=num_trained,
        gradient_bytes=sum(p.nbytes for p in trained) / max(1, num_trained),
        total_samples=setup.total_samples,
        device=str(setup.device),
        device_seconds=dict(measure_formats(setup.device)),
        node_id="",
        pid=os.getpid(),
        schemes=dict(measure_schemes(setup.device, lossy)) if chooses else {},
        buckets=cuts(trained) if chooses else {},
        last_passes=pass_note.others(setup.assignment),
    )
