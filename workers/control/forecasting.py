"""What a job's throughput would be at other sizes and batches, by the model fitted to its own steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from workers.advisors.throughput import Layout, Model
from workers.control import adapt, adapting
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
    told = forecast(known, known.layout, state.spec, adapt.largest_batch(state))
    return replace(state, forecast=told, foreseen_s=now_s, foreseen_by=num_steps)


def forecast(known: Adapting, layout: Layout, spec: JobSpec, largest_batch: int) -> Forecast:
    """By all that was measured; ``layout`` is in force, and ``largest_batch`` as far as ``adapt: goodput`` may go."""
    model = adapting.model(known)
    batch = layout.global_batch
    most = min(spec.workers.max, batch)
    sizes = _chosen(range(min(spec.workers.min, most), most + 1), {layout.num_workers}, MAX_SIZES)
    batches = _batches(known, layout, spec, largest_batch)
    return Forecast(
        num_workers=layout.num_workers,
        global_batch=batch,
        sizes=tuple(_prediction(known, model, _resized(layout, size)) for size in sizes),
        batches=tuple(_prediction(known, model, _rebatched(layout, each)) for each in batches),
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


def _resized(layout: Layout, num_workers: int) -> Layout:
    """The same batch on another number of workers, on the nodes that there are now."""
    return replace(
        layout,
        num_workers=num_workers,
        num_nodes=min(num_workers, layout.num_nodes),
        num_passes=_passes(layout, layout.global_batch / num_workers),
    )


def _rebatched(layout: Layout, global_batch: int) -> Layout:
    return replace(layout, global_batch=global_batch, num_passes=_passes(layout, global_batch / layout.num_workers))


def _passes(layout: Layout, part: float) -> int:
    """Forward passes of a part; where the part in force is computed at once, so is any."""
    return 1 if layout.num_passes == 1 else max(1, math.ceil(part / layout.samples_a_pass - _ROUNDING))


def _prediction(known: Adapting, model: Model, layout: Layout) -> Prediction:
    told = model.step_s(layout)
    # At a batch and a size that were seen, whatever their passes and nodes, what was seen is told besides.
    alike = [
        steps.times_s
        for each, steps in known.memory.items()
        if (each.num_workers, each.global_batch) == (layout.num_workers, layout.global_batch)
    ]
    times_s = max(alike, key=len, default=())
    measured = layout.global_batch / median(step_s for _, step_s in times_s) if times_s else None
    return Prediction(
        num_workers=layout.num_workers,
        global_batch=layout.global_batch,
        samples_per_s=layout.global_batch / told.value,
        error=told.error,
        measured=measured,
        num_steps=len(times_s),
    )
