"""What a controller knows of its job's batches: what steps took under which, and the gradient noise scale. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from workers.advisors import goodput, judging, throughput
from workers.advisors.judging import Rate, Verdict
from workers.advisors.throughput import Layout, Observation
from workers.plan import PlanId
from workers.status import RoundRecord

ACTOR = "goodput"
MAX_STEPS = 64
NUM_BEFORE = 32
"""Steps before a change that it is measured by."""

MIN_STEPS = 20
"""Steps under a plan before its batch is looked at."""

JUDGE_STEPS = 15
MAX_JUDGE_STEPS = MAX_STEPS
"""What is open then is decided by what is likelier, if these steps took ``LEAST_LOST_S``."""

LEAST_LOST_S = 1.0
"""A batch is not taken back on fewer seconds: what else a machine does comes in bursts of about that length."""

MAX_SPEEDS = 512
"""Steps under a plan that are remembered: quick ones take no ``LEAST_LOST_S`` sooner."""

NUM_SETTLING = 3
"""Steps after a change that are not measured: memory is taken, libraries set themselves up."""

DRIFT = 0.1
"""By so much medians of some tens of steps differ on a machine that is left alone."""

MOST_AN_EPOCH = 4
"""Changes; a share of an epoch between them instead would hold up a job over much data at what it began with."""

REST_ROUNDS = 100
"""From a change to one in the other direction, or from one that was taken back to any; after each twice as long."""

REFUSED_ROUNDS = 500
"""For so long what did not pay is not tried again, after each turn twice as long."""

_MOST_TURNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The newest steps of one layout: seconds of a pass, seconds of a step."""

    times_s: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A batch that is being measured with so many workers; ``rate`` is their throughput at ``before``."""

    num_workers: int
    before: int
    after: int
    rate: Rate
    expected_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Of a batch that did not pay: the noise scale at which it did not, and the round until which that holds.

    ``rate`` is what it ran at; None once the batch before it was measured again, in the ``place`` it was taken back to.
    """

    noise_scale: float
    until: int
    place: tuple[int, int] = (0, 0)
    rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Whether the last change, in round ``round``, was to a larger batch; how often one was no more of the same.

    ``has_grown`` is None before the first change, and where the last one took a batch back.
    """

    has_grown: bool | None = None
    round: int = 0
    num_turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapting:
    """Steps by layout, the latest last; those at ``place`` in samples a second; noise scale; the change on trial.

    ``place`` is a group's generation and its global batch, ``num_seen`` counts rounds there, ``num_rounds`` all that
    were told. ``changed_at`` are the cursors of the last changes; ``turns`` and ``refused`` (batches that did not pay)
    are those since the number of workers changed last.
    ``noise_bounds`` are what the noise scale is at least and at most, ``is_by_length`` tells whether samples are put
    together by their lengths, so that passes are of unlike sizes. ``why`` tells why the batch stays, empty while it
    does not. ``shared_by`` is the last plan that shared the batch anew; while ``is_shared`` no step by it was told.
    """

    memory: Mapping[Layout, Steps] = field(default_factory=dict)
    last: tuple[int, int] = (0, 0)
    place: tuple[int, int] = (0, 0)
    layout: Layout | None = None
    samples_per_s: tuple[float, ...] = ()
    num_seen: int = 0
    num_rounds: int = 0
    noise_scale: float | None = None
    noise_bounds: tuple[float, float] | None = None
    is_by_length: bool = False
    trial: Trial | None = None
    num_judged: int = 0
    reviewed: int = 0
    changed_at: tuple[int, ...] = ()
    turns: Turns = field(default_factory=Turns)
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    why: str = ""
    shared_by: PlanId | None = None
    is_shared: bool = False


def forgotten(known: Adapting) -> Adapting:
    """Without what steps took so far: something else than the batch has made them faster."""
    return replace(known, memory={}, samples_per_s=(), num_seen=0, reviewed=0)


def _shared_anew(known: Adapting, num_workers: int) -> Adapting:
    """Without what steps took with other parts; what they took among more or fewer workers stays.

    What did not pay was judged by steps with those parts: it is not judged again by others.
    """
    memory = {layout: steps for layout, steps in known.memory.items() if layout.num_workers != num_workers}
    refused = {batch: replace(refusal, rate=None) for batch, refusal in known.refused.items()}
    known = replace(known, memory=memory, refused=refused, is_shared=False)
    return replace(known, samples_per_s=(), num_seen=0, reviewed=0)


def observe(
    known: Adapting, records: Iterable[RoundRecord], num_nodes: int, shared_by: PlanId | None = None
) -> Adapting:
    """Fold records in, each once; the job's workers are on ``num_nodes`` nodes.

    ``shared_by`` is the latest plan where that shares the batch anew.
    """
    if shared_by is not None and shared_by != known.shared_by:
        known = replace(known, shared_by=shared_by, is_shared=True)
    for record in sorted(records, key=lambda r: r.key):
        if record.key > known.last:
            if known.is_shared and known.shared_by is not None and record.plan_id >= known.shared_by:
                known = _shared_anew(known, int(record.values.get("workers", 0)))
            known = _observe(replace(known, last=record.key), record, num_nodes)
    return _reconsidered(known)


def _observe(known: Adapting, record: RoundRecord, num_nodes: int) -> Adapting:
    values = record.values
    noise = values.get("noise_scale")
    if noise is not None:
        known = replace(known, noise_scale=noise, noise_bounds=record.noise_bounds)
    if "useful_tokens" in values and not known.is_by_length:
        known = replace(known, is_by_length=True)
    layout, step_s = _layout(record, num_nodes), values.get("step_s", 0.0) / record.num_steps
    place = (record.generation, int(values.get("global_batch", 0)) // record.num_steps)
    if place != known.place:
        known = replace(known, place=place, samples_per_s=(), num_seen=0, reviewed=0)
    known = _lapsed(replace(known, num_seen=known.num_seen + 1, num_rounds=known.num_rounds + 1))
    if record.is_skipped or record.is_trial or layout is None or step_s <= 0.0 or known.num_seen <= NUM_SETTLING:
        return known
    if known.layout is not None and known.layout.num_workers != layout.num_workers:
        known = replace(known, refused={}, turns=Turns())
    known = replace(known, layout=layout)
    pass_s = (values.get("data_s", 0.0) + values.get("compute_s", 0.0)) / layout.num_passes / record.num_steps
    times_s = (*known.memory.get(layout, Steps()).times_s, (pass_s or step_s, step_s))[-MAX_STEPS:]
    speeds = (*known.samples_per_s, record.samples / record.num_steps / step_s)[-MAX_SPEEDS:]
    others = {other: steps for other, steps in known.memory.items() if other != layout}
    return replace(known, memory={**others, layout: Steps(times_s=times_s)}, samples_per_s=speeds)


def _lapsed(known: Adapting) -> Adapting:
    """Without refusals that hold no longer, nor what steps took then: others may have had the machine."""
    over = {batch for batch, refusal in known.refused.items() if refusal.until <= known.num_rounds}
    if not over:
        return known
    old = over - {known.place[1]}
    memory = {layout: steps for layout, steps in known.memory.items() if layout.global_batch not in old}
    refused = {batch: refusal for batch, refusal in known.refused.items() if batch not in over}
    return replace(known, memory=memory, refused=refused)


def _layout(record: RoundRecord, num_nodes: int) -> Layout | None:
    """None for a batch that came short; of a round of several steps one of them.

    Passes by length are of unlike sizes, and of another number in each step: there a part counts as one.
    """
    values = record.values
    workers, micro = int(values.get("workers", 0)), int(values.get("micro_batch", 0))
    batch = int(values.get("global_batch", 0)) // record.num_steps
    if workers < 1 or batch < workers or micro < 1:
        return None
    told = record.num_passes // record.num_steps or max(1, round(batch / workers / micro))
    passes = 1 if "useful_tokens" in values else told
    return Layout(num_workers=workers, num_nodes=num_nodes, global_batch=batch, num_passes=passes)


def change(known: Adapting, cursor: int, *, is_growth: bool | None) -> Adapting:
    """A change of the batch at this cursor; None where it is taken back."""
    num_turns = known.turns.num_turns + (is_growth is None or _is_turn(known.turns, is_growth=is_growth))
    turns = Turns(has_grown=is_growth, round=known.num_rounds, num_turns=min(num_turns, _MOST_TURNS))
    return replace(known, changed_at=(*known.changed_at, cursor)[-MOST_AN_EPOCH:], turns=turns)


def refuse(known: Adapting, trial: Trial, now: Rate, noise_scale: float) -> Adapting:
    """Note that the batch on trial, at the rate of ``now``, did not pay at this noise scale."""
    until = known.num_rounds + REFUSED_ROUNDS * 2**known.turns.num_turns
    refusal = Refusal(noise_scale=noise_scale, until=until, place=(known.place[0], trial.before), rate=now)
    return replace(known, refused={**known.refused, trial.after: refusal})


def _reconsidered(known: Adapting) -> Adapting:
    """Without the refusal of a batch that beats the one before it, now that this was measured again.

    Then it was not the batch that made steps slow, but what else the machine did, and does still.
    """
    open_ones = {b: r for b, r in known.refused.items() if r.rate is not None and r.place == known.place}
    now = rate(known)
    if not open_ones or now is None or not _is_long(now, known.place[1]):
        return known
    refused = dict(known.refused)
    for batch, refusal in open_ones.items():
        assert refusal.rate is not None
        worth = goodput.efficiency(batch, known.place[1], refusal.noise_scale)
        doubt = 2 * (refusal.rate.error**2 + now.error**2) ** 0.5
        if refusal.rate.samples_per_s * worth * (1 - doubt) > now.samples_per_s:
            del refused[batch]
        else:
            refused[batch] = replace(refusal, rate=None)
    return replace(known, refused=refused)


def _is_long(rate: Rate, batch: int) -> bool:
    """Whether its steps outlast what else a machine does now and then."""
    return rate.num_steps * batch >= LEAST_LOST_S * rate.samples_per_s or rate.num_steps >= MAX_SPEEDS


def may_change(known: Adapting, *, is_growth: bool) -> bool:
    """Whether it does not follow too soon on a change in the other direction, or on one that was taken back."""
    turns = known.turns
    has_rested = known.num_rounds - turns.round >= REST_ROUNDS * 2**turns.num_turns
    return has_rested or not _is_turn(turns, is_growth=is_growth)


def _is_turn(last: Turns, *, is_growth: bool) -> bool:
    return last.num_turns > 0 if last.has_grown is None else last.has_grown is not is_growth


def has_rested(known: Adapting, cursor: int, epoch: int) -> bool:
    """Whether another change at this cursor is not one too many within ``epoch`` samples."""
    return len(known.changed_at) < MOST_AN_EPOCH or cursor - known.changed_at[0] >= epoch


def rate(known: Adapting, num_steps: int = MAX_SPEEDS) -> Rate | None:
    """Throughput of the newest steps under the plan in force."""
    return judging.rate_of(known.samples_per_s[-num_steps:])


def model(known: Adapting) -> throughput.Model:
    """Fitted to the layouts that were measured; there must be one."""
    return throughput.fit(
        current(
            [
                Observation(
                    layout=layout,
                    pass_s=median(pass_s for pass_s, _ in steps.times_s),
                    step_s=median(step_s for _, step_s in steps.times_s),
                    num_steps=len(steps.times_s),
                )
                for layout, steps in list(known.memory.items())[::-1]
            ]
        )
    )


def current(observations: Iterable[Observation]) -> list[Observation]:
    """Without those that the machine has changed since; the newest first, and it stays.

    More samples in as many passes do not take less time. Where they seem to, others took of the machine or left it.
    """
    kept = list[Observation]()
    for old in observations:
        if not any(_contradict(old, new) or _contradict(new, old) for new in kept):
            kept.append(old)
    return kept


def _contradict(small: Observation, large: Observation) -> bool:
    a, b = small.layout, large.layout
    is_alike = (a.num_workers, a.num_nodes, a.num_passes) == (b.num_workers, b.num_nodes, b.num_passes)
    return is_alike and a.global_batch < b.global_batch and small.step_s > (1.0 + DRIFT) * large.step_s


def judge(known: Adapting, trial: Trial) -> Verdict | None:
    """What the batch on trial came to, None while it is open."""
    if known.noise_bounds is None:
        return None
    noise = goodput.doubted(known.noise_bounds, trial.before, trial.after)
    worth = goodput.efficiency(trial.after, trial.before, noise)
    now = rate(known)
    is_long = now is not None and _is_long(now, trial.after)
    most_steps = MAX_JUDGE_STEPS if is_long else MAX_SPEEDS
    verdict = judging.judge(
        trial.rate, now, least_gain=1.0, worth=worth, least_steps=JUDGE_STEPS, most_steps=most_steps
    )
    return verdict if verdict is None or verdict.is_kept or is_long else None
