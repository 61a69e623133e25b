"""From an assignment to a task: environment, dependencies, bundle, seed, and then the user's entrypoint."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from workers.assignment import Assignment
from workers.bundle import extract_bundle
from workers.entrypoint import build_from, enter_bundle, load_entrypoint
from workers.errors import BundleError, DependencyError, EntrypointError, OutOfMemoryError
from workers.scratch import BUNDLES, PART, enter
from workers.status import Phase
from workers.task import TrainingTask
from workers.training.dependencies import install_dependencies
from workers.training.memory import is_out_of_memory
from workers.training.output import make_output_folder

EXTRACT_TIMEOUT_S = 300.0

Report: TypeAlias = Callable[[str], None]


def build_task(
    assignment: Assignment,
    fetch_bundle: Callable[[], bytes] | None,
    report: Report,
    set_phase: Callable[[Phase], None],
) -> TrainingTask:
    """Build the task that an assignment names, in this process, which serves no other job after.

    Changes the process: environment variables, working directory, ``sys.path``, random seeds.
    ``fetch_bundle`` gives the bundle's bytes, asked only where the node has not extracted it yet;
    ``report`` takes lines for the job's log and is never given a secret's value, ``set_phase`` is told what is done.

    Raises BundleError, DependencyError, EntrypointError, DataError or OutOfMemoryError.
    """
    _set_environment(assignment)
    told = _without_secrets(assignment, report)
    folder = _bundle_folder(assignment, fetch_bundle, told)
    if folder is not None:
        enter_bundle(folder)
    set_phase(Phase.INSTALL)
    _install(assignment, report=told)
    set_phase(Phase.BUILD)
    seed_everything(assignment.spec.seed)
    spec = assignment.spec
    told(f"building the task: {spec.entrypoint}")
    try:
        task = build_from(load_entrypoint(spec.entrypoint, folder), spec.entrypoint, spec.config)
    except EntrypointError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"{error.message} (resources.memory_bytes={spec.resources.memory_bytes}); "
            "give workers more memory, or build a smaller model or dataset"
        ) from error
    if not task.tells_lengths and spec.batch.max_tokens is not None:
        raise EntrypointError(
            f"batch.max_tokens={spec.batch.max_tokens} bounds micro-batches by the lengths of their samples, and "
            f"entrypoint {spec.entrypoint!r} returned no `length`; return `length` or `length_at`, which tell a "
            "sample's tokens, or set batch.micro_size instead"
        )
    return task


def seed_everything(seed: int) -> None:
    """Seed python's, numpy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _set_environment(assignment: Assignment) -> None:
    output = make_output_folder(assignment)
    os.environ.update(assignment.env)
    os.environ["CONCERTINA_OUTPUT"] = str(output.resolve())


def _without_secrets(assignment: Assignment, report: Report) -> Report:
    """``report``, with the values of secrets blotted out."""
    secrets = assignment.secrets

    def told(text: str) -> None:
        report(secrets.text(text))

    return told


def _install(assignment: Assignment, report: Report) -> None:
    requirements = assignment.spec.dependencies
    if not requirements:
        return
    report(f"dependencies: {', '.join(requirements)}")
    try:
        if install_dependencies(requirements, Path(assignment.scratch), report, assignment.install_s) is None:
            report("dependencies: all of them are among the service's own packages")
    except DependencyError as error:
        raise DependencyError(assignment.secrets.text(error.message)) from None


def _bundle_folder(assignment: Assignment, fetch_bundle: Callable[[], bytes] | None, report: Report) -> Path | None:
    """The extracted bundle: one folder a node for all workers that have the same, None for a built-in recipe."""
    sha256 = assignment.bundle_sha256
    if sha256 is None:
        return None
    folder = Path(assignment.scratch) / BUNDLES / sha256

    def make(_: int) -> None:
        _extract(sha256, fetch_bundle, folder, report)

    try:
        enter(folder, make, "extracting the bundle", EXTRACT_TIMEOUT_S, report)
    except TimeoutError as error:
        raise BundleError(f"the bundle {sha256[:12]} is not extracted: {error}; retry the job") from None
    return folder


def _extract(sha256: str, fetch_bundle: Callable[[], bytes] | None, folder: Path, report: Report) -> None:
    if fetch_bundle is None:
        raise BundleError(f"the bundle {sha256[:12]} cannot be had: this worker was given no way to fetch it; retry")
    data = fetch_bundle()
    seen = hashlib.sha256(data).hexdigest()
    if seen != sha256:
        raise BundleError(f"the bundle's bytes have the sha256 {seen}, {sha256} was uploaded; upload it again")
    part = folder.with_suffix(PART)
    shutil.rmtree(part, ignore_errors=True)
    summary = extract_bundle(io.BytesIO(data), part)
    part.rename(folder)
    report(f"bundle {sha256[:12]}: {summary.files} files, {summary.size_bytes} bytes")
