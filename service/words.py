"""Words and numbers as people read them: pages, the command line and errors take them from here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

STATE_WORDS: Mapping[str, str] = {
    "QUEUED": "Queued",
    "STARTING": "Starting",
    "RUNNING": "Running",
    "RECOVERING": "Recovering",
    "PAUSING": "Pausing",
    "PAUSED": "Paused",
    "CANCELLING": "Cancelling",
    "CANCELLED": "Cancelled",
    "SUCCEEDED": "Succeeded",
    "FAILED": "Failed",
}

REASON_WORDS: Mapping[str, str] = {
    "USER_ERROR": "the job's own code raised an error",
    "OUT_OF_MEMORY": "what training needs did not fit into a worker's memory",
    "DIVERGED": "the loss stayed not finite",
    "BUNDLE_INVALID": "the code bundle cannot be used",
    "DEPENDENCY_FAILED": "its dependencies could not be installed",
    "NO_CAPACITY": "there is not enough free capacity",
    "NODE_LOST": "a node was lost",
    "CLUSTER_LOST": "the Ray cluster was lost",
    "PREEMPTED": "the service was stopped, or needed its place for others; its state is saved",
    "STALLED": "a worker made no progress for too long",
    "BUDGET_EXCEEDED": "its budget is used up",
    "CANCELLED_BY_USER": "a person cancelled it",
    "CANCELLED_BY_SWEEP": "its sweep cancelled it",
    "CANCELLED_BY_SCHEDULE": "its schedule cancelled it for the next run",
    "CONTROLLER_ERROR": "the service itself failed",
}

METRIC_WORDS: Mapping[str, str] = {
    "loss": "Training loss",
    "lr": "Learning rate",
    "global_batch": "Global batch",
    "micro_batch": "Micro-batch",
    "workers": "Workers",
    "samples_per_s": "Throughput",
    "grad_norm": "Gradient norm",
    "loss_scale": "Loss scale",
    "data_s": "Waiting for data",
    "compute_s": "Compute",
    "exchange_s": "Gradient exchange",
    "exposed_s": "Exchange not overlapped",
    "hidden_s": "Exchange behind computing",
    "encode_s": "Encoding gradients",
    "decode_s": "Decoding gradients",
    "optimizer_s": "Optimizer",
    "step_s": "Step time",
    "wire_bytes": "Bytes sent",
    "wire_bytes_across": "Bytes sent to other racks",
    "wire_ratio": "Bytes in fp32 over bytes sent",
    "redone_bytes": "Bytes sent for rounds done again",
    "round_steps": "Steps of a round",
    "memory_bytes": "Memory",
    "gpu_utilisation": "GPU utilisation",
    "noise_scale": "Gradient noise scale",
    "useful_tokens": "Useful tokens",
}

_UNITS: Mapping[str, str] = {
    "samples_per_s": "samples/s",
    "global_batch": "samples",
    "micro_batch": "samples",
    "noise_scale": "samples",
}

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def number(value: float | None) -> str:
    """Three significant digits with a decimal prefix: ``0.123``, ``12.3k``, ``1.23e-5``; ``–`` for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    size = abs(value)
    if size and size < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    for factor, prefix in _PREFIXES:
        if size >= factor * 0.9995:
            return f"{max(1.0, size / factor) * (1 if value > 0 else -1):.3g}{prefix}"
    return f"{value:.3g}"


def count(value: int | None) -> str:
    """A whole number with its thousands apart: ``12,345``; ``–`` for None."""
    return "–" if value is None else f"{value:,}"


def plural(value: int, noun: str) -> str:
    """``1 worker``, ``2 workers``, ``no step``; the noun is one that takes an s."""
    if value == 0:
        return f"no {noun}"
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def rate(samples_per_s: float | None) -> str:
    """Throughput with its unit; ``–`` for None."""
    return "–" if samples_per_s is None else f"{number(samples_per_s)} samples/s"


