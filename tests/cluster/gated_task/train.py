"""A training that notes every step with its samples, and waits for a file before steps that are named.

It travels as a bundle, with ``tests/faults/diary.py`` beside it and nothing else of the tests. ``config``:
``folder`` (all files lie there), ``gates`` (steps before which each worker says ``at-<step>-<pid>``, with its
rank in the file, and waits for ``go-<step>``), ``publishes`` (steps whose checkpoint waits so at
``publish-<step>`` when all of it is written and it is about to count), ``hands_over_after`` (from this step
on whoever gives his state to a newcomer, or saves it, waits so at ``state``), ``waits_to_build`` (each worker
waits so at ``build``), ``raises`` (steps at which one worker raises, once each), ``starts_processes``,
``pace_s`` (seconds that a step takes at least), ``num_samples``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from diary import Note, Saved, line_of
from torch import nn

from workers.task import TrainingTask
from workers.training.part import Part

WAIT_S = 120.0


class AuditedAdam(torch.optim.Adam):
    """Adam that tells of each of its steps; their number lies in its state, so it travels with it."""

    def __init__(self, params: Any, lr: float, diary: Diary) -> None:
        super().__init__(params, lr=lr)
        self._diary = diary
        diary.optimizer = self

    @property
    def num_steps(self) -> int:
        state = self.state.get(self.param_groups[0]["params"][0], {})
        return int(state.get("step", 0))

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self._diary.stepped(self.num_steps)
        return result

    def state_dict(self) -> dict[str, Any]:
        self._diary.hands_over(self.num_steps)
        return super().state_dict()


class Diary:
    """One worker's part of the common file; a line is one write, which a killed process leaves whole."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.optimizer: AuditedAdam | None = None
        self.started: list[Any] = []
        self._folder = Path(config["folder"])
        self._gates = set(config.get("gates", ()))
        self._publishes = set(config.get("publishes", ()))
        self._hands_over_after = int(config.get("hands_over_after", sys.maxsize))
        self._raises = set(config.get("raises", ()))
        self._pace_s = float(config.get("pace_s", 0.0))
        self._ids: list[int] = []
        # Its output goes to .../<job>/<attempt>/<worker id>.log
        self._job, attempt, log = Path(os.readlink("/proc/self/fd/1")).parts[-3:]
        self._attempt, self._worker = int(attempt), log.removesuffix(".log")
        self._file = os.open(self._folder / "diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._renamed = threading.local()
        sys.addaudithook(self._heard_of)

    def drawn(self, ids: list[int]) -> None:
        """Samples of the step that is about to be done; a step that is redone draws again."""
        assert self.optimizer is not None
        step = self.optimizer.num_steps + 1
        self._ids = ids
        time.sleep(self._pace_s)
        if step in self._gates:
            member = _plan_in_force().member(self._worker)
            self.wait_at(str(step), told=str(member.rank))
        if step in self._raises:
            self._raise_once(step)

    def stepped(self, step: int) -> None:
        plan = _plan_in_force()
        note = Note(
            job=self._job,
            attempt=self._attempt,
            worker=self._worker,
            lineage=plan.lineage,
            generation=plan.generation,
            step=step,
            pid=os.getpid(),
            time=time.monotonic(),
            ids=tuple(self._ids),
        )
        os.write(self._file, line_of(note))

    def hands_over(self, num_steps: int) -> None:
        """The optimizer's state is about to be copied, after so many steps."""
        if num_steps >= self._hands_over_after:
            self.wait_at("state")

    def _heard_of(self, event: str, details: tuple[Any, ...]) -> None:
        """Of all that this process does: a checkpoint counts once its manifest, written last, has got its name.

        It has it when its folder is opened next, to make the name last: a rename is told before it is done.
        """
        if event == "os.rename":
            manifest = Path(os.fsdecode(details[1]))
            if manifest.parent.name == "manifests" and manifest.parents[2].name == self._job:
                self._is_renamed(manifest)
        elif event == "open" and (done := getattr(self._renamed, "manifest", None)) is not None:
            if str(details[0]) == str(done.parent):
                self._renamed.manifest = None
                self._saved(done)
        elif event == "os.remove":
            self._renamed.manifest = None

    def _is_renamed(self, manifest: Path) -> None:
        attempt, _, step, _ = map(int, manifest.stem.split("-"))  # its round, which is its step in this task
        if attempt != self._attempt:
            return  # a process that rests serves one job after the other, and all their hooks stay
        if step in self._publishes:
            self.wait_at(f"publish-{step}")
        self._renamed.manifest = manifest

    def _saved(self, manifest: Path) -> None:
        attempt, lineage, step, generation = map(int, manifest.stem.split("-"))
        note = Saved(
            job=self._job,
            attempt=attempt,
            lineage=lineage,
            generation=generation,
            saved=step,
            time=time.monotonic(),
        )
        os.write(self._file, line_of(note))

    def wait_at(self, gate: str, told: str = "") -> None:
        at = self._folder / f"at-{gate}-{os.getpid()}"
        # Whoever sees it sees all of it.
        at.with_name(f"about-{at.name}").write_text(told)
        at.with_name(f"about-{at.name}").rename(at)
        deadline_s = time.monotonic() + WAIT_S
        while not (self._folder / f"go-{gate}").exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"nobody opened gate {gate}")
            time.sleep(0.01)
        print(f"process {os.getpid()} passed the gate {gate}")

    def _raise_once(self, step: int) -> None:
        try:
            os.close(os.open(self._folder / f"raised-{step}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise ValueError(f"step {step} is cursed")


def _plan_in_force() -> Any:
    """The plan of the round that calls the optimizer: only the trainer knows it, a few frames up the stack."""
    frame = sys._getframe()
    while frame is not None:
        part = frame.f_locals.get("part")
        if isinstance(part, Part):
            return part.plan
        frame = frame.f_back
    raise LookupError("no round of the trainer is on the stack of optimizer.step")


class Points(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Random points on a plane; a sample knows its number."""

    def __init__(self, num_samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._x_N8 = torch.randn(num_samples, 8, generator=generator)
        self._y_N = self._x_N8.sum(1)

    def __len__(self) -> int:
        return len(self._y_N)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self._x_N8[index], self._y_N[index], index


def start_processes() -> list[Any]:
    """What code of users leaves running: a program with a child of its own, and processes that load data."""
    program = subprocess.Popen(["sh", "-c", "sleep 86400 & wait"])
    loader = torch.utils.data.DataLoader(Points(8), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    return [program, batches]


def build(config: dict[str, Any]) -> TrainingTask:
    diary = Diary(config)
    if config.get("waits_to_build"):
        diary.wait_at("build")
    if config.get("starts_processes"):
        diary.started = start_processes()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x_B8, y_B, ids_B = batch
        diary.drawn(ids_B.tolist())
        return nn.functional.mse_loss(model(x_B8)[:, 0], y_B)

    torch.manual_seed(0)
    print("gated task: built")
    return TrainingTask(
        model=nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
        train_data=Points(int(config["num_samples"])),
        loss=loss,
        optimizer=lambda params, lr: AuditedAdam(params, lr, diary),
    )
