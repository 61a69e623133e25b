"""What a job's throughput would be at other sizes and batches, by the model fitted to its own steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from workers.advisors.throughput import Layout, Model
from workers.control import adapt, adapting, membership
from workers.control.adapting import Adapting, Steps
from workers.control.decisions import ControllerState
from workers.measures import Forecast, Prediction
from workers.spec import JobSpec

REFRESH_S = 30.0
"""A fit takes about 20 ms, and the controller of a sweep has those of all its trials to make."""

FIRST_S = 3.0
"""Of a controller's life before it foresees anything: a trial of a sweep is over by then."""

MIN_STEPS = 10
"""Steps of the layout in force before anything is foreseen."""

MAX_SIZES = 24
MAX_BATCHES = 24
_LEAST_DOUBLINGS = 2
_ROUNDING = 1e-9


def foresee(state: ControllerState, now_s: float) -> ControllerState:
    """Fit anew where that is due: in time, or as soon as the layout in force is another one, or told by many steps."""
    plan, known = state.plan, state.adapting
    # Its steps may be forgotten while the layout stays: another scheme was found to make them faster.
    num_steps = 0 if known.layout is None else len(known.memory.get(known.layout, Steps()).times_s)
    if plan is None or known.layout is None or num_steps < MIN_STEPS:
        return state
    in_force = (plan.num_members, plan.global_batch)
    if (known.layout.num_workers, known.layout.global_batch) != in_force:
        return state
    told = state.forecast
    if told is None and now_s - state.begun_s < FIRST_S:
        return state
    is_other = told is None or (told.num_workers, told.global_batch) != in_force
    is_rough = state.foreseen_by < adapting.MAX_STEPS <= num_steps
    if not (is_other or is_rough) and now_s - state.foreseen_s < REFRESH_S:
        return state
    settled = max((status.micro_size or 0 for status in membership.statuses(state)), default=0)
    told = forecast(known, known.layout, state.spec, adapt.largest_batch(state), settled or None)
    return replace(state, forecast=told, foreseen_s=now_s, foreseen_by=num_steps)


def forecast(
    known: Adapting, layout: Layout, spec: JobSpec, largest_batch: int, micro_size: int | None = None
) -> Forecast:
    """By all that was measured; ``layout`` is in force, and ``largest_batch`` as far as ``adapt: goodput`` may go.

    ``micro_size`` is what workers have settled on, None where they tell none.
    """
    model = adapting.model(known)
    batch, workers = layout.global_batch, layout.num_workers
    a_pass = _samples_a_pass(known, layout, spec, micro_size)
    most = min(spec.workers.max, batch)
    sizes = _chosen(range(min(spec.workers.min, most), most + 1), {workers}, MAX_SIZES)
    batches = _batches(known, layout, spec, largest_batch)
    return Forecast(
        num_workers=workers,
        global_batch=batch,
        sizes=tuple(_prediction(known, model, _at(layout, (size, batch), a_pass)) for size in sizes),
        batches=tuple(_prediction(known, model, _at(layout, (workers, each), a_pass)) for each in batches),
    )


def _chosen(sizes: Iterable[int], wanted: set[int], limit: int) -> list[int]:
    """All sizes, or ``limit`` of them by equal factors, with the first, the last and those wanted."""
    found = sorted(sizes)
    if len(found) > limit:
        low, high = found[0], found[-1]
        ratio = math.log(high / low) / (limit - 1)
        found = sorted({round(low * math.exp(ratio * n)) for n in range(limit)})
    return sorted({*found, *wanted})


def _batches(known: Adapting, layout: Layout, spec: JobSpec, largest: int) -> list[int]:
    """The batches that were measured at this size, and doublings: as far as the batch may go, or around a fixed one."""
    asked, now, workers = spec.batch.global_size, layout.global_batch, layout.num_workers
    if spec.batch.adapt == "goodput":
        low, high = asked, largest
    else:
        low, high = now // 2**_LEAST_DOUBLINGS, now * 2**_LEAST_DOUBLINGS
    low = max(low, workers)
    doubled = [low * 2**n for n in range(MAX_BATCHES) if low * 2**n <= high]
    seen = [each.global_batch for each in known.memory if each.num_workers == workers]
    return sorted({*doubled, *seen[-MAX_BATCHES:], now, *([high] if high >= low else [])})


def _samples_a_pass(known: Adapting, layout: Layout, spec: JobSpec, micro_size: int | None) -> float:
    """How many samples a pass has at most where nothing was measured; without a bound where no part was ever cut."""
    asked = spec.batch.micro_size
    if known.is_by_length:
        return math.inf
    if isinstance(asked, int):
        return asked
    if layout.num_passes > 1:
        return micro_size or layout.samples_a_pass
    cut = [each.samples_a_pass for each in known.memory if each.num_passes > 1]
    return max(cut[-1], layout.samples_a_pass) if cut else math.inf


def _at(layout: Layout, place: tuple[int, int], samples_a_pass: float) -> Layout:
    """Another number of workers and another batch, on the nodes that there are now."""
    workers, batch = place
    if place == (layout.num_workers, layout.global_batch):
        return layout
    num_passes = max(1, math.ceil(batch / workers / samples_a_pass - _ROUNDING))
    num_nodes = min(workers, layout.num_nodes)
    return Layout(num_workers=workers, num_nodes=num_nodes, global_batch=batch, num_passes=num_passes)


def _prediction(known: Adapting, model: Model, layout: Layout) -> Prediction:
    # At a batch and a size that were seen, whatever their passes and nodes, what was seen is told besides.
    seen = _seen(known, layout)
    times_s = known.memory[seen].times_s if seen is not None else ()
    told = model.step_s(layout if seen is None else replace(layout, num_passes=seen.num_passes))
    measured = layout.global_batch / median(step_s for _, step_s in times_s) if times_s else None
    return Prediction(
        num_workers=layout.num_workers,
        global_batch=layout.global_batch,
        samples_per_s=layout.global_batch / told.value,
        error=told.error,
        measured=measured,
        num_steps=len(times_s),
    )


def _seen(known: Adapting, layout: Layout) -> Layout | None:
    """What was measured at its size and batch: itself, else what most steps had, of as many the latest."""
    if layout in known.memory:
        return layout
    place = (layout.num_workers, layout.global_batch)
    alike = [each for each in known.memory if (each.num_workers, each.global_batch) == place]
    return max(reversed(alike), key=lambda each: len(known.memory[each].times_s), default=None)
