"""Which number format to compute in: ``precision: auto`` decided by what the members measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workers.plan import Format, Precision

LEAST_SPEED_UP = 1.15
"""A lower format must be this much faster on every member: less is noise and not worth its rounding."""

_CANDIDATES = (Format.BF16, Format.FP16)  # in order of preference: bf16 needs no loss scaling


def choose_precision(asked: str, device_seconds: Sequence[Mapping[str, float]]) -> Precision:
    """The format for all members, and why.

    ``asked`` is the spec's ``precision``: a format, or ``auto``. ``device_seconds`` has one mapping a
    member, from format to measured seconds of the same work (``BuildInfo.device_seconds``).
    """
    if asked != "auto":
        return Precision(format=Format(asked), why="asked for in the spec")
    if not device_seconds or any(not m.get(Format.FP32) for m in device_seconds):
        return Precision(format=Format.FP32, why="auto: fp32, as no speeds have been measured")
    speeds = {f: speed for f in _CANDIDATES if (speed := _least_speed(f, device_seconds)) is not None}
    told = " and ".join(f"{f.value} {speed:.2f} times" for f, speed in speeds.items()) or "no other format"
    for format, speed in speeds.items():
        if speed >= LEAST_SPEED_UP:
            return Precision(
                format=format, why=f"auto: {format.value}, as {told} as fast as fp32 on the slowest worker"
            )
    return Precision(
        format=Format.FP32,
        why=f"auto: fp32, as a lower format must be {LEAST_SPEED_UP} times as fast on every worker, measured: {told}",
    )


def _least_speed(format: Format, device_seconds: Sequence[Mapping[str, float]]) -> float | None:
    """How many times as fast as fp32 on the member where it gains least; None where one cannot do it."""
    if any(not m.get(format) for m in device_seconds):
        return None
    return min(m[Format.FP32] / m[format] for m in device_seconds)
