"""Whether a job's steps and samples were done as the spine allows, told from what its workers noted.

Within a lineage nothing is repeated: a step is redone only for a member that died with it. Nothing is ever skipped, and
no two lineages of a job overlap in time. What a lineage may repeat of those before it: see ``lineages``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from tests.faults.diary import Note
from tests.faults.evidence import Job
from tests.faults.findings import Finding, Kind

Life = list[Note]


def judge_steps(job: Job, notes: Sequence[Note], lost: Collection[tuple[int, int]]) -> Iterator[Finding]:
    """What is wrong with a job's steps; ``lost`` are lineages whose workers were all killed at once on purpose."""
    lives = _lives(notes)
    yield from judge_notes(job.id, notes)
    for life in lives:
        yield from _within(job, life, lost)
    path = path_of(lives)
    if job.taken_over:
        return  # some of its steps were another's
    yield from _samples(job, path)
    if job.state != "SUCCEEDED":
        return
    if not job.is_tuned and (found := sorted(path)) != list(range(1, job.steps + 1)):
        yield Finding(Kind.STEP, job.id, f"it succeeded with the steps {_ranges(found)} of {job.steps}")
    if job.is_tuned and sorted(path) != list(range(1, len(path) + 1)):
        yield Finding(Kind.STEP, job.id, f"it succeeded with the steps {_ranges(sorted(path))}")


def judge_notes(job_id: str, notes: Sequence[Note]) -> Iterator[Finding]:
    """What is wrong with a job's steps whatever its rows say, also where they were deleted."""
    lives = _lives(notes)
    for earlier, later in pairwise(lives):
        if max(note.time for note in earlier) > min(note.time for note in later):
            told = f"lineage {earlier[0].life} still trained when {later[0].life} had begun"
            yield Finding(Kind.TWICE_RUN, job_id, told)
    for life in lives:
        yield from _in_order(job_id, life)


def path_of(lives: Sequence[Life]) -> dict[int, list[Note]]:
    """The steps behind the newest state: of each, the notes of the last group that did it."""
    path: dict[int, list[Note]] = {}
    for life in lives:
        first = min(note.step for note in life)
        path = {step: notes for step, notes in path.items() if step < first}
        path |= {step: _final(notes) for step, notes in _by_step(life).items()}
    return path


def lives_of(notes: Sequence[Note]) -> Mapping[tuple[int, int], Life]:
    """Notes of each lineage of a job, the oldest lineage first."""
    found: dict[tuple[int, int], Life] = {}
    for note in sorted(notes, key=lambda n: n.life):
        found.setdefault(note.life, []).append(note)
    return found


def final_generations(life: Life) -> dict[int, int]:
    """Which generation's work each step of a lineage is in the end."""
    return {step: max(note.generation for note in notes) for step, notes in _by_step(life).items()}


def _lives(notes: Sequence[Note]) -> list[Life]:
    return list(lives_of(notes).values())


def _by_step(life: Life) -> dict[int, list[Note]]:
    found: dict[int, list[Note]] = {}
    for note in sorted(life, key=lambda n: n.step):
        found.setdefault(note.step, []).append(note)
    return found


def _final(notes: list[Note]) -> list[Note]:
    generation = max(note.generation for note in notes)
    return [note for note in notes if note.generation == generation]


def _in_order(job_id: str, life: Life) -> Iterator[Finding]:
    """No step is left out, done twice by one worker, or redone for nobody who died."""
    where, by_step, last_of = f"lineage {life[0].life}", _by_step(life), _last_of(life)
    steps = sorted(by_step)
    if steps != list(range(steps[0], steps[-1] + 1)):
        yield Finding(Kind.STEP, job_id, f"{where} has the steps {_ranges(steps)}")
    for (worker, step), count in sorted(Counter((note.worker, note.step) for note in life).items()):
        if count > 1:
            yield Finding(Kind.STEP, job_id, f"{where}: worker {worker} did step {step} {count} times")
    for step, notes in by_step.items():
        for note in notes:
            if note.generation < _final(notes)[0].generation and last_of[note.worker] > step:
                detail = f"{where}: step {step} of generation {note.generation} was redone, {note.worker} lived on"
                yield Finding(Kind.STEP, job_id, detail)


def _last_of(life: Life) -> Mapping[str, int]:
    """The last step of each worker."""
    return {note.worker: note.step for note in sorted(life, key=lambda note: note.step)}


def _within(job: Job, life: Life, lost: Collection[tuple[int, int]]) -> Iterator[Finding]:
    """The parts of each step make up its batch."""
    where = f"lineage {life[0].life}"
    end = job.end_of(life[0].attempt)
    is_cut = life[0].life in lost or (end is not None and end.target in ("CANCELLED", "FAILED"))
    by_step, last_of = _by_step(life), _last_of(life)
    steps = sorted(by_step)
    for step, notes in by_step.items():
        final = _final(notes)
        may_be_cut = (step == steps[-1] and is_cut) or _has_died_in(final, by_step.get(step - 1, ()), last_of)
        yield from _parts(job, where, final, may_be_cut=may_be_cut)


def _has_died_in(notes: Sequence[Note], before: Sequence[Note], last_of: Mapping[str, int]) -> bool:
    """Whether a member of this step's group noted nothing since the step before: it did its part, and died with it."""
    return any(
        note.generation == notes[0].generation and last_of[note.worker] == note.step and note.step < notes[0].step
        for note in before
    )


def _parts(job: Job, where: str, notes: list[Note], *, may_be_cut: bool) -> Iterator[Finding]:
    """The parts of one step make up one batch; of the last before a sudden end, or death, some may be unnoted."""
    ids = [i for note in notes for i in note.ids]
    size = job.samples_of(notes[0].life, notes[0].step)
    if len(ids) > size or (len(ids) < size and not may_be_cut):
        seen = ", ".join(f"{note.worker}: {len(note.ids)}" for note in notes)
        detail = f"{where}: step {notes[0].step} has {len(ids)} samples of {size} ({seen})"
        yield Finding(Kind.SAMPLE, job.id, detail)


def _samples(job: Job, path: Mapping[int, list[Note]]) -> Iterator[Finding]:
    """Along the path each sample of an epoch is used once: at any step their counts differ by one at most.

    What a member drew that died before it noted it stands for samples that are missing, until their epoch is over.
    """
    if job.num_samples is None or sorted(path) != list(range(1, len(path) + 1)):
        return
    counts = dict.fromkeys(range(job.num_samples), 0)
    total = unnoted = 0
    for step in sorted(path):
        ids = [i for note in path[step] for i in note.ids]
        size = job.samples_of(path[step][0].life, step)
        if len(ids) > size:
            return  # told already
        total += size
        unnoted += size - len(ids)
        for i in ids:
            counts[i] = counts.get(i, 0) + 1
        few, many = total // job.num_samples, -(-total // job.num_samples)
        missing = {i: few - count for i, count in counts.items() if count < few}
        wrong = sorted(i for i, count in counts.items() if count > many)
        if wrong or sum(missing.values()) > unnoted:
            told = (wrong or sorted(missing))[:10]
            yield Finding(Kind.SAMPLE, job.id, f"by step {step} the samples {told} are not used as the others")
            return
        if few == many:
            counts, unnoted = dict.fromkeys(counts, few), 0


def _ranges(steps: Sequence[int]) -> str:
    """Numbers in a few words: ``1-4, 6-9``."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][1] + 1:
            parts[-1][1] = step
        else:
            parts.append([step, step])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in parts) or "none"
