"""What a controller knows of its job's speed at each size, and the size that it asks for. Pure.

It steers to the size that it was directed to, whatever that is; what it asks for is only a wish, which the
service grants while there is room. So growth never takes what others were given meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from workers.advisors import judging, scaling
from workers.advisors.judging import Judged, Rate
from workers.advisors.scaling import Change, Situation
from workers.advisors.throughput import Estimate
from workers.control import compressing, sharing
from workers.measures import Forecast
from workers.plan import Cause, Goal, Plan, TimelineKind
from workers.status import Direction, RoundRecord

ACTOR = "scaling"
MAX_STEPS = 64
MAX_COSTS = 5
ASK_S = 1.0
LAPSE_S = 60.0
"""A wish that nobody has granted for so long is given up, and weighed anew."""

MEMORY_S = 600.0
"""How long a measured speed is believed; twice as long with every time that the size did not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Of a size that did not pay, given back to ``origin``: how long that holds, and what it ran at.

    ``rate`` is None once the speed of ``origin`` was measured again, and where that is not to count.
    """

    origin: int
    until_s: float
    rate: Rate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The newest steps at one size, in samples a second, when they were heard, and how often it did not pay."""

    samples_per_s: tuple[float, ...] = ()
    heard_s: float = 0.0
    num_failed: int = 0
    refusal: Refusal | None = None

    @property
    def believed_s(self) -> float:
        return math.ldexp(MEMORY_S, self.num_failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A wish for another size: from where, why, and what it shall bring (1.0 where it gives back)."""

    num_workers: int
    origin: int
    reason: str
    expected_gain: float
    before: Rate
    unix_s: float

    @property
    def is_growth(self) -> bool:
        return self.num_workers > self.origin

    def expected(self, before: int, after: int) -> float:
        """What a part of the way is to bring: workers may come one by one, or no more of them be granted.

        Like factors in size bring like factors in speed.
        """
        return math.pow(self.expected_gain, math.log(after / before) / math.log(self.num_workers / self.origin))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Speeds by size, costs of resizes (seconds), the wish under way, and in words why the size is what it is."""

    memory: Mapping[int, Memory] = field(default_factory=dict)
    last: RoundRecord | None = None
    changed_s: float = 0.0
    stalls_s: tuple[float, ...] = ()
    delays_s: tuple[float, ...] = ()
    ask: Ask | None = None
    asked_s: float = float("-inf")
    num_judged: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The job as it trains: the plan in force everywhere, and how many samples are left (None: unknown).

    ``forecast`` is what the model fitted to its steps tells, of this plan or of an older one.
    """

    plan: Plan
    num_left: int | None
    forecast: Forecast | None = None


def observe(sizing: Sizing, records: Iterable[RoundRecord], plan: Plan | None, now_s: float) -> Sizing:
    """Fold records in, each once. ``now_s`` is the controller's monotonic clock."""
    for record in sorted(records, key=lambda r: r.key):
        if sizing.last is None or record.key > sizing.last.key:
            sizing = _observe(sizing, record, plan, now_s)
    return sizing


def _observe(sizing: Sizing, record: RoundRecord, plan: Plan | None, now_s: float) -> Sizing:
    size, step_s = int(record.values.get("workers", 0)), record.values.get("step_s", 0.0)
    if size < 1 or step_s <= 0.0:
        return sizing
    if sizing.last is not None and _batch(sizing.last) != _batch(record):
        sizing = replace(sizing, memory={})  # speeds at another batch tell nothing of this one
    last, known = sizing.last, sizing.memory.get(size, Memory())
    sizing = replace(sizing, last=record)
    if last is None or last.values["workers"] != size or _is_shared_anew(last, record, plan):
        # The first step of a size pays for warming up; with other parts it has another speed.
        fresh = replace(known, samples_per_s=(), heard_s=now_s)
        sizing = replace(sizing, memory={**sizing.memory, size: fresh}, changed_s=now_s)
        is_planned = plan is not None and plan.id == record.plan_id and plan.cause.kind is TimelineKind.RESIZE
        return _cost(sizing, last, record) if is_planned and last is not None else sizing
    if record.is_skipped or record.is_trial:
        return sizing
    steps = (*known.samples_per_s, record.samples / step_s)[-MAX_STEPS:]
    return replace(sizing, memory={**sizing.memory, size: replace(known, samples_per_s=steps, heard_s=now_s)})


def _batch(record: RoundRecord) -> float:
    """Samples of a step."""
    return record.values.get("global_batch", 0.0) / record.num_steps


def _is_shared_anew(last: RoundRecord, record: RoundRecord, plan: Plan | None) -> bool:
    is_first = plan is not None and last.plan_id != record.plan_id == plan.id
    return is_first and plan is not None and plan.cause.actor in (sharing.ACTOR, compressing.ACTOR)


def _cost(sizing: Sizing, last: RoundRecord, record: RoundRecord) -> Sizing:
    stall_s = max(0.0, record.time - last.time - record.values["step_s"])
    sizing = replace(sizing, stalls_s=(*sizing.stalls_s, stall_s)[-MAX_COSTS:])
    if sizing.ask is None or not sizing.ask.is_growth:
        return sizing
    delay_s = max(0.0, record.time - sizing.ask.unix_s)
    return replace(sizing, delays_s=(*sizing.delays_s, delay_s)[-MAX_COSTS:])


def consider(
    sizing: Sizing, direction: Direction, standing: Standing | None, now_s: float, unix_s: float
) -> tuple[Sizing, Judged | None]:
    """Judge the last growth and decide what to ask for; what came of it where a growth was judged.

    ``standing`` is None while no plan is in force everywhere: then nothing is decided.
    """
    sizing = _without_overtaken_ask(sizing, direction)
    if standing is None or standing.plan.goal is not Goal.TRAIN or now_s - sizing.asked_s < ASK_S:
        return sizing, None
    size = standing.plan.num_members
    sizing = replace(sizing, asked_s=now_s)
    if direction.num_offered == 0:
        return replace(sizing, why=""), None
    if size != direction.num_workers:
        return replace(sizing, why=f"It goes from {size} to {direction.num_workers} workers."), None
    rates = _rates(sizing, size, now_s)
    ask = sizing.ask
    if ask is not None and ask.is_growth and size > ask.origin:
        return _judged(sizing, ask, standing, rates.get(size), (now_s, unix_s))
    if ask is not None:
        is_done = size == ask.num_workers or unix_s - ask.unix_s > LAPSE_S
        return (replace(sizing, ask=None) if is_done else sizing), None
    return _advised(sizing, direction, standing, rates, (now_s, unix_s)), None


def _advised(
    sizing: Sizing, direction: Direction, standing: Standing, rates: Mapping[int, Rate], at: tuple[float, float]
) -> Sizing:
    now_s, unix_s = at
    size = standing.plan.num_members
    sizing = _reconsidered(sizing, size, rates.get(size), now_s)
    advice = scaling.advise(
        Situation(
            num_workers=size,
            num_offered=direction.num_offered,
            rates=rates,
            num_left=standing.num_left,
            since_change_s=now_s - sizing.changed_s,
            stalls_s=sizing.stalls_s,
            delays_s=sizing.delays_s,
            foreseen=_foreseen(sizing, standing),
            tried=frozenset(sizing.memory),
            refused={n: m.refusal.until_s - now_s for n, m in sizing.memory.items() if m.refusal is not None},
        )
    )
    if isinstance(advice, Change):
        wish = Ask(
            num_workers=advice.num_workers,
            origin=size,
            reason=advice.reason,
            expected_gain=advice.expected_gain,
            before=rates[size],
            unix_s=unix_s,
        )
        sizing = replace(sizing, ask=wish)
    return replace(sizing, why=advice.reason)


def _without_overtaken_ask(sizing: Sizing, direction: Direction) -> Sizing:
    """Forget a wish whose room is gone, or whose size was set otherwise."""
    ask = sizing.ask
    if ask is None:
        return sizing
    low, high = sorted((ask.origin, ask.num_workers))
    has_room = not ask.is_growth or max(direction.num_workers, direction.num_offered) > ask.origin
    is_under_way = direction.num_offered > 0 and low <= direction.num_workers <= high and has_room
    return sizing if is_under_way else replace(sizing, ask=None)


def _rates(sizing: Sizing, size: int, now_s: float) -> dict[int, Rate]:
    """The speeds that are still believed; what is older is worth trying again."""
    known = {
        n: judging.rate_of(memory.samples_per_s)
        for n, memory in sizing.memory.items()
        if n == size or now_s - memory.heard_s < memory.believed_s
    }
    least = {size: 1}  # of the present size the advisor says itself what is too little
    return {n: r for n, r in known.items() if r is not None and r.num_steps >= least.get(n, scaling.MIN_STEPS)}


def _foreseen(sizing: Sizing, standing: Standing) -> dict[int, Estimate]:
    """How many times as fast as this size others are, of those that were not tried: an old trial is made again.

    Empty where the model was fitted to no other size or batch: then it tells what is usual, and only trying shows.
    """
    told, here = standing.forecast, (standing.plan.num_members, standing.plan.global_batch)
    if told is None or (told.num_workers, told.global_batch) != here:
        return {}
    measured = {(e.num_workers, e.global_batch) for e in (*told.sizes, *told.batches) if e.measured is not None}
    if not measured - {here}:
        return {}
    by_size = {each.num_workers: each for each in told.sizes}
    now = by_size[here[0]].samples_per_s
    return {n: Estimate(e.samples_per_s / now, e.error) for n, e in by_size.items() if n not in sizing.memory}


def _reconsidered(sizing: Sizing, size: int, now: Rate | None, now_s: float) -> Sizing:
    """Without refusals that hold no longer, and those of sizes that beat ``size``, now that this was measured again.

    Then it was not the size that made steps slow, but what else the machine did, and does still.
    """
    memory = dict(sizing.memory)
    for n, known in sizing.memory.items():
        refusal = known.refusal
        if refusal is None:
            continue
        if refusal.until_s <= now_s:
            memory[n] = replace(known, refusal=None)
        elif refusal.rate is not None and refusal.origin == size and now is not None and _is_long(sizing, now, now_s):
            doubt = 2 * (refusal.rate.error**2 + now.error**2) ** 0.5
            pays = refusal.rate.samples_per_s * (1 - doubt) > scaling.LEAST_GAIN * now.samples_per_s
            memory[n] = replace(known, refusal=None if pays else replace(refusal, rate=None))
    return sizing if memory == sizing.memory else replace(sizing, memory=memory)


def _is_long(sizing: Sizing, now: Rate, now_s: float) -> bool:
    return now.num_steps >= judging.JUDGE_STEPS and now_s - sizing.changed_s >= scaling.REST_S


def _judged(
    sizing: Sizing, ask: Ask, standing: Standing, rate: Rate | None, at: tuple[float, float]
) -> tuple[Sizing, Judged | None]:
    now_s, unix_s = at
    size = standing.plan.num_members
    verdict = judging.judge(ask.before, rate, least_gain=scaling.LEAST_GAIN)
    if verdict is None or rate is None:
        return replace(sizing, why=f"It is being measured whether {size} workers pay."), None
    known = sizing.memory[size]
    known = replace(known, num_failed=0, refusal=None) if verdict.is_kept else _refused(known, ask, rate, now_s)
    sizing = replace(sizing, num_judged=sizing.num_judged + 1, memory={**sizing.memory, size: known})
    expected_gain = ask.expected(ask.origin, size)
    judged = Judged(
        actor=ACTOR,
        before={"workers": ask.origin},
        after={"workers": size},
        rate=ask.before,
        now=rate,
        expected_gain=expected_gain,
        verdict=verdict,
        told=f"{size} workers are {judging.in_words(verdict, str(ask.origin), expected_gain, 'giving back')}",
    )
    if verdict.is_kept:
        return replace(sizing, ask=None, why=judged.told), judged
    back = Ask(num_workers=ask.origin, origin=size, reason=judged.told, expected_gain=1.0, before=rate, unix_s=unix_s)
    return replace(sizing, ask=back, why=judged.told), judged


def _refused(known: Memory, ask: Ask, rate: Rate, now_s: float) -> Memory:
    """It is tried again when it is not believed any more; that the machine was slow meanwhile is no excuse twice."""
    excusable = rate if known.num_failed == 0 else None
    known = replace(known, num_failed=known.num_failed + 1)
    return replace(known, refusal=Refusal(origin=ask.origin, until_s=now_s + known.believed_s, rate=excusable))


def num_asked(sizing: Sizing, direction: Direction) -> int:
    """The size that the job would have if it were free to choose."""
    if sizing.ask is None:
        return direction.num_workers
    return min(sizing.ask.num_workers, max(direction.num_workers, direction.num_offered))


def cause(sizing: Sizing, direction: Direction, num_members: int) -> Cause:
    """Who wants ``num_members``: this job itself, where it asked, else whoever directs it."""
    ask = sizing.ask
    if ask is not None and min(ask.origin, ask.num_workers) <= num_members <= max(ask.origin, ask.num_workers):
        return Cause(kind=TimelineKind.RESIZE, actor=ACTOR, reason=ask.reason)
    return Cause(kind=TimelineKind.RESIZE, actor=direction.actor, reason=direction.reason)