def size(num_bytes: float | None) -> str:
    """Bytes with a decimal prefix: ``1.21 MB``; ``–`` for None."""
    if num_bytes is None:
        return "–"
    if num_bytes < 1000:
        return f"{int(num_bytes)} B"
    text = number(num_bytes)
    return f"{text[:-1]} {text[-1]}B"


def percent(fraction: float | None) -> str:
    """A share as ``62 %``; one decimal from 99 % on and below 1 %, so that 100 % means all; ``–`` for None."""
    if fraction is None:
        return "–"
    value = max(0.0, fraction) * 100
    if value >= 100:
        return "100 %"
    if value >= 99 or 0 < value < 1:
        return f"{math.floor(value * 10) / 10:g} %"
    return f"{math.floor(value)} %"


def duration(seconds: float | None) -> str:
    """Seconds in words: ``0.18 s``, ``12 s``, ``2 min 10 s``, ``1 h 5 min``, ``3 d 4 h``; ``–`` for None."""
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return "0 s" if seconds < 0.005 else f"{seconds:.2g} s"
    whole = round(seconds)
    for unit_s, word, part_s, part_word in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // part_s
            return f"{whole // unit_s} {word}" + (f" {rest} {part_word}" if rest else "")
    return f"{whole} s"


def state(name: str) -> str:
    """A job's state as a word; an unknown one is shown as it is."""
    return STATE_WORDS.get(name, name.replace("_", " ").capitalize())


def reason(name: str | None) -> str:
    """Why a job is in its state, as part of a sentence; empty for None."""
    return REASON_WORDS.get(name, name.replace("_", " ").lower()) if name else ""


def metric(key: str) -> str:
    """A telemetry key as a heading: ``eval.accuracy`` is ``Evaluation: accuracy``."""
    if key.startswith("eval."):
        return f"Evaluation: {key.removeprefix('eval.')}"
    if key.startswith("user."):
        return f"Your {key.removeprefix('user.')}"
    return METRIC_WORDS.get(key, key)


def metric_value(key: str, value: float | None) -> str:
    """A telemetry value with the unit of its key."""
    if value is None:
        return "–"
    if key.endswith(("_bytes", "_bytes_across")):
        return size(value)
    if key.endswith("_s") and key != "samples_per_s":
        return seconds_fine(value)
    if key == "gpu_utilisation" or key.endswith("accuracy"):
        return f"{number(value * 100)} %"
    unit = _UNITS.get(key, "")
    return f"{number(value)} {unit}".rstrip()


def seconds_fine(seconds: float) -> str:
    """Short times to three digits: ``3.21 ms``, ``0.8 µs``; long ones as a duration."""
    if seconds >= 1:
        return duration(seconds)
    if seconds >= 1e-3 or seconds <= 0:
        return f"{number(seconds * 1e3)} ms"
    return f"{number(seconds * 1e6)} µs"


def workers(counts: Mapping[str, Any]) -> str:
    """A job's size against its range: ``2 of 1–4``, ``2 of 2`` where it is fixed."""
    low, high = counts.get("min"), counts.get("max")
    span = f"{high}" if low == high else f"{low}–{high}"
    return f"{counts.get('current') or 0} of {span}"


def cost(amounts: Mapping[str, Any] | None) -> str:
    """What a job has used: money where prices are set, else worker time; ``–`` where nothing ran."""
    if not amounts or not amounts.get("worker_s"):
        return "–"
    paid = amounts.get("amount")
    if paid is not None:
        most = "at most " if amounts.get("is_upper_bound") else ""
        return f"{'< 0.01' if paid < 0.01 else f'{most}{paid:,.2f}'} {amounts['currency']}"
    return f"{duration(amounts['worker_s'])} of a worker"


def gain(section: Mapping[str, Any]) -> str:
    """The gain of a report's section with its bounds: ``1.84 (1.79 to 1.90)``; a dash where it was not measured."""
    if section["gain"] is None:
        return "–"
    bounds = "" if section["low"] is None else f" ({section['low']:.2f} to {section['high']:.2f})"
    return f"{section['gain']:.2f}{bounds}"
