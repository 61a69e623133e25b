"""What a worker leaves on its node of the forward pass that it was killed in, and how a bound on passes holds."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.group import Group
from tests.training.tasks import Gate, Regression, Script, mlp, mse
from workers.assignment import Assignment, JobKey, Storage
from workers.measures import LastPass
from workers.spec import parse_job_spec
from workers.task import TrainingTask
from workers.training import pass_note
from workers.training.micro import MicroSize, Room
from workers.training.micro_tuning import MicroTuning
from workers.training.pass_note import PassNote


def assignment(scratch: Path, worker_id: str) -> Assignment:
    return Assignment(
        key=JobKey(job_id="j", attempt=1),
        worker_id=worker_id,
        spec=parse_job_spec({"name": "n", "entrypoint": "workers.recipes.digits:build", "steps": 1}),
        storage=Storage(checkpoints="c", output="o"),
        scratch=str(scratch),
        env={},
    )


def logged(scratch: Path, worker_id: str) -> PassNote:
    """The note of a worker, whose log is there, as that of any that trains."""
    one = assignment(scratch, worker_id)
    Path(one.log_file).parent.mkdir(parents=True, exist_ok=True)
    Path(one.log_file).touch()
    return pass_note.own(one)


def test_whoever_comes_next_finds_the_largest_pass_and_whether_it_passed(tmp_path: Path) -> None:
    note, newcomer = logged(tmp_path, "1.1"), assignment(tmp_path, "1.2")
    assert pass_note.others(newcomer) == {}
    with note.trying(8):
        assert pass_note.others(newcomer) == {"1.1": LastPass(size=8, passed=0)}
    with note.trying(16):
        assert pass_note.others(newcomer) == {"1.1": LastPass(size=16, passed=8)}
    with pytest.raises(MemoryError), note.trying(32):
        raise MemoryError
    with note.trying(4):  # one that is known to pass
        assert pass_note.others(newcomer) == {"1.1": LastPass(size=16, passed=16)}
    assert pass_note.others(assignment(tmp_path, "1.1")) == {}


CRASHING = """
import ctypes, faulthandler, sys
from pathlib import Path
from workers.training.logs import redirect_output
from workers.training.pass_note import PassNote
faulthandler.enable(all_threads=False)  # as Ray does, before a worker has its log
log = Path(sys.argv[1])
redirect_output(log)
note = PassNote(log.with_suffix(".pass"))
with note.trying(8):
    print("one that passes")
with note.trying(16):
    ctypes.string_at(0)
"""


def test_of_a_worker_that_crashed_only_what_passed_is_told(tmp_path: Path) -> None:
    crashed = assignment(tmp_path, "1.1")
    command = [sys.executable, "-c", CRASHING, crashed.log_file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")
    assert Path(crashed.log_file).with_suffix(".pass").read_text() == "16 8"
    assert pass_note.others(assignment(tmp_path, "1.2")) == {"1.1": LastPass(size=8, passed=8)}


def test_while_a_worker_reads_its_samples_it_is_in_no_pass() -> None:
    script = Script(gate=Gate())
    assert script.gate is not None
    script.task = lambda: TrainingTask(model=mlp(), train_data=Regression(20, torch.float32, script), loss=mse)
    with Group(script, steps=3, batch={"global_size": 4, "micro_size": 4}) as group:
        (worker,) = group.start(1)
        newcomer, note = group.assignment("1.9"), Path(group.assignment(worker).log_file)
        script.gate.close_at(1)
        group.train([worker])
        script.gate.await_waiting(1)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        assert pass_note.others(newcomer) == {}
        script.gate.open()
        group.await_done([worker])
        assert pass_note.others(newcomer) == {worker: LastPass(size=4, passed=4)}


def test_a_bound_for_good_outlasts_what_passes_take_and_never_raises_another() -> None:
    sizes = MicroSize(None)
    tuning = MicroTuning(sizes, torch.device("cpu"))
    tuning.halve(16)
    tuning.cap(12)
    assert sizes.within(100) == 8
    tuning.again()  # the precision has changed, say
    assert max(sizes.within(num_samples) for num_samples in range(1, 200)) == 12
    assert sizes.begin(64, lambda: 0) == 8
    assert sizes.measured(8, 1.0, 1, Room()) is None
    tuning.cap(2)
    assert sizes.within(64) == 2
